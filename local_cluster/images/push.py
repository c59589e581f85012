"""`python -m local_cluster.images.push`: builds the images of the product and pushes them to a registry.

Needs nothing but Python and docker, podman or buildah. Prints the file with the values of the chart for these images.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.host.progress import progress
from local_cluster.images.catalog import ImageSpec, content_key

BUILDERS = ("docker", "podman", "buildah")
VALUES = REPOSITORY / "build" / "images.yaml"
REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_CPU = (("TORCH", "cpu"),)
GPU_IMAGES = (
    ImageSpec("operator", "operator/Dockerfile"),
    ImageSpec("orchestrator", "orchestrator_image/Dockerfile"),
    ImageSpec("trainer", "trainer_image/Dockerfile", (("TORCH", "cuda"),)),
)
"""Images of a cluster with GPUs, whose engines are the unmodified image of vLLM."""
CPU_IMAGES = (
    *GPU_IMAGES[:2],
    ImageSpec("trainer", "trainer_image/Dockerfile", _CPU),
    ImageSpec("inference-cpu", "inference_image/Dockerfile", _CPU),
)
VALUE_NAMES = {"inference-cpu": "inference"}
"""Names in the chart's values that differ from those of the images."""

Execute = Callable[[Sequence[str]], None]
Tagged = dict[ImageSpec, str]
"""Images with their tags."""


def tags_of(images: Sequence[ImageSpec], tag: str) -> Tagged:
    """Return the tag of each image: the given one, or a hash of its content. Raises LocalClusterError."""
    if tag and not TAG.fullmatch(tag):
        raise LocalClusterError(f"TAG: {tag!r} is not a tag. Use letters, digits, '.', '_' and '-'.")
    return {image: tag or content_key(image, REPOSITORY, base_key="registry") for image in images}


def find_builder(wanted: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the wanted builder, or the first that is installed. Raises LocalClusterError."""
    if wanted and wanted not in BUILDERS:
        raise LocalClusterError(f"BUILDER: {wanted!r} is not one of {', '.join(BUILDERS)}.")
    for name in [wanted] if wanted else BUILDERS:
        if which(name):
            return name
    raise LocalClusterError(f"{wanted or ' or '.join(BUILDERS)} is not installed. Install it to build images.")


def push_images(tagged: Tagged, registry: str, builder: str, base: str, execute: Execute) -> None:
    """Build all images, then push them: a registry never has a part of them because a build failed."""
    if not REGISTRY.fullmatch(registry):
        raise LocalClusterError(f"REGISTRY: {registry!r} is not a registry. Write host[:port][/path], in lower case.")
    build = "bud" if builder == "buildah" else "build"
    for image, tag in tagged.items():
        arguments = dict(image.build_args) | ({"BASE_IMAGE": base} if base else {})
        words = [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        progress.say(f"==> {builder} {build} {image.name}")
        file, name = str(REPOSITORY / image.dockerfile), f"{registry}/{image.name}:{tag}"
        execute([builder, build, *words, "--file", file, "--tag", name, str(REPOSITORY)])
    for image, tag in tagged.items():
        progress.say(f"==> {builder} push {image.name}")
        execute([builder, "push", f"{registry}/{image.name}:{tag}"])


def values(tagged: Tagged, registry: str) -> str:
    """Return the values of the chart for the images, as YAML."""
    lines = ["# Written by `make push`.", "images:", f"  registry: {registry}"]
    for image, tag in tagged.items():
        name = VALUE_NAMES.get(image.short, image.short)
        # The registry does not apply to the engine's image.
        place = f"repository: {registry}/{image.name}, " if name == "inference" else ""
        lines.append(f'  {name}: {{{place}tag: "{tag}"}}')
    return "\n".join([*lines, ""])


def execute(command: Sequence[str]) -> None:
    """Run the command with its output shown. Raises LocalClusterError."""
    status = subprocess.run(command, check=False).returncode
    if status:
        raise LocalClusterError(
            f"`{' '.join(command[:2])}` failed with status {status}; its output is above. Check that you are logged in "
            f"to the registry (`{command[0]} login`) and that `{command[0]} info` works. BUILDER=... takes another "
            "program."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, push, and print the file with the values. Returns 1 after an error."""
    parser = argparse.ArgumentParser(prog="make push", description="Build and push the images of the product.")
    parser.add_argument("registry", help="registry and path: registry.example.com/ml")
    parser.add_argument("--tag", default="", help="tag of all images; default: a hash of what each is made from")
    parser.add_argument("--builder", default="", help=f"one of {', '.join(BUILDERS)}; default: the first installed")
    parser.add_argument("--base", default="", help="image with Python 3.11 to build on; default: that of Docker Hub")
    parser.add_argument("--cpu", action="store_true", help="images for a cluster without GPUs, for trials")
    given = parser.parse_args(arguments)
    try:
        tagged = tags_of(CPU_IMAGES if given.cpu else GPU_IMAGES, given.tag)
        push_images(tagged, given.registry, find_builder(given.builder), given.base, execute)
        write(VALUES, values(tagged, given.registry))
    except LocalClusterError as error:
        progress.say(str(error))
        return 1
    print(VALUES.relative_to(REPOSITORY))
    return 0


def write(file: Path, text: str) -> None:
    """Write a file into a folder that may not exist yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
