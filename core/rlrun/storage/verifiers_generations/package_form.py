"""Detects which verifiers contract a package's module implements, from its source and without running it."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

LOAD_ENVIRONMENT = "load_environment"
MAX_SOURCE_BYTES = 1024**2
"""Maximum size in bytes of a source file that is parsed, and of a module with all modules of its star imports. The
syntax tree needs a hundred times this memory.
"""
MAX_DEPTH = 8
"""Maximum number of modules and classes that are followed from an exported name to its base class in verifiers."""
HARNESSES: frozenset[str | None] = frozenset({"Harness", "ACPHarness"})
CONFIGURATIONS: frozenset[str | None] = frozenset({"HarnessConfig", "ACPHarnessConfig", "BaseConfig", "BaseModel"})
DEFINITION = re.compile(r"^(?:async\s+def|def|class|type)\s+(\w+)|^(\w+)\s*[:+=]", re.MULTILINE)
IMPORT = re.compile(r"^(?:from\s+\S+\s+)?import\s+(\([^)]*\)|[^\n#]*)", re.MULTILINE)
EXPORTS = re.compile(r"^__all__\b[^=\n]*=\s*[\[(]([^\])]*)", re.MULTILINE)
HARNESS_ONLY = (
    "exports a harness of verifiers.v1 but no taskset, so it runs tasks of another package. Set env.id of the run to "
    "that package, and harness.id to this one"
)

Read = Callable[[str], bytes | None]
"""Function that returns the content of a file of the package by its path, or None."""


class PackageForm(StrEnum):
    """Contract that the module of an environment's package implements."""

    environment = "environment"
    """The module defines, imports or exports the name `load_environment`."""
    taskset = "taskset"
    """The module has `__all__`, which may export a taskset or an environment of `verifiers.v1`."""
    harness = "harness"
    """The module exports only harnesses of `verifiers.v1` and their configurations in `__all__`."""
    unknown = "unknown"
    """The module has neither `load_environment` nor `__all__`, or its source is missing or cannot be parsed."""


def package_form(module: str, read: Read) -> PackageForm:
    """Return the form of a module, which is a file or a folder of the package."""
    path = next((path for path in _paths(module) if read(path) is not None), None)
    if path is None:
        return PackageForm.unknown
    try:
        bound, exported = _names(path, read, {path: 0})
    except RecursionError:
        # Caused by a chain of a thousand `elif`, or of modules.
        return PackageForm.unknown
    if LOAD_ENVIRONMENT in bound or LOAD_ENVIRONMENT in exported:
        return PackageForm.environment
    # verifiers.v1 reads only `__all__` of the package's module.
    if "__all__" not in bound:
        return PackageForm.unknown
    # A name whose class is not found may be a taskset, which is decided when it is loaded.
    bases = {_framework_class(name, path, read) for name in exported}
    is_harness = bases & HARNESSES and bases <= HARNESSES | CONFIGURATIONS
    return PackageForm.harness if is_harness else PackageForm.taskset


def _framework_class(name: str, path: str, read: Read, depth: int = MAX_DEPTH) -> str | None:
    """Return the name of the base class, defined outside the package, from which a class of the package derives.
    Returns None if the class or its base cannot be found.
    """
    source = read(path) or b""
    if not depth or len(source) > MAX_SOURCE_BYTES:
        return None
    try:
        statements = list(_statements(ast.parse(source).body))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in statements:
        if isinstance(node, ast.ClassDef) and node.name == name and node.bases:
            base = node.bases[0].value if isinstance(node.bases[0], ast.Subscript) else node.bases[0]
            if isinstance(base, ast.Attribute):
                return base.attr
            return _framework_class(base.id, path, read, depth - 1) or base.id if isinstance(base, ast.Name) else None
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    other = _resolve_import(node, path, read)
                    return _framework_class(alias.name, other, read, depth - 1) if other else alias.name
    return None


def _paths(module: str) -> tuple[str, str]:
    path = module.replace(".", "/")
    # As in Python, a folder takes precedence over a file.
    return f"{path}/__init__.py", f"{path}.py"


def _names(path: str, read: Read, sizes: dict[str, int]) -> tuple[set[str], set[str]]:
    """Return the names that a module binds, and the names in a literal `__all__`.

    `sizes` has the size of each module that was read. Each module is read only once, because star imports could
    otherwise double the work at each step.
    """
    source = read(path) or b""
    sizes[path] = len(source)
    if sum(sizes.values()) > MAX_SOURCE_BYTES:
        return set(), set()
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return _names_in_text(source.decode(errors="replace"))
    except (ValueError, RecursionError, MemoryError):
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
                if any(alias.name == "*" for alias in node.names):
                    other = _resolve_import(node, path, read)
                    # `__all__` of the imported module is not copied.
                    bound |= (_names(other, read, sizes)[0] if other and other not in sizes else set()) - {"__all__"}
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


def _names_in_text(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a module binds and exports. Uses patterns instead of a parser, because the source may be
    for a newer Python.
    """
    bound = {name for found in DEFINITION.findall(source) for name in found}
    bound.update(word for names in IMPORT.findall(source) for word in re.findall(r"\w+", names))
    return bound, {name for names in EXPORTS.findall(source) for name in re.findall(r"""["'](\w+)["']""", names)}


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those nested in `if`, `try` and `with`."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, ast.If | ast.Try | ast.With):
                yield from _statements(getattr(node, name, ()))
        for handler in getattr(node, "handlers", ()):
            yield from _statements(handler.body)


def _resolve_import(node: ast.ImportFrom, path: str, read: Read) -> str | None:
    """Return the path of the package's module from which names are imported, or None."""
    parts = path.split("/")[: -node.level] if node.level else []
    target = ".".join([*parts, *(node.module or "").split(".")]).strip(".")
    return next((found for found in _paths(target) if read(found) is not None), None) if target else None


def _texts(value: ast.expr) -> set[str]:
    return {node.value for node in ast.walk(value) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
