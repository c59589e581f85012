"""Images of the product and of its tests, and their content keys."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host.errors import LocalClusterError

LOCAL_TAG = "local"
_REGISTRY = "localhost"  # not a registry: an image under this name was built on this machine
BASE_REFERENCE = f"{_REGISTRY}/python:3.11-slim-bookworm"
NEWEST_REFERENCE = f"{_REGISTRY}/python:3.13-slim-bookworm"
BASE_ARGUMENT, NEWEST_ARGUMENT = "BASE_IMAGE", "NEWEST_PYTHON_IMAGE"
"""ARGs with which Dockerfiles name their base images: the platform's Python image and the newest Python's image."""
LOCAL_BASES: Mapping[str, str] = {BASE_ARGUMENT: BASE_REFERENCE, NEWEST_ARGUMENT: NEWEST_REFERENCE}
"""Local images that replace the base images named in the Dockerfiles."""
_NOT_CONTENT = ("__pycache__", ".pyc")


@dataclass(frozen=True)
class ImageSpec:
    """Image of the product or of its tests.

    Attributes:
        short: Name on the command line.
        dockerfile: Path below the root of the repository, which is the build context.
        build_args: Values of the ARGs of the Dockerfile.
    """

    short: str
    dockerfile: str
    build_args: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """Name without registry and tag, as charts use it."""
        return f"rlrun-{self.short}"

    def reference(self, tag: str = LOCAL_TAG) -> str:
        """Return the full name as stored by containerd and buildah."""
        return f"{_REGISTRY}/{self.name}:{tag}"


_WITHOUT_GPU = (("TORCH", "cpu"),)

# The chains can be built in parallel. Within a chain, a later image reuses the layers of an earlier one.
CHAINS: tuple[tuple[ImageSpec, ...], ...] = (
    (
        ImageSpec("inference-cpu", "inference_image/Dockerfile", _WITHOUT_GPU),
        ImageSpec("trainer", "trainer_image/Dockerfile", _WITHOUT_GPU),
    ),
    (
        ImageSpec("orchestrator", "orchestrator_image/Dockerfile"),
        ImageSpec("operator", "operator/Dockerfile"),
        ImageSpec("stubs", "tests/support/images/Dockerfile"),
    ),
)
TEST_IMAGES: tuple[ImageSpec, ...] = (CHAINS[1][-1],)
"""Images that only tests on a cluster need. They are built when named or requested, and never pushed."""
IMAGES: tuple[ImageSpec, ...] = tuple(image for chain in CHAINS for image in chain if image not in TEST_IMAGES)
"""Images of the product."""


def find(names: Iterable[str], *, tests: bool = False) -> tuple[ImageSpec, ...]:
    """Return images by short or full name. Without names, returns the product's images.

    Args:
        names: Names on the command line.
        tests: Also return the images of the tests.

    Raises:
        LocalClusterError: A name is unknown.
    """
    wanted = list(names)
    every = (*IMAGES, *TEST_IMAGES)
    known = {image.short: image for image in every} | {image.name: image for image in every}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        choices = ", ".join(image.short for image in every)
        raise LocalClusterError(f"There is no image {', '.join(unknown)}. Choose from: {choices}.")
    chosen = {known[name] for name in wanted} or set(IMAGES)
    return tuple(image for image in every if image in chosen or (tests and image in TEST_IMAGES))


def earlier_references(image: ImageSpec, key: str, references: Iterable[str]) -> list[str]:
    """Return the references that belong to earlier builds of an image."""
    keep = (image.reference(key), image.reference(LOCAL_TAG))
    return [name for name in references if name.startswith(image.reference("")) and name not in keep]


def base_arguments(image: ImageSpec, root: Path, bases: Mapping[str, str]) -> dict[str, str]:
    """Return the entries of `bases` whose names are ARGs in the Dockerfile of an image."""
    text = (root / image.dockerfile).read_text()
    return {name: reference for name, reference in bases.items() if f"ARG {name}=" in text}


def copied_paths(dockerfile: str, build_args: Iterable[tuple[str, str]]) -> list[str]:
    """Return the paths that a Dockerfile's COPY lines copy from the build context, with ARGs filled in."""
    sources: list[str] = []
    for line in dockerfile.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0].upper() != "COPY" or words[1].startswith("--from="):
            continue
        paths = [word for word in words[1:] if not word.startswith("--")]
        sources += paths[:-1]
    for name, value in build_args:
        sources = [source.replace("${" + name + "}", value).replace("$" + name, value) for source in sources]
    return sources


def content_key(image: ImageSpec, root: Path, base_key: str) -> str:
    """Return the tag of an image: a hash of all its inputs, 12 hexadecimal digits.

    Args:
        image: Image to hash.
        root: Root of the repository.
        base_key: Hash of the base image.

    Raises:
        LocalClusterError: A COPY line names a path that does not exist.
    """
    text = (root / image.dockerfile).read_text()
    digest = hashlib.sha256(f"{base_key}\0{text}\0{image.build_args}".encode())
    for source in copied_paths(text, image.build_args):
        if not (root / source).exists():
            raise LocalClusterError(
                f"{image.dockerfile} copies {source}, which does not exist in {root}. Correct the COPY line."
            )
        for file in _files(root / source):
            # The length separates files, so that two files cannot have the same hash as one other file.
            body = file.read_bytes()
            digest.update(f"{file.relative_to(root)}\0{len(body)}\0".encode())
            digest.update(body)
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in found if not any(part.endswith(_NOT_CONTENT) for part in file.parts))
