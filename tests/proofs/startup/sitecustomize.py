"""Removal of one field's effect in every Python process that starts with this folder on PYTHONPATH.

RLRUN_REMOVED_FROM names a class: RLRunSpec or, for the trainer's tests, SessionSpec. RLRUN_REMOVED_FIELD names a field
as in docs/fields.md. Both are read when an instance is made, so a process may change the field; its children inherit
it. The field's value is replaced by its default, or by another valid value if it has none: the rest of the system never
sees what the user wrote. Rules that read the field are always satisfied: a spec that they reject would make every test
fail, also those that prove nothing.

Python imports this module at its start, before any other. It must not import what a process may not need.
"""

import dataclasses
import importlib.abc
import importlib.machinery
import os
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

CLASS = os.environ.get("RLRUN_REMOVED_FROM", "")

SESSION_FIELDS = {
    "lora.enabled": "kind",
    "checkpointId": "warmStartFrom",
}
"""Fields of the trainer's SessionSpec with another name than the field of RLRun's spec that they come from."""
OTHER_VALUES: dict[str, Any] = {
    "model": "removed/removed",
    "env.id": "removed/removed-{}",
    "eval.env.id": "removed/removed-{}",
    "algorithm.teacher.url": "http://removed.invalid/v1",
    "algorithm.teacher.model": "removed/removed",
    "failurePolicy.rules.action": "Fail",
    "envFrom.secretRef.name": "removed",
    "loraAlpha": 16.0,
    "learningRate": 1e-4,
    "maxSteps": 100,
}
"""Values of fields that have no default. `{}` is the position in the list."""


def reset(model: Any, path: str) -> None:
    """Reset the field at the path, in every entry of a list on the way, to its default."""
    _reset(model, path.split("."), path, 0)


def _reset(model: Any, parts: Sequence[str], path: str, position: int) -> None:
    name, field = _field(type(model), parts[0])
    if parts[1:]:
        value = getattr(model, name)
        for index, entry in enumerate(value if isinstance(value, list) else [value]):
            if entry is not None:
                _reset(entry, parts[1:], path, index)
        return
    if field.is_required():
        value = OTHER_VALUES[path]
        value = value.format(position) if isinstance(value, str) else value
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, str):
            value = annotation(value)
    else:
        value = field.get_default(call_default_factory=True)
    setattr(model, name, value)
    model.model_fields_set.discard(name)


def _field(cls: Any, alias: str) -> tuple[str, Any]:
    """Return the Python name of a field, and what pydantic knows of it."""
    return next((name, field) for name, field in cls.model_fields.items() if field.alias == alias)


def removed() -> str:
    """Return the field that has no effect now; empty if all have theirs."""
    return os.environ.get("RLRUN_REMOVED_FIELD", "")


def reset_after_validation(schema: ModuleType) -> None:
    """Let every instance of the class lose the field when it is made. Subclasses must not exist yet."""

    def model_post_init(self: Any, _: Any) -> None:
        if type(self).__name__ != CLASS or not removed():
            return
        path = removed() if CLASS == "RLRunSpec" else SESSION_FIELDS.get(removed(), removed())
        if path.split(".")[0] in {field.alias for field in type(self).model_fields.values()}:
            reset(self, path)

    schema.Schema.model_post_init = model_post_init


def suspend_rules(run: ModuleType) -> None:
    """Let the rules of the spec and its sections be satisfied while a field that they read is removed."""
    waiting = [(run.RLRunSpec, "")]
    while waiting:
        cls, path = waiting.pop()
        cls.spec_rules = tuple(_suspended(rule, path) for rule in cls.spec_rules)
        for field in cls.model_fields.values():
            waiting += [(section, f"{path}{field.alias}.") for section in _sections(field)]


def _suspended(rule: Any, path: str) -> Any:
    """Return the rule of the section at the path, which ends with a dot or is empty."""
    read = {f"{path}{name}" for name in rule.reads}

    def is_satisfied(model: Any) -> bool:
        field = removed()
        return any(f"{field}.".startswith(f"{name}.") for name in read) or rule.is_satisfied(model)

    return dataclasses.replace(rule, is_satisfied=is_satisfied)


def _sections(field: Any) -> Iterator[Any]:
    """Yield the sections in a field's annotation."""
    waiting = [field.annotation]
    while waiting:
        annotation = waiting.pop()
        if hasattr(annotation, "spec_rules"):
            yield annotation
        waiting += typing.get_args(annotation)


HOOKS: dict[str, Callable[[ModuleType], None]] = {
    "rlrun.api.base.schema": reset_after_validation,
    "rlrun.api.run": suspend_rules,
}
"""Functions that change a module of the product as soon as it has been imported."""


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of `HOOKS` as Python would, with a loader that calls their hook."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        hook = HOOKS.get(name)
        found = importlib.machinery.PathFinder.find_spec(name, path, target) if hook else None
        if hook is None or found is None or found.loader is None:
            return None
        execute = found.loader.exec_module

        def execute_then_change(module: ModuleType) -> None:
            execute(module)
            hook(module)

        found.loader.exec_module = execute_then_change  # type: ignore[method-assign]
        return found


if CLASS:
    sys.meta_path.insert(0, _Finder())
