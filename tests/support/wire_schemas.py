"""Schemas of everything that programs receive, and the worst texts that a sender may make of each."""

import ast
import importlib
import json
import operator
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import rlrun
import rlrun_adapter_sidecar
import rlrun_environment
import rlrun_model_fetcher
import rlrun_operator
import rlrun_orchestrator
import rlrun_server
import rlrun_tinker
import rlrun_trainer
from pydantic import BaseModel
from rlrun.api.base.received import limits_of

PACKAGES = (
    rlrun,
    rlrun_operator,
    rlrun_server,
    rlrun_tinker,
    rlrun_orchestrator,
    rlrun_environment,
    rlrun_adapter_sidecar,
    rlrun_model_fetcher,
    rlrun_trainer,
)
MESSAGES = "rlrun.protocol."
"""Modules whose schemas are all messages."""
NOT_RECEIVED = frozenset(
    {
        "Field", "TypeVar", "isinstance", "issubclass", "CrdKind",
        # Fields and errors of a schema.
        "coerce", "fields_at", "problems",
        # Variables of this process's own pod.
        "read_settings",
        # Answers of this process's own routes.
        "_read",
    }
)  # fmt: skip
"""Functions that get a schema and receive nothing. All others that get one are parsers, or call one."""
MAX_BODY = 512 * 1024
"""Size of the largest text that is made. Cost grows with size."""
Json = dict[str, Any]


def modules() -> Iterator[ModuleType]:
    """Yield all modules that can be imported here. Those of torch and of user code need their images."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            try:
                yield importlib.import_module(found.name)
            except ImportError:
                continue


def wire_schemas() -> list[type[BaseModel]]:
    """Return all schemas of messages, and those that any call anywhere gets as an argument."""
    found: set[type[BaseModel]] = set()
    for module in modules():
        if module.__name__.startswith(MESSAGES):
            found |= {each for each in vars(module).values() if _is_model(each) and each.__module__ == module.__name__}
        found |= parsed_in(module)
    return sorted(found, key=lambda each: f"{each.__module__}.{each.__qualname__}")


def parsed_in(module: ModuleType) -> set[type[BaseModel]]:
    """Return the schemas that a module passes to functions, except those of NOT_RECEIVED."""
    tree = ast.parse(Path(str(module.__file__)).read_text("utf-8"))
    names = {
        ast.unparse(argument)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] not in NOT_RECEIVED
        for argument in (*call.args, *(word.value for word in call.keywords if word.arg != "response_model"))
        if isinstance(argument, ast.Name | ast.Attribute)
    }
    return {found for name in names if _is_model(found := _value_of(name, module))}


def _value_of(name: str, module: ModuleType) -> Any:
    try:
        return operator.attrgetter(name)(module)
    except AttributeError:
        return None


def unbounded_fields(model: type[BaseModel]) -> list[str]:
    """Return the paths of texts, lists and maps of a schema that have no maximum."""
    document = model.model_json_schema()
    return sorted(set(_unbounded(document, model.__name__, document.get("$defs", {}), ())))


def worst_texts(model: type[BaseModel]) -> dict[str, bytes]:
    """Return texts that are expensive to parse or to reject, by what they have many of."""
    size = min(limits_of(model).size, MAX_BODY)
    document = model.model_json_schema()
    definitions: Json = document.get("$defs", {})
    valid = _minimal(document, definitions)
    filled = _filled(dict(valid), size) if isinstance(valid, dict) else b""
    texts = {
        "unknown keys": b"{" + b",".join(b'"k%d":1' % number for number in range(size // 12)) + b"}",
        "deep": b"[" * (size // 2) + b"]" * (size // 2),
        "a long number": b'{"a":' + b"9" * (size - 20) + b"}",
        "long numbers": b"[" + b",".join([b"9" * 4000] * (size // 4001 - 1)) + b"]",
        "one text": b'"' + b"a" * (size - 2) + b'"',
        "separators in a text": b'{"a":"' + b"[,{" * ((size - 20) // 3) + b'"}',
        "equal keys": b"{" + b",".join([b'"a":1'] * (size // 7)) + b"}",
        "a text that does not end": b'{"a":"' + b'\\"' * (size // 2 - 10),
        "long unknown value": filled,
        "more than its size": b" " * (limits_of(model).size + 1) if limits_of(model).size < MAX_BODY else b"",
    }
    for path, item in _collections(document, definitions):
        dense = json.dumps(_minimal(item, definitions), separators=(",", ":")).encode()
        for name, entry in (("empty", b"{}"), ("dense", dense), ("wrong", b'""')):
            texts[f"{name} items of {'.'.join(path)}"] = _nest(valid, path, entry, size, is_map=path[-1] == "{}")
    return {name: text for name, text in texts.items() if text}


def _is_model(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, BaseModel) and value.__module__.startswith("rlrun")


def _unbounded(node: Mapping[str, Any], path: str, definitions: Json, inside: tuple[str, ...]) -> Iterator[str]:
    if "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name not in inside:
            yield from _unbounded(definitions[name], path, definitions, (*inside, name))
    if "maxLength" in node:
        return
    for choice in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from _unbounded(choice, path, definitions, inside)
    kind = node.get("type")
    if kind == "string" and not {"enum", "const", "format"} & set(node):
        yield path
    if kind == "array":
        if "maxItems" not in node:
            yield path
        for entry in (node.get("items") or {}, *node.get("prefixItems", ())):
            yield from _unbounded(entry, f"{path}[]", definitions, inside)
    if kind == "object" and "properties" not in node:
        if "maxProperties" not in node:
            yield path
        if isinstance(node.get("additionalProperties"), dict):
            yield from _unbounded(node["additionalProperties"], f"{path}{{}}", definitions, inside)
    for name, field in node.get("properties", {}).items():
        yield from _unbounded(field, f"{path}.{name}", definitions, inside)


def _resolve(node: Json, definitions: Json) -> Json:
    while "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    for choice in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        if choice.get("type") != "null":
            return _resolve(choice, definitions)
    return node


def _minimal(node: Json, definitions: Json) -> Any:
    """Return the smallest value of a schema. Patterns are not followed."""
    node = _resolve(node, definitions)
    if "const" in node or "enum" in node:
        return node.get("const", node.get("enum", [None])[0])
    match node.get("type"):
        case "object":
            required = node.get("required", ())
            return {name: _minimal(node["properties"][name], definitions) for name in required}
        case "array":
            return [_minimal(node.get("items", {}), definitions)] * node.get("minItems", 0)
        case "string":
            is_time = node.get("format") == "date-time"
            return "2026-01-01T00:00:00Z" if is_time else "a" * node.get("minLength", 1)
        case "boolean":
            return True
        case "integer" | "number":
            return node.get("minimum", node.get("exclusiveMinimum", 0) + 1)
    return {}


def _collections(node: Json, definitions: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Yield the path of each list and map, with the schema of its items, three levels deep."""
    node = _resolve(node, definitions)
    for name, field in node.get("properties", {}).items():
        field = _resolve(field, definitions)
        if field.get("type") == "array":
            yield (*path, name, "[]"), field.get("items", {})
        elif field.get("type") == "object" and "properties" not in field:
            entries = field.get("additionalProperties")
            yield (*path, name, "{}"), entries if isinstance(entries, dict) else {}
        elif field.get("type") == "object" and len(path) < 3:
            yield from _collections(field, definitions, (*path, name))
        elif "type" not in field:
            yield (*path, name, "[]"), {}


def _nest(valid: Any, path: tuple[str, ...], entry: bytes, size: int, *, is_map: bool) -> bytes:
    """Return a valid text in which the collection at the path has as many entries as `size` allows."""
    document = json.loads(json.dumps(valid)) if isinstance(valid, dict) else {}
    section = document
    for name in path[:-2]:
        section = section.setdefault(name, {})
    section[path[-2]] = "@"
    before, after = json.dumps(document, separators=(",", ":")).encode().split(b'"@"', 1)
    left = size - len(before) - len(after) - 2
    if is_map:
        entries = b",".join(b'"k%d":%s' % (number, entry) for number in range(left // (len(entry) + 11)))
        return before + b"{" + entries + b"}" + after
    return before + b"[" + b",".join([entry] * (left // (len(entry) + 1))) + b"]" + after


def _filled(document: Json, size: int) -> bytes:
    start = json.dumps({**document, "unknown": "@"}, separators=(",", ":")).encode()
    return start.replace(b'"@"', b"[" + b",".join([b"{}"] * ((size - len(start)) // 3)) + b"]")
