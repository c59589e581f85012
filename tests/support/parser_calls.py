"""Calls of parsers in the code of the programs, for the rule that received data has one parser."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = ("core", "operator", "server", "cli", "trainer_image", "orchestrator_image")
MODULES = frozenset({"json", "yaml", "tomllib", "pickle", "marshal", "pydantic_core", "ast", "torch"})
PARSERS = frozenset(
    {"load", "loads", "load_all", "safe_load", "safe_load_all", "full_load", "unsafe_load", "from_json", "literal_eval"}
)
"""Functions of MODULES that parse."""
METHODS = frozenset({"model_validate_json", "validate_json", "parse_raw", "raw_decode", "Unpickler"})
"""Names that parse, of any object."""


def parser_calls() -> set[str]:
    """Return the places of parsers in all programs, as `path:function`."""
    found: set[str] = set()
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            found |= {f"{name}:{place}" for place in places_in(path.read_text("utf-8"))}
    return found


def places_in(text: str) -> set[str]:
    """Return the qualified names of the functions of a module that call or pass on a parser."""
    tree = ast.parse(text)
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in MODULES
        for alias in node.names
        if alias.name in PARSERS | METHODS
    }
    modules = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name in MODULES
    }
    return set(_places(tree, (), imported, modules))


def _places(node: ast.AST, inside: tuple[str, ...], imported: set[str], modules: set[str]) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        inside = (*inside, node.name)
    if _is_parser(node, imported, modules):
        yield ".".join(inside) or "<module>"
    for child in ast.iter_child_nodes(node):
        yield from _places(child, inside, imported, modules)


def _is_parser(node: ast.AST, imported: set[str], modules: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in imported
    if isinstance(node, ast.Attribute):
        is_of_module = isinstance(node.value, ast.Name) and node.value.id in modules
        return node.attr in METHODS or (is_of_module and node.attr in PARSERS)
    # The answer of an HTTP client.
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return is_method and node.func.attr == "json" and not node.args
