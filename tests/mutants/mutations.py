"""Small changes of a module's code, each of which a test should notice.

Left out are changes that no test should notice: of annotations, docstrings, log messages, texts and type checks.
"""

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
UNCHANGED_CALLS = ("log.", "logger.", "logging.", "warnings.")
"""Calls whose removal decides nothing."""


@dataclass(frozen=True)
class Mutation:
    """One change of a module."""

    line: int
    before: str
    after: str
    tree: ast.Module
    """The whole module with the change."""


def mutations(source: str, functions: Sequence[str] = ()) -> Iterator[Mutation]:
    """Yield all changes of a module, or of these functions, always in the same order. ValueError: one is not there."""
    tree = ast.parse(source)
    inside = {node for part in _parts(tree, functions) for node in ast.walk(part)}
    for number, node in enumerate(ast.walk(tree)):
        if node in inside and node not in _excluded(tree):
            for change in _changes(node):
                yield _changed(tree, number, change)


def _parts(tree: ast.Module, functions: Sequence[str]) -> list[ast.AST]:
    if not functions:
        return [tree]
    found = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in functions if name not in found]:
        raise ValueError(f"no function is named {', '.join(missing)}")
    return [found[name] for name in functions]


def _changed(tree: ast.Module, number: int, change: Callable[[Any], ast.AST]) -> Mutation:
    whole = copy.deepcopy(tree)
    target = next(node for index, node in enumerate(ast.walk(whole)) if index == number)
    before = ast.unparse(target)
    new = change(target)
    if new is not target:
        _Replace(target, new).visit(whole)
    ast.fix_missing_locations(whole)
    return Mutation(getattr(target, "lineno", 0), _short(before), _short(ast.unparse(new)), whole)


def _short(text: str) -> str:
    first = text.splitlines()[0]
    return first if len(first) <= 100 else f"{first[:97]}..."


_excluded_of: dict[int, tuple[ast.Module, set[ast.AST]]] = {}


def _excluded(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes that no change may touch."""
    if (known := _excluded_of.get(id(tree))) and known[0] is tree:
        return known[1]
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns, *node.decorator_list]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.Raise):
            parts = [node.exc, node.cause]
        elif isinstance(node, ast.JoinedStr | ast.Assert) or _decides_nothing(node):
            parts = [node]
        found.update(inner for part in parts if part is not None for inner in ast.walk(part))
    _excluded_of.clear()
    _excluded_of[id(tree)] = (tree, found)
    return found


def _decides_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith(UNCHANGED_CALLS)


def _changes(node: ast.AST) -> Iterator[Callable[[Any], ast.AST]]:
    """Yield functions that change a node, in place or by another one."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield lambda n: _set(n, ops=[COMPARISONS[type(n.ops[0])]()])
        case ast.BoolOp():
            yield lambda n: _set(n, op=ast.Or() if isinstance(n.op, ast.And) else ast.And())
        case ast.BinOp(op=op) if type(op) in ARITHMETIC and not _is_text(node):
            yield lambda n: _set(n, op=ARITHMETIC[type(n.op)]())
        case ast.AugAssign(op=op) if type(op) in ARITHMETIC:
            yield lambda n: _set(n, op=ARITHMETIC[type(n.op)]())
        case ast.UnaryOp(op=ast.Not()):
            yield lambda n: n.operand
        case ast.UnaryOp(op=ast.USub()):
            yield lambda n: n.operand
        case ast.Constant(value=bool()):
            yield lambda n: ast.Constant(not n.value)
        case ast.Constant(value=int() | float()):
            yield lambda n: ast.Constant(n.value + 1)
            yield lambda n: ast.Constant(n.value - 1)
        case ast.If() | ast.While() | ast.IfExp() if not _is_changed_itself(node.test):
            yield lambda n: _set(n, test=ast.UnaryOp(ast.Not(), n.test))
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS:
            yield lambda n: _set(n, func=ast.Name(FUNCTIONS[n.func.id], ast.Load()))
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield lambda n: ast.Return(ast.Constant(None))
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Continue() | ast.Break() | ast.Raise():
            yield lambda _: ast.Pass()


def _is_changed_itself(test: ast.expr) -> bool:
    """True if a change of the condition is its negation already."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
            return True
    return False


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(side, ast.Constant | ast.JoinedStr) and not _is_number(side) for side in sides)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _set(node: Any, **values: Any) -> ast.AST:
    for name, value in values.items():
        setattr(node, name, value)
    changed: ast.AST = node
    return changed


class _Replace(ast.NodeTransformer):
    """Puts one node in the place of another."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old = old
        self.new = ast.copy_location(new, old)

    def visit(self, node: ast.AST) -> Any:
        """Replace the node itself, or look below it."""
        return self.new if node is self.old else self.generic_visit(node)
