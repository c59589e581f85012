"""Checks a taskset's fields and functions for names that verifiers.v1 reserves.

A field of a task's data with a different meaning than in verifiers would have side effects: `timeout` limits stages,
and `image` starts a container. A function named like a method of `vf.Task` replaces it, so that all rewards are 0.
"""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, TypeAdapter, ValidationError
from verifiers.v1.utils.decorators import discover_decorated

DECORATORS = ("reward", "metric", "stop", "intercept")
LABELS = {"id", "name", "description"}
"""Fields of a task's data that verifiers only displays."""
POSITION = "idx"
MAX_SHOWN = 3


def reserved_name_conflict(task: Any) -> str | None:
    """Return a description of the task's names that have a different meaning in verifiers.v1, or None if there are
    none.
    """
    found = [*_functions(task), *_fields(task.data, vf.TaskData), *_fields(task.config, vf.TaskConfig)]
    if not found:
        return None
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return f"{'; '.join(found[:MAX_SHOWN])}{more}. Rename them"


def _functions(task: Any) -> Iterator[str]:
    for decorator in DECORATORS:
        for function in discover_decorated(task, decorator):
            if hasattr(vf.Task, function.__name__):
                yield (
                    f"the @vf.{decorator} function {function.__name__} of {type(task).__name__} replaces the method of "
                    "vf.Task with this name, which verifiers calls itself"
                )


def _fields(value: Any, base: type[BaseModel]) -> Iterator[str]:
    """Yield a description of each field or property of `base` that the value's class redefines in a way that verifiers
    cannot use.
    """
    for name in type(value).model_fields.keys() - base.model_fields.keys():
        if name in vars(base):
            yield f"the field {name} of {type(value).__name__} replaces a property of vf.{base.__name__}"
    for name, field in base.model_fields.items():
        own = type(value).model_fields[name]
        if name in LABELS or own.annotation == field.annotation:
            continue
        # verifiers sets the position itself, so only the type shows the field's intended meaning.
        is_position = name == POSITION
        fits: Any = own.annotation if is_position else field.annotation
        try:
            TypeAdapter(fits).validate_python(0 if is_position else getattr(value, name), strict=is_position)
        except ValidationError as error:
            reason = "verifiers sets it to the task's position" if is_position else error.errors()[0]["msg"]
            redefined = f"vf.{base.__name__}.{name} with a different type"
            yield f"the field {name} of {type(value).__name__} redefines {redefined}: {reason}"
