"""Validation rules that span several fields, and rules about updates.

Each rule has two equivalent forms: a CEL expression for the API server and a Python predicate for all programs. Tests
check that both agree on the same fixtures. All violated rules of an object are reported at once, each under the path
of its field.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Self, cast, get_args, get_origin

from pydantic import (
    ConfigDict,
    ModelWrapValidatorHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError
from pydantic_core.core_schema import ErrorType

from rlrun.api.base.names import snake
from rlrun.api.base.schema import Schema

LIST_MAP_KEYS = "x-kubernetes-list-map-keys"
LIST_TYPE = "x-kubernetes-list-type"

_KNOWN_ERRORS = frozenset(get_args(ErrorType))


@dataclass(frozen=True)
class Rule:
    """Rule that an object must satisfy when it is created or updated."""

    field: str
    """camelCase name of the field that the message describes, relative to the object: `batchSize`."""
    cel: str
    """CEL expression for the API server, in which `self` is the object."""
    message: str
    """Description of the problem and what to change."""
    is_satisfied: Callable[[Any], bool]
    """Python predicate equivalent to `cel`."""
    of_admitted: bool = False
    """True if the rule is also checked for specs that were admitted earlier (context `ADMITTED`). Needed for rules that
    isolate pods, because users can change the ConfigMap that stores the spec of an attempt.
    """

    @property
    def reads(self) -> set[str]:
        """camelCase names of the object's fields that the rule reads."""
        return set(re.findall(r"\bself\.(\w+)", self.cel))


@dataclass(frozen=True)
class Transition:
    """Rule that an update must satisfy. In CEL, `self` is the new object and `oldSelf` is the stored object."""

    field: str
    cel: str
    message: str
    is_satisfied: Callable[[Any, Any], bool]
    """Equivalent Python predicate, called with (new, old)."""


@dataclass(frozen=True)
class Violation:
    """One rule that an update does not satisfy."""

    path: str
    """Path of the field with camelCase names: `spec.buffer.hardThreshold`."""
    message: str


ADMITTED = {"admitted": True}
"""Validation context of a spec that was accepted earlier. Only rules with `of_admitted` are checked again, because a
newer version may have added rules.
"""


class Spec(Schema):
    """Base class of the sections that users write: no type coercion, and rules between fields.

    Types are as strict as in the API server: `maxSteps: "100"` is an error, a null equals an absent field, and 2.0 is
    an integer.
    """

    model_config = ConfigDict(strict=True)

    spec_rules: ClassVar[tuple[Rule, ...]] = ()
    spec_transitions: ClassVar[tuple[Transition, ...]] = ()
    mutable: ClassVar[frozenset[str] | None] = None
    """Python names of the fields that can change after creation. None allows all fields to change."""

    @model_validator(mode="wrap")
    @classmethod
    def _keep_rules(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(data, dict):
            whole, maps = _whole_number_fields(cls), _typed_maps(cls)
            data = {
                key: _without_fraction(value) if key in whole else _without_nulls(value) if key in maps else value
                for key, value in data.items()
                if value is not None
            }
        if info.context == ADMITTED:
            instance = handler(data)
            broken = [(r.field, r.message) for r in cls.spec_rules if r.of_admitted and not r.is_satisfied(instance)]
            if broken:
                raise _validation_error(cls, list(map(_rule_error, broken)))
            return instance
        try:
            instance = handler(data)
        except ValidationError as error:
            # Check the rules about valid fields as well, so that all problems are reported at once.
            broken = list(
                _violations_of_valid_fields(cls, data, {detail["loc"][0] for detail in error.errors() if detail["loc"]})
            )
            if not broken:
                raise
            raise _validation_error(cls, [*map(_to_init_error, error.errors()), *map(_rule_error, broken)]) from None
        broken = [(rule.field, rule.message) for rule in cls.spec_rules if not rule.is_satisfied(instance)]
        broken += instance._duplicates()
        if broken:
            raise _validation_error(cls, list(map(_rule_error, broken)))
        return instance

    def _duplicates(self) -> Iterator[tuple[str, str]]:
        """Yield (field, message) for each duplicate in a list that Kubernetes treats as a map or a set."""
        for name, field in type(self).model_fields.items():
            extra = field.json_schema_extra
            if not isinstance(extra, dict):
                continue
            values: list[Any] = getattr(self, name) or []
            if keys := extra.get(LIST_MAP_KEYS):
                values = [tuple(getattr(value, snake(str(key))) for key in cast("list[str]", keys)) for value in values]
            elif extra.get(LIST_TYPE) == "set":
                values = [(value,) for value in values]
            else:
                continue
            for duplicate in sorted({" ".join(map(str, value)) for value in values if values.count(value) > 1}):
                yield field.alias or name, f"{field.alias or name} contains {duplicate} more than once"


def _violations_of_valid_fields(cls: type[Spec], data: Any, invalid: set[str | int]) -> Iterator[tuple[str, str]]:
    """Yield (field, message) of each violated rule that reads none of the `invalid` fields, which are Python or
    camelCase names.
    """
    if not isinstance(data, dict):
        return
    valid = SimpleNamespace()
    read = {field for rule in cls.spec_rules for field in rule.reads}
    for name, field in cls.model_fields.items():
        alias = field.alias or name
        if alias not in read or alias in invalid or name in invalid:
            continue
        value = data.get(alias, data.get(name))
        if value is None:
            value = field.get_default(call_default_factory=True, validated_data={})
        else:
            value = _adapter(cls, name).validate_python(value, by_alias=True, by_name=True)
        setattr(valid, name, value)
    for rule in cls.spec_rules:
        fields = [name for name, field in cls.model_fields.items() if (field.alias or name) in rule.reads]
        if all(hasattr(valid, name) for name in fields) and not rule.is_satisfied(valid):
            yield rule.field, rule.message


@cache
def _whole_number_fields(cls: type[Spec]) -> frozenset[str]:
    """Return the fields that contain integers or lists of integers."""

    def holds_int(annotation: Any) -> bool:
        return annotation is int or any(holds_int(argument) for argument in get_args(annotation))

    return _both_names(cls, lambda field: holds_int(field.annotation))


@cache
def _typed_maps(cls: type[Spec]) -> frozenset[str]:
    """Return the fields that map names to values of one type. Free-form objects are not included."""
    return _both_names(cls, lambda f: get_origin(f.annotation) is dict and get_args(f.annotation)[1] is not Any)


def _both_names(cls: type[Spec], chosen: Callable[[FieldInfo], bool]) -> frozenset[str]:
    """Return the Python and camelCase names of the fields for which `chosen` is true."""
    fields = [(name, field) for name, field in cls.model_fields.items() if chosen(field)]
    return frozenset(name for python_name, field in fields for name in (python_name, field.alias or python_name))


def _without_nulls(value: Any) -> Any:
    return {key: entry for key, entry in value.items() if entry is not None} if isinstance(value, dict) else value


def _without_fraction(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_fraction(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _adapter(cls: type[Spec], name: str) -> TypeAdapter[Any]:
    """Return a validator for one field, for values that the model has already accepted."""
    field = cls.model_fields[name]
    annotation: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    return TypeAdapter(annotation)


def _rule_error(broken: tuple[str, str]) -> InitErrorDetails:
    field, message = broken
    # Pass the message as an argument: in a template, its braces would be placeholders.
    error = PydanticCustomError("rule", "{message}", {"message": message})
    return InitErrorDetails(type=error, loc=tuple(field.split(".")), input=None)


def _to_init_error(detail: ErrorDetails) -> InitErrorDetails:
    """Convert a reported error to the form that `ValidationError` accepts."""
    message = {"message": detail["msg"]}
    kind = detail["type"]
    error = kind if kind in _KNOWN_ERRORS else PydanticCustomError("rule", "{message}", message)
    return InitErrorDetails(type=error, loc=detail["loc"], input=detail["input"], ctx=detail.get("ctx", {}))


def _validation_error(cls: type[Spec], errors: list[InitErrorDetails]) -> ValidationError:
    return ValidationError.from_exception_data(cls.__name__, errors)


def cel_of_defaults(cls: type[Spec], of: str = "self") -> str:
    """Return a CEL expression that is true if every field of the section at path `of` has its default value. `cls` is
    the class of the section. It must not contain nested sections with defaults.
    """
    terms = []
    for name, field in cls.model_fields.items():
        path, default = f"{of}.{field.alias or name}", field.get_default(call_default_factory=True, validated_data={})
        if default is None:
            terms.append(f"!has({path})")
        elif default == []:
            terms.append(f"{path}.size() == 0")
        else:
            value = repr(str(default)) if isinstance(default, str) else json.dumps(default)
            terms.append(f"{path} == {value}")
    return " && ".join(terms)


FROZEN_MESSAGE = "is immutable: create a new object instead"


def check_update(old: Spec, new: Spec, path: str = "spec") -> Iterator[Violation]:
    """Yield the rules that an update from `old` to `new` would violate. Both objects have the same class.

    As in the API server's transition rules, a section whose fields may change is compared only if both objects have it.
    An immutable field is compared as one value.
    """
    cls = type(new)
    for transition in cls.spec_transitions:
        if not transition.is_satisfied(new, old):
            yield Violation(f"{path}.{transition.field}", transition.message)
    for name, field in cls.model_fields.items():
        before, after = getattr(old, name), getattr(new, name)
        field_path = f"{path}.{field.alias or name}"
        if cls.mutable is not None and name not in cls.mutable:
            if before != after:
                yield Violation(field_path, f"{field.alias or name} {FROZEN_MESSAGE}")
        elif isinstance(before, Spec) and isinstance(after, Spec):
            yield from check_update(before, after, field_path)
