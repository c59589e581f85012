"""Chooses the verifiers generation for an environment's package, without running the package's code.

verifiers 0.3 is the last version with `load_environment` and `vf.Environment` (v0); later versions have only tasksets,
harnesses and agents (v1). The environment image contains both, each with its own interpreter.
"""

from collections.abc import Iterable, Iterator, Mapping

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import PYTHONS, Generation, ImagePython, image_packages
from rlrun.storage.package_versions import version_of
from rlrun.storage.verifiers_generations.package_form import PackageForm

VERIFIERS = "verifiers"
SUPPORTED: Mapping[Generation, SpecifierSet] = {
    Generation.v0: SpecifierSet(">=0.1.14,<0.4", prereleases=True),
    Generation.v1: SpecifierSet(">=0.4,<0.5", prereleases=True),
}
"""Versions of verifiers that the worker's runners support. A package may bundle one of them."""


class UnsupportedVerifiersError(ValueError):
    """Raised if a package bundles a version of verifiers that no runner supports."""


def image_versions() -> dict[Generation, str]:
    """Return the versions of verifiers in the image."""
    return {generation: image_packages(generation)[VERIFIERS].version for generation in Generation}


def choose_generation(
    requires: Iterable[str], form: PackageForm, pushed: str | None = None, python: ImagePython = PYTHONS[0]
) -> Generation:
    """Return the generation of verifiers to run a package with.

    Tasksets run with v1. Other packages, including packages without verifiers, run with v0, unless only the image's v1
    version satisfies their requirements.

    Args:
        requires: Requirements of the package, as in its metadata.
        form: Form of the package's module.
        pushed: Version of verifiers that is bundled with the package. It determines the generation.
        python: Python that the package is run with, for the markers of its requirements.

    Raises:
        UnsupportedVerifiersError: No runner supports the bundled version.
    """
    if pushed is not None:
        version = version_of(pushed)
        for generation, supported in SUPPORTED.items():
            if version is not None and version in supported:
                return generation
        ranges = " or ".join(str(supported) for supported in SUPPORTED.values())
        raise UnsupportedVerifiersError(
            f"the package bundles verifiers {pushed}, but runs support {ranges}: bundle a supported version, or leave "
            f"verifiers out of the package to use {in_image()}"
        )
    if form is PackageForm.taskset:
        return Generation.v1
    wanted = SpecifierSet(",".join(str(each.specifier) for each in _verifiers(requires, python)), prereleases=True)
    admitted = {generation for generation, version in image_versions().items() if version in wanted}
    return Generation.v1 if admitted == {Generation.v1} else Generation.v0


def in_image() -> str:
    """Describe the versions of verifiers in the image."""
    return f"the image's {' or '.join(image_versions().values())}"


def instead_of(specifier: SpecifierSet, version: str) -> str:
    """Describe the versions of verifiers in the image, for a package whose required versions cannot be used.

    `version` is the image's version that the package runs with. It is described alone, as the version for tasksets, if
    `specifier` admits only the other one.
    """
    versions = image_versions().values()
    admitted = {found for found in versions if specifier.contains(found, prereleases=True)}
    return f"{version} for tasksets" if admitted and version not in admitted else " and ".join(versions)


def _verifiers(requires: Iterable[str], python: ImagePython) -> Iterator[Requirement]:
    for text in requires:
        try:
            requirement = Requirement(text)
            if package_name(requirement.name) == VERIFIERS and (
                requirement.marker is None or requirement.marker.evaluate({**python.markers, "extra": ""})
            ):
                yield requirement
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue
