"""What fields alone cannot say: rules between fields, and what may change after creation.

A rule is written twice side by side, as a CEL expression for the API server and as a Python predicate for everybody
else. Both name the same field and carry the same message, and the tests hold them to the same verdict on the same
fixtures. All broken rules of an object are reported together, each under the path of its field.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self, cast

from pydantic import ConfigDict, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from rlrun.schema.base import Schema

LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
LIST_TYPE = "x-kubernetes-list-type"


@dataclass(frozen=True)
class Rule:
    """A statement about one object that must hold whenever it is written."""

    field: str
    """Outside name of the field the message is about, relative to the object: `batchSize`."""
    cel: str
    """The statement for the API server; `self` is the object."""
    message: str
    """What is wrong and what to change."""
    holds: Callable[[Any], bool]
    """The same statement for Python."""


@dataclass(frozen=True)
class Transition:
    """A statement about an update; `self` is the new object, `oldSelf` the stored one."""

    field: str
    cel: str
    message: str
    holds: Callable[[Any, Any], bool]
    """Called with (new, old)."""


@dataclass(frozen=True)
class Violation:
    """One broken rule."""

    path: str
    """Outside path of the field: `spec.buffer.hardThreshold`."""
    message: str


class Spec(Schema):
    """A part of an object that a person writes: strict types, no coercion, rules between fields.

    Strict, because the API server is: `maxSteps: "100"` is an error there, so it is one here. A null is the same as an
    absent field, as it is for the API server (which prunes it before defaulting).
    """

    model_config = ConfigDict(strict=True)

    spec_rules: ClassVar[tuple[Rule, ...]] = ()
    spec_transitions: ClassVar[tuple[Transition, ...]] = ()
    mutable: ClassVar[frozenset[str] | None] = None
    """Python names of the fields that may change after creation, all others being frozen; None freezes nothing."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if value is not None}
        return data

    @model_validator(mode="after")
    def _keep_rules(self) -> Self:
        broken = [(rule.field, rule.message) for rule in self.spec_rules if not rule.holds(self)]
        broken += list(self._duplicates())
        if broken:
            raise ValidationError.from_exception_data(
                type(self).__name__,
                [
                    InitErrorDetails(
                        # A template would read braces in the message as placeholders, so the message is its argument.
                        type=PydanticCustomError("rule", "{message}", {"message": message}),
                        loc=tuple(field.split(".")),
                        input=None,
                    )
                    for field, message in broken
                ],
            )
        return self

    def _duplicates(self) -> Iterator[tuple[str, str]]:
        """Lists that Kubernetes treats as a map or a set and that name something twice, as (field, message)."""
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if not isinstance(extra, dict):
                continue
            values: list[Any] = getattr(self, name) or []
            if keys := extra.get(LIST_MAP_KEYS):
                values = [tuple(getattr(value, str(key)) for key in cast("list[str]", keys)) for value in values]
            elif extra.get(LIST_TYPE) != "set":
                continue
            for twice in sorted({str(value) for value in values if values.count(value) > 1}):
                yield field.alias or name, f"{field.alias or name} names {twice} twice"


FROZEN_MESSAGE = "cannot be changed after creation: make a new object instead"


def check_update(old: Spec, new: Spec, path: str = "spec") -> Iterator[Violation]:
    """What the API server would refuse about replacing `old` by `new` (two objects of the same class).

    Like the API server's transition rules, sections are compared only where both sides have them, and a list is one
    value.
    """
    cls = type(new)
    for transition in cls.spec_transitions:
        if not transition.holds(new, old):
            yield Violation(f"{path}.{transition.field}", transition.message)
    for name, field in cls.model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        outside = f"{path}.{field.alias or name}"
        if cls.mutable is not None and name not in cls.mutable:
            if before != after:
                yield Violation(outside, f"{field.alias or name} {FROZEN_MESSAGE}")
        elif isinstance(before, Spec) and isinstance(after, Spec):
            yield from check_update(before, after, outside)
