"""Build of changed images and import of missing ones.

For a kind cluster the same steps are `docker build` and `kind load` (see `docker.py`).
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
    """Return the content key of each image for the current tree."""
    base = base_key()
    return {image: content_key(image, REPOSITORY, base) for image in images}


def build_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build the images whose key is not in the storage of buildah."""
    ensure_system_packages(paths().cache)
    with _exclusive():
        _build(keys(images))


def import_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Import the images whose key is not in containerd. The cluster must be up and the images built."""
    with _exclusive():
        _import(keys(images))


def ensure_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build and import changed images. Takes about a second if nothing changed."""
    ensure_system_packages(paths().cache)
    with _exclusive():
        # Computed once for both steps, because the tree may be edited in between.
        wanted = keys(images)
        present = containerd.image_digests()
        # An image on the node is not built again, even if the storage of buildah was emptied.
        _build({image: key for image, key in wanted.items() if image.reference(key) not in present})
        _import(wanted)


def _exclusive() -> AbstractContextManager[None]:
    """Exclude other commands, which would remove the images between build and import."""
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
        # Run every chain to its end: a failure in one must not hide the outcome of the other.
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
