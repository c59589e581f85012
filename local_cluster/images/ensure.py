"""Build what changed, import what is missing: the steps that `local_cluster up` takes.

With a Docker engine and kind the same two steps are `docker build` and `kind load` (see `docker.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from local_cluster.images import buildah, containerd
from local_cluster.images.base import base_key, ensure_base
from local_cluster.images.catalog import CHAINS, IMAGES, Image, content_key
from local_cluster.locks import file_lock
from local_cluster.paths import REPOSITORY, paths
from local_cluster.progress import progress


def keys(images: Sequence[Image] = IMAGES) -> dict[Image, str]:
    """Each image's content key for the tree as it stands."""
    base = base_key()
    return {image: content_key(image, REPOSITORY, base) for image in images}


def build_images(images: Sequence[Image] = IMAGES) -> None:
    """Bring buildah's storage up to the tree; images that are there under their key are left alone."""
    with file_lock(paths().cache / "images" / "build.lock"):
        wanted = keys(images)
        tags = buildah.local_tags()
        missing = {image: key for image, key in wanted.items() if image.reference(key) not in tags}
        for image in wanted.keys() - missing.keys():
            buildah.retag(image, wanted[image], tags)
        if not missing:
            progress.say("      images: all built")
            return
        ensure_base()
        with ThreadPoolExecutor(len(CHAINS)) as pool:
            # Collect every outcome: a failure in one chain must not leave the other's unreported.
            list(pool.map(lambda chain: _build_chain(chain, missing), CHAINS))


def import_images(images: Sequence[Image] = IMAGES) -> None:
    """Bring the node's containerd up to the tree: the cluster must be up, the images built."""
    with file_lock(paths().cache / "images" / "import.lock"):
        present = containerd.image_digests()
        for image, key in keys(images).items():
            if image.reference(key) in present and present.get(image.reference()) == present[image.reference(key)]:
                continue
            containerd.import_image(image, key)
            containerd.forget_earlier(image, key)


def ensure_images(images: Sequence[Image] = IMAGES) -> None:
    """Build and import; does nothing, in about a second, when nothing changed."""
    present = containerd.image_digests()
    # What the node has is not built again, even when the builder's storage was emptied since.
    build_images([image for image, key in keys(images).items() if image.reference(key) not in present])
    import_images(images)


def _build_chain(chain: Sequence[Image], missing: dict[Image, str]) -> None:
    for image in chain:
        if image in missing:
            buildah.build(image, missing[image], REPOSITORY)
