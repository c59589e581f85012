"""Lists the packages in the environment image. An environment's own package is installed in addition to them.

Pods download nothing, and the image's packages take precedence over pushed packages. The image has one set of packages
for each generation of verifiers. Package versions do not depend on the version of Python. `python -m
tests.support.environment_image` writes the sets to environment_image_v0.txt and environment_image_v1.txt, in lines
`NAME==VERSION MODULE...`, from requirements/environment-*.lock.
"""

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.tags import Tag, compatible_tags, cpython_tags

from rlrun.storage.package_versions import admits


class Generation(StrEnum):
    """Generation of verifiers. The image has a separate interpreter with packages for each generation."""

    v0 = "v0"
    """Environments that define `load_environment`, and environments without verifiers."""
    v1 = "v1"
    """Environments that consist of tasksets, harnesses and agents."""


LISTS: Mapping[Generation, Path] = {
    generation: Path(__file__).with_name(f"environment_image_{generation}.txt") for generation in Generation
}


@dataclass(frozen=True)
class ImagePython:
    """Python version in the image. The image has an interpreter of this version for each generation of verifiers."""

    version: str
    full_version: str
    """Full version, such as 3.11.14, against which requirements are checked."""

    def __str__(self) -> str:
        return self.version

    @property
    def abi(self) -> str:
        """ABI tag of wheels that contain code compiled for this Python, such as cp311."""
        return f"cp{self.version.replace('.', '')}"

    @property
    def markers(self) -> Mapping[str, str]:
        """Values of the environment markers (PEP 508) for this Python in the image."""
        return {
            "implementation_name": "cpython",
            "os_name": "posix",
            "platform_machine": "x86_64",
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": self.full_version,
            "python_version": self.version,
            "sys_platform": "linux",
        }


PYTHONS = (ImagePython("3.11", "3.11.14"), ImagePython("3.13", "3.13.5"))
"""Python versions in the image: the version that the platform uses, and the newest version that both generations of
verifiers allow.
"""
IMAGE_GLIBC = 36
"""Minor version of glibc 2 in the image, which is based on Debian 12."""
NEWEST_GLIBC = 28
"""Newest minor version of glibc 2 that resolved dependencies may require, so that older images can load them."""


def _platforms(newest: int) -> tuple[str, ...]:
    manylinux = (f"manylinux_2_{minor}_x86_64" for minor in range(newest, 4, -1))
    return *manylinux, "manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"


PLATFORMS = _platforms(NEWEST_GLIBC)
"""Platform tags that dependencies are resolved for, most specific first."""
UNLISTED = ("idlelib", "lib2to3", "pip", "pkg_resources", "setuptools", "test")
"""Modules that come with Python although `sys.stdlib_module_names` does not contain them in all versions."""
PLATFORM = (
    "rlrun",
    "rlrun_adapter_sidecar",
    "rlrun_cli",
    "rlrun_egress_proxy",
    "rlrun_engine_access",
    "rlrun_environment",
    "rlrun_model_fetcher",
    "rlrun_operator",
    "rlrun_orchestrator",
    "rlrun_server",
    "rlrun_tinker",
    "rlrun_trainer",
)


@dataclass(frozen=True)
class ImagePackage:
    """Python package that is installed in the image."""

    name: str
    """Normalized name."""
    version: str
    modules: tuple[str, ...]
    """Modules of the package that code can import."""


class UnsupportedPythonError(ValueError):
    """Raised if `requires-python` allows none of the Python versions in the image."""


def choose_python(requires_python: str | None) -> ImagePython:
    """Return the oldest Python in the image that `requires-python` of an environment's package allows.

    Raises UnsupportedPythonError if there is none.
    """
    for python in PYTHONS:
        if admits(requires_python or "", python.full_version):
            return python
    offered = " and ".join(map(str, PYTHONS))
    raise UnsupportedPythonError(
        f"requires-python asks for {requires_python}, but the environment image offers {offered}"
    )


@functools.cache
def image_tags(python: ImagePython) -> frozenset[Tag]:
    """Return the tags of the wheels that this Python can load in the image."""
    version = [int(part) for part in python.version.split(".")]
    platforms = _platforms(IMAGE_GLIBC)
    return frozenset(
        (*cpython_tags(version, [python.abi], platforms), *compatible_tags(version, python.abi, platforms))
    )


@functools.cache
def image_packages(generation: Generation) -> Mapping[str, ImagePackage]:
    """Return the image's packages for environments of the generation, by normalized name."""
    found = {}
    for line in LISTS[generation].read_text(encoding="utf-8").splitlines():
        pinned, *modules = line.split()
        name, _, version = pinned.partition("==")
        found[name] = ImagePackage(name, version, tuple(modules))
    return found


def owner_of_module(module: str) -> str | None:
    """Return the owner of the module in the image that would shadow a pushed module of this name, or None.

    The modules of all generations are checked, because a package's name does not show its generation.
    """
    if module in sys.stdlib_module_names or module in UNLISTED:
        return "Python"
    if module in PLATFORM:
        return "the platform"
    packages = (package for generation in Generation for package in image_packages(generation).values())
    return next((each.name for each in packages if module in each.modules), None)
