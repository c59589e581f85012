"""What the product's source text says, wherever its modules lie and whatever its functions are called."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic.alias_generators import to_camel

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = ("core", "operator", "cli", "server", "trainer_image", "orchestrator_image", "inference_image")
METRIC = re.compile(r"(rlrun|trainer)_[a-z0-9_]+")
METRIC_TYPES = re.compile(r"(Counter|Gauge|Histogram|Summary|Info)(MetricFamily)?")
ROUTE_METHODS = re.compile(r"(add_)?(get|post|put|delete|patch)")


@dataclass(frozen=True)
class Module:
    """One parsed module of the product."""

    path: Path
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """Every node of the tree."""

    @property
    def imports_prometheus(self) -> bool:
        return any(isinstance(n, ast.ImportFrom) and str(n.module).startswith("prometheus_client") for n in self.nodes)

    def strings(self) -> Iterator[str]:
        """Every string constant and f-string (with `{}` for what is put in), docstrings aside."""
        left_out = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        left_out |= {id(part) for node in self.nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in self.nodes:
            text = template(node)
            if text is not None and id(node) not in left_out:
                yield text


@cache
def modules() -> tuple[Module, ...]:
    """Every Python module of the product."""
    found = []
    for program in PROGRAMS:
        for path in sorted((ROOT / program).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            found.append(Module(path, tree, tuple(ast.walk(tree))))
    return tuple(found)


@cache
def strings() -> frozenset[str]:
    """Every string of the product, docstrings aside."""
    return frozenset(text for module in modules() for text in module.strings())


def template(node: ast.AST) -> str | None:
    """The text of a string constant or f-string; None for anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(v.value) if isinstance(v, ast.Constant) else "{}" for v in node.values)
    return None


def matching(pattern: str) -> list[str]:
    """The strings that match as a whole, sorted."""
    found = re.compile(pattern)
    return sorted(text for text in strings() if found.fullmatch(text))


def words(pattern: str) -> list[str]:
    """Every part of a string that matches, sorted."""
    found = re.compile(pattern)
    return sorted({word for text in strings() for word in found.findall(text)})


@cache
def records() -> tuple[tuple[frozenset[str], ...], ...]:
    """Keys of every dict literal, and fields of every class by their own and by their camelCase names."""
    found: list[tuple[frozenset[str], ...]] = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.Dict):
                found.append((frozenset(str(k.value) for k in node.keys if isinstance(k, ast.Constant)),))
            elif isinstance(node, ast.ClassDef):
                fields = frozenset(
                    s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                )
                found.append((fields, frozenset(map(to_camel, fields))))
    return tuple(found)


def record(*anchors: str) -> list[str]:
    """The keys of the one dict literal or class that has these and no others, or else of the one that has more."""
    named = set(anchors)
    fitting = [[keys for keys in spellings if named <= keys] for spellings in records()]
    found = {spellings[0] for spellings in fitting if spellings}
    if named in found:
        return sorted(named)
    assert len(found) == 1, f"{len(found)} different records have the keys {anchors}: {[sorted(f) for f in found]}"
    return sorted(found.pop())


def metrics() -> dict[str, list[str]]:
    """Label names of every Prometheus metric that is named in a module of its own registry."""
    found: dict[str, list[str]] = {}
    for module in modules():
        if not module.imports_prometheus:
            continue
        constants = {
            target.id: node.value
            for node in module.tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for text in module.strings():
            if METRIC.fullmatch(text):
                found.setdefault(text, [])
        for node in module.nodes:
            if isinstance(node, ast.Call) and METRIC_TYPES.fullmatch(_called(node)) and node.args:
                name = template(node.args[0])
                if name:
                    found[name] = _labels(node, constants)
                elif isinstance(node.args[0], ast.Name) and _labels(node, constants):
                    found[f"<{_called(node)} of each {node.args[0].id}>"] = _labels(node, constants)
    return dict(sorted(found.items()))


def routes() -> list[str]:
    """`GET /healthz` for every route of every server."""
    found = set()
    for module in modules():
        for node in module.nodes:
            method = ROUTE_METHODS.fullmatch(_called(node)) if isinstance(node, ast.Call) else None
            if isinstance(node, ast.Call) and method and node.args:
                path = template(node.args[0])
                if path and path.startswith(("/", "{}/")) and len(node.args) > 1:
                    found.add(f"{method[2].upper()} {path}")
    return sorted(found)


def headings() -> list[list[str]]:
    """Column headings of tables: lists of two and more words in capitals."""
    found = []
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.List) and len(node.elts) > 1:
                texts = [template(e) or "" for e in node.elts]
                if all(re.fullmatch(r" *[A-Z][A-Z-]*", text) for text in texts):
                    found.append(texts)
    return sorted(found)


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _labels(call: ast.Call, constants: dict[str, ast.expr]) -> list[str]:
    given = [k.value for k in call.keywords if k.arg in ("labels", "labelnames")] or call.args[2:3]
    if not given:
        return []
    value = constants.get(given[0].id, given[0]) if isinstance(given[0], ast.Name) else given[0]
    return [template(e) or "?" for e in value.elts] if isinstance(value, ast.List | ast.Tuple) else []
