"""Pure functions that compare the requirements of pushed wheels with the environment image, as pip would.

Pods install pushed wheels with `--no-deps` and without an index, so pip reports no conflicting versions there.
`dependency_bundle` finds wheels for missing packages.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import (
    PYTHONS,
    Generation,
    ImagePackage,
    ImagePython,
    UnsupportedPythonError,
    choose_python,
    image_packages,
    image_tags,
)
from rlrun.storage.package_versions import admits
from rlrun.storage.verifiers_generations.generation_choice import (
    SUPPORTED,
    VERIFIERS,
    UnsupportedVerifiersError,
    instead_of,
)

from rlrun_cli.inputs.package_generation import generation_of, pushed_verifiers, python_of
from rlrun_cli.inputs.wheel_builder import Wheel

_VERIFIERS_HINT = (
    "require a version that the image has, or pass a wheel for a supported version with --include: "
    f"{' or '.join(str(supported) for supported in SUPPORTED.values())}"
)


@dataclass(frozen=True)
class Conflict:
    """Requirement that is not satisfied, or wheel that has no effect."""

    text: str
    hint: str


@dataclass(frozen=True)
class _Needed:
    wheel: Wheel
    requirement: Requirement


def pinned_packages(wheels: Sequence[Wheel]) -> Mapping[str, ImagePackage]:
    """Return the packages in the image for the verifiers generation of these wheels. Omits verifiers if it is pushed.

    The last wheel is the environment's package. For an unsupported verifiers version, returns those of generation v0.
    """
    try:
        pins = image_packages(generation_of(wheels))
    except UnsupportedVerifiersError:
        return image_packages(Generation.v0)
    pushed = pushed_verifiers(wheels)
    return pins if pushed is None else {name: package for name, package in pins.items() if name != VERIFIERS}


def missing_packages(wheels: Sequence[Wheel]) -> list[str]:
    """Return the required packages that are neither in the image nor among the wheels."""
    present = {wheel.name for wheel in wheels} | pinned_packages(wheels).keys()
    return sorted({package_name(each.requirement.name) for each in _requires(wheels)} - present)


def extended_packages(wheels: Sequence[Wheel]) -> set[str]:
    """Return the packages in the image of which the wheels require extras."""
    asked = {package_name(each.requirement.name) for each in _requires(wheels) if each.requirement.extras}
    return (asked & pinned_packages(wheels).keys()) - {wheel.name for wheel in wheels}


def addressed_packages(wheels: Sequence[Wheel]) -> set[str]:
    """Return the packages that the wheels require by URL, for example the URL of a repository."""
    parsed = (_parse(text) for wheel in wheels for text in wheel.requires)
    return {package_name(each.name) for each in parsed if each is not None and each.url}


def wanted_versions(wheels: Sequence[Wheel]) -> dict[str, SpecifierSet]:
    """Return the versions that the wheels require for each package. Packages required by URL are omitted."""
    wanted: dict[str, SpecifierSet] = {}
    needed = [each.requirement for each in _requires(wheels)]
    for requirement in needed:
        name = package_name(requirement.name)
        wanted[name] = wanted.get(name, SpecifierSet()) & requirement.specifier
    return {name: wanted[name] for name in wanted.keys() - {package_name(each.name) for each in needed if each.url}}


def conflicts(wheels: Sequence[Wheel]) -> list[Conflict]:
    """Return the requirements that the image and the wheels do not satisfy, and the wheels that runs cannot use."""
    return [*_unreadable(wheels), *_without_effect(wheels), *_of_python(wheels), *_of_versions(wheels)]


def _unreadable(wheels: Sequence[Wheel]) -> Iterator[Conflict]:
    for wheel in wheels:
        for text in wheel.requires:
            if _parse(text) is None:
                # The rest may contain a URL with a password.
                name = re.split(r"[\s<>=!~;\[(@]", text.strip(), maxsplit=1)[0]
                yield Conflict(
                    f"a requirement of {wheel.name}, {name[:60]!r}, cannot be read", "write it as in PEP 508: name>=1.0"
                )


def _without_effect(wheels: Sequence[Wheel]) -> Iterator[Conflict]:
    pins = pinned_packages(wheels)
    for wheel in wheels:
        if there := pins.get(wheel.name):
            if wheel.name == VERIFIERS:
                yield Conflict(
                    f"runs do not support verifiers {wheel.version}, which was passed as a wheel", _VERIFIERS_HINT
                )
                continue
            yield Conflict(
                f"the wheel for {wheel.name} {wheel.version} has no effect; pods use version {there.version} from the "
                "environment image",
                "remove the wheel, and require a version that the image has",
            )


def _of_python(wheels: Sequence[Wheel]) -> Iterator[Conflict]:
    environment = wheels[-1]
    try:
        python = choose_python(environment.requires_python)
    except UnsupportedPythonError as error:
        yield Conflict(f"{environment.name}: {error}", "change the project's requires-python to allow one of these")
        return
    runs = f"but {environment.name} runs with CPython {python} on Linux x86_64"
    for wheel in wheels:
        if tags := _foreign_tags(wheel.file, python):
            hint = f"build it for that platform, or pass a wheel for {python.abi}, abi3 or any Python with --include"
            yield Conflict(f"the wheel {wheel.file} is for {tags}, {runs}", hint)
        if not admits(wheel.requires_python, python.full_version):
            yield Conflict(f"{wheel.name} needs Python {wheel.requires_python}, {runs}", other_python(wheels, wheel))


def other_python(wheels: Sequence[Wheel], wheel: Wheel) -> str:
    """Return the hint for a wheel that does not support the Python with which the environment's package runs."""
    allowed = [python for python in PYTHONS if admits(wheel.requires_python, python.full_version)]
    choice = f', or set requires-python = ">={allowed[0]}" in {wheels[-1].name}' if allowed else ""
    return f"require a different version of {wheel.name}{choice}"


def _foreign_tags(file: str, python: ImagePython) -> str:
    """Return the tags of a wheel if the Python can load none of them, otherwise an empty string."""
    try:
        _, _, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return ""
    return "" if tags & image_tags(python) else ", ".join(sorted(map(str, tags)))


def _of_versions(wheels: Sequence[Wheel]) -> Iterator[Conflict]:
    pushed, pins = {wheel.name: wheel.version for wheel in wheels}, pinned_packages(wheels)
    told = set()
    for each in _requires(wheels):
        name, requirement = package_name(each.requirement.name), each.requirement
        there = pins.get(name)
        version = there.version if there else pushed.get(name)
        if version is None or (requirement.url is None and admits(str(requirement.specifier), version)):
            continue
        wanted = f"{name}{requirement.specifier}" if requirement.url is None else f"{name} from a URL"
        if (each.wheel.name, wanted) in told:
            continue
        told.add((each.wheel.name, wanted))
        if there:
            hint = "require a version that the image has: a pushed wheel does not replace a package of the image"
            if name == VERIFIERS:
                hint, version = _VERIFIERS_HINT, instead_of(requirement.specifier, version)
            yield Conflict(f"{each.wheel.name} needs {wanted}, but the environment image has {name} {version}", hint)
        elif requirement.url is None:
            hint = "pass a wheel for a matching version with --include"
            yield Conflict(f"{each.wheel.name} needs {wanted}, but the wheel for {name} is version {version}", hint)


def _requires(wheels: Sequence[Wheel]) -> list[_Needed]:
    """Return the requirements whose markers hold in the image, including those of required extras."""
    parsed = [(wheel, found) for wheel in wheels for text in wheel.requires if (found := _parse(text)) is not None]
    of_package: dict[str, list[int]] = {wheel.name: [] for wheel in wheels}
    for number, (wheel, _) in enumerate(parsed):
        of_package[wheel.name].append(number)
    needed, markers = set[int](), python_of(wheels).markers
    known = {(name, "") for name in of_package}
    waiting = list(known)
    # Visit each extra once: a wheel may have thousands of extras that require one another.
    while waiting:
        package, extra = waiting.pop()
        for number in [number for number in of_package[package] if number not in needed]:
            requirement = parsed[number][1]
            if not _holds(requirement, {**markers, "extra": extra}):
                continue
            needed.add(number)
            name = package_name(requirement.name)
            new = {(name, each) for each in requirement.extras if name in of_package} - known
            known |= new
            waiting += new
    return [_Needed(*parsed[number]) for number in sorted(needed)]


def _holds(requirement: Requirement, markers: Mapping[str, str]) -> bool:
    if requirement.marker is None:
        return True
    try:
        return requirement.marker.evaluate({**markers})
    except (UndefinedComparison, UndefinedEnvironmentName):
        return True


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text)
    except InvalidRequirement:
        return None
