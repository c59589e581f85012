"""What fields alone cannot say: rules between fields, and what may change after creation.

A rule is written twice side by side, as a CEL expression for the API server and as a Python predicate for everybody
else. Both name the same field and carry the same message, and the tests hold them to the same verdict on the same
fixtures. All broken rules of an object are reported together, each under the path of its field.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Self, cast, get_args, get_origin

from pydantic import ConfigDict, ModelWrapValidatorHandler, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from rlrun.api.base.schema import Schema

LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
LIST_TYPE = "x-kubernetes-list-type"

_KNOWN_ERRORS = frozenset(get_args(ErrorType))


@dataclass(frozen=True)
class Rule:
    """A statement about one object that must hold whenever it is written."""

    field: str
    """Outside name of the field the message is about, relative to the object: `batchSize`."""
    cel: str
    """The statement for the API server; `self` is the object."""
    message: str
    """What is wrong and what to change."""
    is_satisfied: Callable[[Any], bool]
    """The same statement for Python."""

    @property
    def reads(self) -> set[str]:
        """Outside names of the object's fields that the rule is about."""
        return set(re.findall(r"\bself\.(\w+)", self.cel))


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
    absent field, as it is for the API server (which prunes it before defaulting), and 2.0 is a whole number, as it is
    in JSON.
    """

    model_config = ConfigDict(strict=True)

    spec_rules: ClassVar[tuple[Rule, ...]] = ()
    spec_transitions: ClassVar[tuple[Transition, ...]] = ()
    mutable: ClassVar[frozenset[str] | None] = None
    """Python names of the fields that may change after creation, all others being frozen; None freezes nothing."""

    @model_validator(mode="wrap")
    @classmethod
    def _keep_rules(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(data, dict):
            whole, maps = _whole_number_fields(cls), _typed_maps(cls)
            data = {
                key: _without_fraction(value) if key in whole else _without_nulls(value) if key in maps else value
                for key, value in data.items()
                if value is not None
            }
        try:
            made = handler(data)
        except ValidationError as error:
            # The rules about fields that are right are still worth telling: all problems at once.
            broken = list(
                _rules_of_the_rest(cls, data, {detail["loc"][0] for detail in error.errors() if detail["loc"]})
            )
            if not broken:
                raise
            raise _validation_error(cls, [*map(_again, error.errors()), *map(_rule_error, broken)]) from None
        broken = [(rule.field, rule.message) for rule in cls.spec_rules if not rule.is_satisfied(made)]
        broken += made._duplicates()
        if broken:
            raise _validation_error(cls, list(map(_rule_error, broken)))
        return made

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


def _rules_of_the_rest(cls: type[Spec], data: Any, wrong: set[str | int]) -> Iterator[tuple[str, str]]:
    """Rules broken by the fields that are right, where some are `wrong` (by outside or Python name)."""
    if not isinstance(data, dict):
        return
    right = SimpleNamespace()
    read = {field for rule in cls.spec_rules for field in rule.reads}
    for name, field in cls.model_fields.items():
        outside = field.alias or name
        if outside not in read or outside in wrong or name in wrong:
            continue
        value = data.get(outside, data.get(name))
        if value is None:
            value = field.get_default(call_default_factory=True, validated_data={})
        else:
            value = _adapter(cls, name).validate_python(value, by_alias=True, by_name=True)
        setattr(right, name, value)
    for rule in cls.spec_rules:
        fields = [name for name, field in cls.model_fields.items() if (field.alias or name) in rule.reads]
        if all(hasattr(right, name) for name in fields) and not rule.is_satisfied(right):
            yield rule.field, rule.message


@cache
def _whole_number_fields(cls: type[Spec]) -> frozenset[str]:
    """Fields that hold integers, or lists of them."""

    def holds_int(annotation: Any) -> bool:
        return annotation is int or any(holds_int(argument) for argument in get_args(annotation))

    return _both_names(cls, lambda field: holds_int(field.annotation))


@cache
def _typed_maps(cls: type[Spec]) -> frozenset[str]:
    """Fields that map names to values of one type; free-form objects are not among them."""
    return _both_names(cls, lambda f: get_origin(f.annotation) is dict and get_args(f.annotation)[1] is not Any)


def _both_names(cls: type[Spec], chosen: Callable[[FieldInfo], bool]) -> frozenset[str]:
    """Python and outside names of the chosen fields."""
    fields = [(name, field) for name, field in cls.model_fields.items() if chosen(field)]
    return frozenset(name for inside, field in fields for name in (inside, field.alias or inside))


def _without_nulls(value: Any) -> Any:
    return {key: entry for key, entry in value.items() if entry is not None} if isinstance(value, dict) else value


def _without_fraction(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_fraction(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _adapter(cls: type[Spec], name: str) -> TypeAdapter[Any]:
    """Validates one field of a model by itself; only used for values that the model has already found right."""
    field = cls.model_fields[name]
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(annotation)


def _rule_error(broken: tuple[str, str]) -> InitErrorDetails:
    field, message = broken
    # A template would read braces in the message as placeholders, so the message is its argument.
    error = PydanticCustomError("rule", "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=tuple(field.split(".")), input=None)


def _again(detail: ErrorDetails) -> InitErrorDetails:
    """A reported error as one to be raised."""
    message = {"message": detail["msg"]}
    kind = detail["type"]
    error = kind if kind in _KNOWN_ERRORS else PydanticCustomError("rule", "{message}", message)
    return InitErrorDetails(type=error, loc=detail["loc"], input=detail["input"], ctx=detail.get("ctx", {}))


def _validation_error(cls: type[Spec], errors: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data(cls.__name__, errors)


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
