"""Pure functions that check a package's module, function and requirements without importing its code."""

import ast
import io
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version
from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import PYTHONS, ImagePython, owner_of_module
from rlrun.storage.verifiers_generations.generation_choice import UnsupportedVerifiersError
from rlrun.storage.verifiers_generations.package_form import HARNESS_ONLY, MAX_SOURCE_BYTES, PackageForm

from rlrun_cli.inputs.package_generation import form_of, generation_of, module_of, python_of, version_of_verifiers
from rlrun_cli.inputs.requirements import conflicts, missing_packages
from rlrun_cli.inputs.wheel_builder import Wheel
from rlrun_cli.terminal.errors import INVALID, CliError

FUNCTION = "load_environment"


@dataclass(frozen=True)
class Remark:
    """Result of a check: an observation, and a hint if there is a problem."""

    text: str
    hint: str = ""
    """Next step. Empty if there is no problem."""


def check_wheel(wheel: Wheel) -> list[Remark]:
    """Check that the wheel has the module that a run imports, and that the module defines or exports an environment."""
    module = module_of(wheel)
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        names = set(archive.namelist())
        path = next((p for p in (f"{module}.py", f"{module}/__init__.py") if p in names), None)
        if path is None:
            if any(name.startswith(f"{module}/") for name in names):
                text = f"the wheel has the folder {module}, but no {module}/__init__.py"
                return [Remark(text, f"include {module}/__init__.py in the build")]
            folders = sorted({name.partition("/")[0] for name in names if ".dist-info/" not in name})
            return [
                Remark(
                    f"the wheel has no module {module}; it contains {', '.join(folders) or 'no files'}",
                    f"name the module {module}, after the project, and include it in the build",
                )
            ]
        source = archive.read(path)
    found = Remark(f"the wheel has the module {module}")
    if (form := form_of(wheel)) is PackageForm.harness:
        what, _, hint = HARNESS_ONLY.partition(". ")
        return [found, Remark(f"{path} {what}", hint)]
    if form is PackageForm.taskset:
        return [found, Remark(f"{path} exports a taskset or an environment of verifiers.v1 in __all__; not checked")]
    return [found, *check_source(source, path, python_of([wheel]))]


def check_source(source: bytes, path: str, python: ImagePython = PYTHONS[0]) -> list[Remark]:
    """Check that the module's source defines `load_environment`. `python` is the version that runs use."""
    if len(source) > MAX_SOURCE_BYTES:
        return [Remark(f"{path} is larger than {MAX_SOURCE_BYTES:,} bytes; not checked")]
    try:
        tree = ast.parse(source)
    except (RecursionError, MemoryError):
        return [Remark(f"{path} is nested too deeply for Python", "split its longest expression or elif chain")]
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None) or "?"
        this = ".".join(map(str, sys.version_info[:2]))
        if Version(this) < Version(python.version):
            return [Remark(f"{path}:{line}: not valid in Python {this}; not checked for Python {python}")]
        return [Remark(f"{path}:{line}: not valid Python: {problem}", "fix the syntax error")]
    function = next(
        (n for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == FUNCTION), None
    )
    if function is None:
        if _is_bound(tree):
            return [Remark(f"{path} imports or assigns {FUNCTION}; not checked")]
        return [Remark(f"{path} does not define {FUNCTION}()", f"write def {FUNCTION}() that returns the environment")]
    if isinstance(function, ast.AsyncFunctionDef):
        return [Remark(f"{path}:{function.lineno}: {FUNCTION} is async", "use def instead of async def")]
    positional = [*function.args.posonlyargs, *function.args.args]
    required = [a.arg for a in positional[: len(positional) - len(function.args.defaults)]]
    required += [a.arg for a, d in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True) if d is None]
    if function.args.posonlyargs:
        names = ", ".join(a.arg for a in function.args.posonlyargs)
        return [
            Remark(f"{path}:{function.lineno}: {names} cannot be passed by name", "remove the / from the parameters")
        ]
    needed = f", which requires args = {{ {', '.join(f'{name} = ...' for name in required)} }}" if required else ""
    return [Remark(f"{path} defines {FUNCTION}(){needed}")]


def _is_bound(tree: ast.Module) -> bool:
    """Return True if the module imports or assigns `load_environment`."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) in (FUNCTION, "*") for a in node.names):
            return True
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == FUNCTION for t in node.targets):
            return True
    return False


def check_generation(wheels: Sequence[Wheel]) -> list[Remark]:
    """Return a remark with the versions of verifiers and Python that runs use.

    Returns no remark for an unsupported verifiers version, which `check_requirements` reports.
    """
    try:
        generation = generation_of(wheels)
    except UnsupportedVerifiersError:
        return []
    used = f"verifiers {version_of_verifiers(wheels)} ({generation})"
    return [Remark(f"runs will use {used} and Python {python_of(wheels)}")]


def check_requirements(wheels: Sequence[Wheel], *, is_bundled: bool) -> list[Remark]:
    """Check that the environment image and the wheels satisfy all requirements of the wheels.

    `is_bundled` is True if a push adds wheels for missing packages.
    """
    remarks = [Remark(conflict.text, conflict.hint) for conflict in conflicts(wheels)]
    if missing := missing_packages(wheels):
        names = ", ".join(missing)
        if is_bundled:
            text = f"the environment image lacks {names}: env push adds their wheels and dependencies"
            return [*remarks, Remark(text)]
        text = f"the environment image must contain {names}, because pods download nothing"
        remarks.append(Remark(text, "push their wheels with --include, unless the platform's image contains them"))
    return remarks


def check_name(name: str) -> None:
    """Raise CliError if pods would import another package's module instead of this package's."""
    module = package_name(name).replace("-", "_")
    if owner := owner_of_module(module):
        raise CliError(
            f"the package cannot be named {name}: pods would import the module {module} of {owner}",
            "rename the project and its module",
            code=INVALID,
        )
