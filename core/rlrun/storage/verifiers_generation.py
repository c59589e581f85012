"""Generation of verifiers that an environment's package is run with. Pure: no code of the package is run.

verifiers 0.3 is the last version with `load_environment` and `vf.Environment` (v0); from 0.4 on it has only tasksets,
harnesses and agents (v1). The environment image has both, each with an interpreter of its own.
"""

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import MARKERS, Generation, image_packages
from rlrun.storage.package_versions import version_of

VERIFIERS = "verifiers"
LOAD_ENVIRONMENT = "load_environment"
SUPPORTED: Mapping[Generation, SpecifierSet] = {
    Generation.v0: SpecifierSet(">=0.1.14,<0.4", prereleases=True),
    Generation.v1: SpecifierSet(">=0.4,<0.5", prereleases=True),
}
"""Versions of verifiers that the runners of the worker support. A package may bring one of them."""
MAX_DEPTH = 8
"""Modules that a star import may lead through."""

Read = Callable[[str], bytes | None]
"""Returns the content of a file of the package by its path, None if there is none."""


class PackageForm(StrEnum):
    """What the module of an environment's package defines for verifiers."""

    environment = "environment"
    """The function `load_environment`."""
    taskset = "taskset"
    """A taskset or an environment of `verifiers.v1`, exported in `__all__`."""
    unknown = "unknown"
    """Neither of them, as far as its source tells."""


class UnsupportedVerifiersError(ValueError):
    """A package brings a version of verifiers that no runner supports."""


def image_versions() -> dict[Generation, str]:
    """Return the versions of verifiers in the image."""
    return {generation: image_packages(generation)[VERIFIERS].version for generation in Generation}


def choose_generation(requires: Iterable[str], form: PackageForm, pushed: str | None = None) -> Generation:
    """Return the generation for a package.

    Only v1 runs tasksets. Other packages are run with v0, those without verifiers too, unless of the image's versions
    only that of v1 meets their requirements.

    Args:
        requires: Requirements of the package, as in its metadata.
        form: What its module defines.
        pushed: Version of verifiers that comes with the package. Its generation is that of the version.

    Raises:
        UnsupportedVerifiersError: No runner supports the version that comes with the package.
    """
    if pushed is not None:
        version = version_of(pushed)
        for generation, supported in SUPPORTED.items():
            if version is not None and version in supported:
                return generation
        ranges = " or ".join(str(supported) for supported in SUPPORTED.values())
        raise UnsupportedVerifiersError(
            f"the package brings verifiers {pushed}, and runs support {ranges}: push a wheel of a version that they "
            f"support, or none to use {in_image()}"
        )
    if form is PackageForm.taskset:
        return Generation.v1
    wanted = SpecifierSet(",".join(str(each.specifier) for each in _verifiers(requires)), prereleases=True)
    admitted = {generation for generation, version in image_versions().items() if version in wanted}
    return Generation.v1 if admitted == {Generation.v1} else Generation.v0


def in_image() -> str:
    """Return the versions of verifiers in the image, in words."""
    return f"the image's {' or '.join(image_versions().values())}"


def package_form(module: str, read: Read) -> PackageForm:
    """Return what the module, a file or a folder of the package, defines."""
    path = next((path for path in _paths(module) if read(path) is not None), None)
    if path is None:
        return PackageForm.unknown
    bound, exported = _names(path, read, MAX_DEPTH)
    if LOAD_ENVIRONMENT in bound or LOAD_ENVIRONMENT in exported:
        return PackageForm.environment
    # verifiers.v1 finds what a package has in `__all__` of its module only.
    return PackageForm.taskset if "__all__" in bound else PackageForm.unknown


def _verifiers(requires: Iterable[str]) -> Iterator[Requirement]:
    for text in requires:
        try:
            requirement = Requirement(text)
            if package_name(requirement.name) == VERIFIERS and (
                requirement.marker is None or requirement.marker.evaluate({**MARKERS, "extra": ""})
            ):
                yield requirement
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue


def _paths(module: str) -> tuple[str, str]:
    path = module.replace(".", "/")
    # The order of Python: a folder before a file.
    return f"{path}/__init__.py", f"{path}.py"


def _names(path: str, read: Read, depth: int) -> tuple[set[str], set[str]]:
    """Return the names that a module binds, and the names in its `__all__` if they are written there."""
    try:
        tree = ast.parse(read(path) or b"")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(), set()
    bound: set[str] = set()
    exported: set[str] = set()
    for node in _statements(tree.body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound.add(node.name)
            case ast.Import():
                bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            case ast.ImportFrom():
                bound |= {alias.asname or alias.name for alias in node.names} - {"*"}
                if depth and any(alias.name == "*" for alias in node.names):
                    source = _imported(node, path, read)
                    # `__all__` of the other module stays there.
                    bound |= (_names(source, read, depth - 1)[0] if source else set()) - {"__all__"}
            case ast.Assign(targets=targets, value=value):
                bound |= {target.id for target in targets if isinstance(target, ast.Name)}
                if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                    exported |= _texts(value)
            case (
                ast.AnnAssign(target=ast.Name(id=name), value=value)
                | ast.AugAssign(target=ast.Name(id=name), value=value)
            ):
                bound.add(name)
                if name == "__all__" and value is not None:
                    exported |= _texts(value)
    return bound, exported


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those below `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, name, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _statements(handler.body)


def _imported(node: ast.ImportFrom, path: str, read: Read) -> str | None:
    """Return the path of the module of the package that the names come from."""
    parts = path.split("/")[: -node.level] if node.level else []
    target = ".".join([*parts, *(node.module or "").split(".")]).strip(".")
    return next((found for found in _paths(target) if read(found) is not None), None) if target else None


def _texts(value: ast.expr) -> set[str]:
    return {node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
