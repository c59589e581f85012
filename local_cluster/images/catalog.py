"""Which images there are, and what each one's content is."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host.errors import LocalClusterError

LOCAL_TAG = "local"
_REGISTRY = "localhost"  # no registry: an image under this name can only be one that was built here
BASE_REFERENCE = f"{_REGISTRY}/python:3.11-slim-bookworm"  # stands in for the Dockerfiles' own base image
_NOT_CONTENT = ("__pycache__", ".pyc")


@dataclass(frozen=True)
class ImageSpec:
    """One image of the product.

    Attributes:
        short: Its name on the command line.
        dockerfile: Path from the repository's root, which is the build context.
        build_args: Values for the Dockerfile's ARGs on this kind of machine.
    """

    short: str
    dockerfile: str
    build_args: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """The bare name, as charts have it."""
        return f"rlrun-{self.short}"

    def reference(self, tag: str = LOCAL_TAG) -> str:
        """The full name, as containerd and buildah store it."""
        return f"{_REGISTRY}/{self.name}:{tag}"


_WITHOUT_GPU = (("TORCH", "cpu"),)

# Two chains that can be built beside each other; inside a chain the later image finds the earlier one's layers.
CHAINS: tuple[tuple[ImageSpec, ...], ...] = (
    (
        ImageSpec("inference-cpu", "inference_image/Dockerfile", _WITHOUT_GPU),
        ImageSpec("trainer", "trainer_image/Dockerfile", _WITHOUT_GPU),
    ),
    (ImageSpec("orchestrator", "orchestrator_image/Dockerfile"), ImageSpec("operator", "operator/Dockerfile")),
)
IMAGES: tuple[ImageSpec, ...] = tuple(image for chain in CHAINS for image in chain)


def find(names: Iterable[str]) -> tuple[ImageSpec, ...]:
    """Images by short or full name, all of them for no name.

    Raises:
        LocalClusterError: A name is unknown.
    """
    wanted = list(names)
    known = {image.short: image for image in IMAGES} | {image.name: image for image in IMAGES}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        choices = ", ".join(image.short for image in IMAGES)
        raise LocalClusterError(f"No image is called {', '.join(unknown)}. There are: {choices}.")
    chosen = {known[name] for name in wanted}
    return tuple(image for image in IMAGES if image in chosen or not wanted)


def copied_paths(dockerfile: str, build_args: Iterable[tuple[str, str]]) -> list[str]:
    """What a Dockerfile takes from the build context: the sources of its COPY lines, ARGs filled in."""
    sources: list[str] = []
    for line in dockerfile.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0].upper() != "COPY":
            continue
        paths = [word for word in words[1:] if not word.startswith("--")]
        sources += paths[:-1]
    for name, value in build_args:
        sources = [source.replace("${" + name + "}", value).replace("$" + name, value) for source in sources]
    return sources


def content_key(image: ImageSpec, root: Path, base_key: str) -> str:
    """The image's tag: a hash over all that goes into it, 12 hexadecimal digits.

    Args:
        image: Which one.
        root: The repository.
        base_key: The same for the image that FROM names.

    Raises:
        LocalClusterError: A COPY line names a path that does not exist.
    """
    text = (root / image.dockerfile).read_text()
    digest = hashlib.sha256(f"{base_key}\0{text}\0{image.build_args}".encode())
    for source in copied_paths(text, image.build_args):
        if not (root / source).exists():
            raise LocalClusterError(f"{image.dockerfile} copies {source}, which does not exist in {root}.")
        for file in _files(root / source):
            # Length before content: two files can't be read as one other file.
            body = file.read_bytes()
            digest.update(f"{file.relative_to(root)}\0{len(body)}\0".encode())
            digest.update(body)
    return digest.hexdigest()[:12]


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    found = (file for file in path.rglob("*") if file.is_file())
    return sorted(file for file in found if not any(part.endswith(_NOT_CONTENT) for part in file.parts))
