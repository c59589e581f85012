"""Build what changed, import what is missing: the steps that `local_cluster up` takes.

With a Docker engine and kind the same two steps are `docker build` and `kind load` (see `docker.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from local_cluster.host.locks import file_lock
from local_cluster.host.paths import REPOSITORY, paths
from local_cluster.host.progress import progress
from local_cluster.images import buildah, containerd
from local_cluster.images.base import base_key, ensure_base
from local_cluster.images.catalog import CHAINS, IMAGES, ImageSpec, content_key
from local_cluster.tools.host_packages import ensure_system_packages

Keys = Mapping[ImageSpec, str]


def keys(images: Sequence[ImageSpec] = IMAGES) -> dict[ImageSpec, str]:
    """Each image's content key for the tree as it stands."""
    base = base_key()
    return {image: content_key(image, REPOSITORY, base) for image in images}


def build_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Bring buildah's storage up to the tree; images that are there under their key are left alone."""
    ensure_system_packages(paths().cache)
    with _alone():
        _build(keys(images))


def import_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Bring the node's containerd up to the tree: the cluster must be up, the images built."""
    with _alone():
        _import(keys(images))


def ensure_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build and import; does nothing, in about a second, when nothing changed."""
    ensure_system_packages(paths().cache)
    with _alone():
        # Once for both steps: the tree may be edited meanwhile.
        wanted = keys(images)
        present = containerd.image_digests()
        # What the node has is not built again, even when the builder's storage was emptied since.
        _build({image: key for image, key in wanted.items() if image.reference(key) not in present})
        _import(wanted)


def _alone() -> AbstractContextManager[None]:
    """Two commands at once would take each other's images away between build and import."""
    return file_lock(paths().cache / "images" / "images.lock")


def _build(wanted: Keys) -> None:
    tags = buildah.local_tags()
    missing = {image: key for image, key in wanted.items() if image.reference(key) not in tags}
    for image in wanted.keys() - missing.keys():
        buildah.retag(image, wanted[image], tags)
    if not missing:
        progress.say("      images: nothing to build")
        return
    ensure_base()
    with ThreadPoolExecutor(len(CHAINS)) as pool:
        # Every chain is run to its end: a failure in one must not leave the other's outcome unknown.
        list(pool.map(lambda chain: _build_chain(chain, missing), CHAINS))


def _build_chain(chain: Sequence[ImageSpec], missing: Keys) -> None:
    for image in chain:
        if image in missing:
            buildah.build(image, missing[image], REPOSITORY)


def _import(wanted: Keys) -> None:
    present = containerd.image_digests()
    for image, key in wanted.items():
        digest = present.get(image.reference(key))
        if digest is None or present.get(image.reference()) != digest:
            containerd.import_image(image, key)
            containerd.forget_earlier(image, key)
