"""`python -m local_cluster.images.push`: builds the product's images and pushes them to a registry.

Needs only Python and docker (with buildx), or podman or buildah (with skopeo). The images are built on base images
pinned to the digests that the registry returns. The digests of vLLM and of the pushed images are written to a file with
the chart's values, and the path of that file is printed. If syft is installed, an SBOM of each pushed image is written
as well.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.host.progress import progress
from local_cluster.images.catalog import BASE_ARGUMENT, NEWEST_ARGUMENT, ImageSpec, base_arguments, content_key

BUILDERS = ("docker", "podman", "buildah")
REGISTRY_SECONDS = 60.0
VALUES = REPOSITORY / "build" / "images.yaml"
SBOMS = REPOSITORY / "build" / "sbom"
REGISTRY = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
BASE = "python:3.11-slim-bookworm"
"""Base image that the Dockerfiles name."""
NEWEST = "python:3.13-slim-bookworm"
"""Image whose Python is added to the orchestrator's image as a second version."""
ENGINE = "vllm/vllm-openai:v0.32.0"
"""Engine image named in the chart."""
PLATFORM = re.compile(r"linux/(amd64|arm64)")
SOURCE = "https://rlrun.dev"
LICENSE = "Apache-2.0"
TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_CPU = (("TORCH", "cpu"),)
GPU_IMAGES = (
    ImageSpec("operator", "operator/Dockerfile"),
    ImageSpec("orchestrator", "orchestrator_image/Dockerfile"),
    ImageSpec("trainer", "trainer_image/Dockerfile", (("TORCH", "cuda"),)),
)
"""Images to push for a cluster with GPUs. Its engines use vLLM's unmodified image."""
CPU_IMAGES = (
    *GPU_IMAGES[:2],
    ImageSpec("trainer", "trainer_image/Dockerfile", _CPU),
    ImageSpec("inference-cpu", "inference_image/Dockerfile", _CPU),
)
VALUE_NAMES = {"inference-cpu": "inference"}
"""Names in the chart's values that differ from the images' names."""

Execute = Callable[[Sequence[str]], None]
Tagged = dict[ImageSpec, str]
"""Images with their tags."""
DigestOf = Callable[[str], str]
"""Function that returns a registry's digest for a reference with a tag. Raises LocalClusterError."""


@dataclass(frozen=True)
class BuildOptions:
    """Build options of one push."""

    builder: str
    base: str
    """Reference of the base image."""
    newest: str
    """Reference of the image with the newest Python."""
    platform: str = ""
    """Platform of the nodes. If empty, the platform of this machine."""
    index: str = ""
    """Index of Python packages. If empty, PyPI."""
    revision: str = ""
    """Commit for the labels. If empty, there is no such label, so that the same content gives the same image."""

    def check(self) -> None:
        """Raise LocalClusterError if the platform or the index is invalid."""
        if self.platform and not PLATFORM.fullmatch(self.platform):
            raise LocalClusterError(f"PLATFORM: {self.platform!r} is not linux/amd64 or linux/arm64.")
        url = urlsplit(self.index)
        if self.index and (url.scheme not in ("http", "https") or not url.hostname):
            raise LocalClusterError(f"PIP_INDEX_URL: {self.index!r} is not a URL. Write https://host/path/simple.")
        if "@" in url.netloc:
            raise LocalClusterError(
                "PIP_INDEX_URL contains a user or password, which anybody could read in the history of the images. "
                "Use an index that the builder can reach without credentials."
            )

    def words(self, image: ImageSpec) -> list[str]:
        """Return the builder's command-line arguments for an image."""
        bases = {BASE_ARGUMENT: self.base, NEWEST_ARGUMENT: self.newest}
        arguments = dict(image.build_args) | base_arguments(image, REPOSITORY, bases)
        if self.index:
            arguments["PIP_INDEX_URL"] = self.index
        words = ["--platform", self.platform] if self.platform else []
        words += [part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")]
        return words + [part for name, value in self.labels(image).items() for part in ("--label", f"{name}={value}")]

    def labels(self, image: ImageSpec) -> dict[str, str]:
        """Return the OCI labels of an image, without empty ones."""
        base, _, digest = self.base.partition("@")
        found = {
            "title": image.name,
            "version": chart_version(),
            "revision": self.revision,
            "source": SOURCE,
            "licenses": LICENSE,
            "base.name": base,
            "base.digest": digest,
        }
        return {f"org.opencontainers.image.{name}": value for name, value in found.items() if value}


def chart_version() -> str:
    """Return the version of the chart, which is also the images' version."""
    (version,) = re.findall(r"^version: (\S+)$", (REPOSITORY / "charts/rlrun/Chart.yaml").read_text(), re.MULTILINE)
    return str(version)


def check_registry(registry: str) -> None:
    """Raise LocalClusterError unless this is the name of a registry."""
    if not REGISTRY.fullmatch(registry):
        raise LocalClusterError(f"REGISTRY: {registry!r} is not a registry. Write host[:port][/path], in lower case.")


def tags_of(images: Sequence[ImageSpec], tag: str, base: str, platform: str = "") -> Tagged:
    """Return each image's tag: `tag`, or a hash of the image's inputs if `tag` is empty. Raises LocalClusterError."""
    if tag and not TAG.fullmatch(tag):
        raise LocalClusterError(f"TAG: {tag!r} is not a tag. Use letters, digits, '.', '_' and '-'.")
    return {image: tag or content_key(image, REPOSITORY, base_key=f"{base}{platform}") for image in images}


def find_builder(wanted: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the wanted builder, or the first installed one. Raises LocalClusterError."""
    if wanted and wanted not in BUILDERS:
        raise LocalClusterError(f"BUILDER: {wanted!r} is not one of {', '.join(BUILDERS)}.")
    for name in [wanted] if wanted else BUILDERS:
        if which(name):
            return name
    raise LocalClusterError(f"{wanted or ' or '.join(BUILDERS)} is not installed. Install it to build images.")


def digest_from_registry(reference: str, builder: str) -> str:
    """Return the digest of a reference in its registry: the digest of the index if the image has one.

    Raises LocalClusterError.
    """
    inspect = ("buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference)
    command = (
        ("docker", *inspect) if builder == "docker" else ("skopeo", "inspect", "--no-tags", f"docker://{reference}")
    )
    tool = "docker buildx" if builder == "docker" else "skopeo"
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=REGISTRY_SECONDS)
        found = {name.lower(): value for name, value in json.loads(done.stdout).items()}
        return str(found["digest"])
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
        output = getattr(error, "stderr", None) or error
        raise LocalClusterError(
            f"{tool} did not find the digest of {reference}: {output}\nCheck that {tool} is installed and logged in to "
            "the registry. To use the base images or vLLM from another registry, set BASE=..., NEWEST=... or ENGINE=..."
        ) from None


def pin(reference: str, digest_of: DigestOf) -> str:
    """Return the reference with a digest instead of its tag, because a tag may change."""
    return reference if "@" in reference else f"{_repository(reference)}@{digest_of(reference)}"


def _repository(reference: str) -> str:
    return re.sub(r"(@.*|:[^/]*)$", "", reference)


def push_images(tagged: Tagged, registry: str, options: BuildOptions, execute: Execute) -> None:
    """Build all images before pushing any, so that a failed build never leaves a part of them in the registry."""
    builder = options.builder
    build = "bud" if builder == "buildah" else "build"
    for image, tag in tagged.items():
        progress.say(f"==> {builder} {build} {image.name}")
        file, name = str(REPOSITORY / image.dockerfile), f"{registry}/{image.name}:{tag}"
        execute([builder, build, *options.words(image), "--file", file, "--tag", name, str(REPOSITORY)])
    for image, tag in tagged.items():
        progress.say(f"==> {builder} push {image.name}")
        execute([builder, "push", f"{registry}/{image.name}:{tag}"])


def values(tagged: Tagged, registry: str, base: str, engine: str, digests: Mapping[ImageSpec, str]) -> str:
    """Return the chart's values for the images, as YAML.

    Args:
        tagged: Pushed images.
        registry: Registry to which they were pushed.
        base: Reference of their base image.
        engine: Reference of vLLM by digest, unless it is among the pushed images.
        digests: Digests of the pushed images.
    """
    lines = [f"# Written by `make push`. Base image: {base}", "images:", f"  registry: {registry}"]
    for image, tag in tagged.items():
        name = VALUE_NAMES.get(image.short, image.short)
        place = f"repository: {image.name}, " if name == "inference" else ""
        lines.append(f'  {name}: {{{place}tag: "{tag}", digest: "{digests[image]}"}}')
    if engine:
        place = f'registry: "", repository: {_repository(engine)}'
        lines.append(f'  inference: {{{place}, digest: "{engine.partition("@")[2]}"}}')
    return "\n".join([*lines, ""])


def write_sboms(references: Mapping[ImageSpec, str], execute: Execute) -> None:
    """Write a CycloneDX file with the Debian and Python packages of each pushed image."""
    SBOMS.mkdir(parents=True, exist_ok=True)
    for image, reference in references.items():
        execute(["syft", "scan", f"registry:{reference}", "--output", f"cyclonedx-json={SBOMS / image.name}.json"])


def execute(command: Sequence[str]) -> None:
    """Run the command and show its output. Raises LocalClusterError."""
    status = subprocess.run(command, check=False).returncode
    if status:
        raise LocalClusterError(
            f"`{' '.join(command[:2])}` failed with status {status}; its output is above. Check that you are logged in "
            f"to the registry (`{command[0]} login`). BUILDER=... selects another builder."
        )


@dataclass(frozen=True)
class Pushed:
    """Images in a registry."""

    registry: str
    tagged: Tagged
    digests: Mapping[ImageSpec, str]
    base: str
    engine: str
    """Reference of vLLM by digest. Empty if it is among the images."""

    @property
    def references(self) -> dict[ImageSpec, str]:
        """Reference of each image, by digest."""
        return {image: f"{self.registry}/{image.name}@{self.digests[image]}" for image in self.tagged}

    @property
    def values(self) -> str:
        """Values of the chart for these images, as YAML."""
        return values(self.tagged, self.registry, self.base, self.engine, self.digests)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `push`."""
    parser.add_argument("registry", help="registry and path: registry.example.com/ml")
    parser.add_argument("--builder", default="", help=f"one of {', '.join(BUILDERS)}; default: the first installed")
    parser.add_argument("--base", default="", help="image with Python 3.11 to build on; default: that of Docker Hub")
    parser.add_argument("--newest", default="", help="image with Python 3.13 in /usr/local; default: Docker Hub's")
    parser.add_argument("--engine", default="", help="image of vLLM; default: that of Docker Hub")
    parser.add_argument("--platform", default="", help="linux/amd64 or linux/arm64; default: that of this machine")
    parser.add_argument("--index", default="", help="index of Python packages; default: PyPI")


def push(given: argparse.Namespace, images: Sequence[ImageSpec], tag: str, revision: str) -> Pushed:
    """Build and push images. Raises LocalClusterError."""
    check_registry(given.registry)
    builder = find_builder(given.builder)
    digest_of = partial(digest_from_registry, builder=builder)
    BuildOptions(builder, "", "", given.platform, given.index).check()
    base, newest = pin(given.base or BASE, digest_of), pin(given.newest or NEWEST, digest_of)
    tagged = tags_of(images, tag, base + newest, given.platform)
    engine = "" if images is CPU_IMAGES else pin(given.engine or ENGINE, digest_of)
    options = BuildOptions(builder, base, newest, given.platform, given.index, revision)
    push_images(tagged, given.registry, options, execute)
    digests = {image: digest_of(f"{given.registry}/{image.name}:{tag}") for image, tag in tagged.items()}
    return Pushed(given.registry, tagged, digests, base, engine)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, push, and print the path of the values file. Returns 1 after an error."""
    parser = argparse.ArgumentParser(prog="make push", description="Build and push the images of the product.")
    add_arguments(parser)
    parser.add_argument("--tag", default="", help="tag of all images; default: a hash of each image's inputs")
    parser.add_argument("--cpu", action="store_true", help="images for a cluster without GPUs, for trials")
    given = parser.parse_args(arguments)
    try:
        pushed = push(given, CPU_IMAGES if given.cpu else GPU_IMAGES, given.tag, revision="")
        write(VALUES, pushed.values)
        if shutil.which("syft"):
            write_sboms(pushed.references, execute)
        else:
            progress.say("No SBOM was written, because syft is not installed. Install it and repeat the command.")
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
