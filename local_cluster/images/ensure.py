"""Builds changed images and loads missing ones onto the node, using this machine's provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from local_cluster.host.locks import file_lock
from local_cluster.host.machine import require_supported_machine
from local_cluster.host.paths import REPOSITORY, paths
from local_cluster.host.progress import progress
from local_cluster.host.provider_choice import provider_choice
from local_cluster.images.backend import ImageBackend
from local_cluster.images.catalog import CHAINS, IMAGES, ImageSpec, content_key
from local_cluster.images.embedded_images import EmbeddedImages
from local_cluster.images.kind_images import KindImages

Keys = Mapping[ImageSpec, str]


def image_backend() -> ImageBackend:
    """Return the builder and node of this machine's provider."""
    return KindImages(paths()) if provider_choice().name == "kind" else EmbeddedImages(paths())


def keys(backend: ImageBackend, images: Sequence[ImageSpec] = IMAGES) -> dict[ImageSpec, str]:
    """Return the content key of each image for the current tree."""
    return {image: content_key(image, REPOSITORY, backend.base_key(image)) for image in images}


def missing_images(images: Sequence[ImageSpec] = IMAGES) -> list[ImageSpec]:
    """Return the images that `build_images` would build."""
    backend = image_backend()
    tags = backend.list_built()
    return [image for image, key in keys(backend, images).items() if image.reference(key) not in tags]


def build_images(images: Sequence[ImageSpec] = IMAGES) -> ImageBackend:
    """Build the images whose key the builder lacks. Returns the backend that has them."""
    backend = _prepared_backend()
    with _exclusive():
        _build(backend, keys(backend, images))
    return backend


def import_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Load the images whose key is not on the node. The cluster must be up and the images must be built."""
    backend = image_backend()
    with _exclusive():
        _load(backend, keys(backend, images))


def ensure_images(images: Sequence[ImageSpec] = IMAGES) -> None:
    """Build and load changed images. Takes about a second if nothing changed."""
    backend = _prepared_backend()
    with _exclusive():
        # Compute the keys once for both steps, because the tree may be edited in between.
        wanted = keys(backend, images)
        present = backend.on_node()
        # An image on the node is not built again, even if the builder has lost it.
        _build(backend, {image: key for image, key in wanted.items() if image.reference(key) not in present})
        _load(backend, wanted)


def _prepared_backend() -> ImageBackend:
    require_supported_machine()
    backend = image_backend()
    backend.prepare()
    return backend


def _exclusive() -> AbstractContextManager[None]:
    """Return a lock that blocks other commands, which could otherwise remove images between build and load."""
    return file_lock(paths().cache / "images" / "images.lock")


def _build(backend: ImageBackend, wanted: Keys) -> None:
    tags = backend.list_built()
    missing = {image: key for image, key in wanted.items() if image.reference(key) not in tags}
    for image in wanted.keys() - missing.keys():
        backend.retag(image, wanted[image], tags)
    if not missing:
        progress.say("      images: nothing to build")
        return
    backend.ensure_base()
    with ThreadPoolExecutor(len(CHAINS)) as pool:
        # Run every chain to its end, because a failure in one must not hide the outcome of the other.
        list(pool.map(lambda chain: _build_chain(backend, chain, missing), CHAINS))


def _build_chain(backend: ImageBackend, chain: Sequence[ImageSpec], missing: Keys) -> None:
    for image in chain:
        if image in missing:
            backend.build(image, missing[image], REPOSITORY)


def _load(backend: ImageBackend, wanted: Keys) -> None:
    present = backend.on_node()
    for image, key in wanted.items():
        digest = present.get(image.reference(key))
        if digest is None or present.get(image.reference()) != digest:
            backend.load(image, key)
