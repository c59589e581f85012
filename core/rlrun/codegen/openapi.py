"""Converts pydantic models to the structural OpenAPI v3 schemas of CustomResourceDefinitions.

pydantic generates JSON Schema (2020-12) with $refs. Kubernetes requires OpenAPI 3.0 without references and unions, and
has its own keywords for free-form objects, list keys and rules. Fields, limits and descriptions are kept.
"""

from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from rlrun.api.base.rules import FROZEN_MESSAGE, LIST_MAP_KEYS, LIST_TYPE, Rule, Spec, Transition

VALIDATIONS = "x-kubernetes-validations"
INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
MAP_TYPE = "x-kubernetes-map-type"

_KEPT = (
    "type",
    "format",
    "enum",
    "pattern",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    LIST_MAP_KEYS,
    LIST_TYPE,
    VALIDATIONS,
)

Json = dict[str, Any]


def structural(model: type[BaseModel], *, defaults: bool = True, rules: bool = True) -> Json:
    """Return the structural schema of a model, with its rules in CEL unless `rules` is false.

    If `defaults` is false, the schema has no defaults, so that status fields are absent until the operator writes them.
    Raises TypeError for types that a structural schema does not support, such as unions and tuples.
    """
    document = model.model_json_schema(by_alias=True, mode="validation")
    return _Converter(document.get("$defs", {}), _models_below(model), defaults, rules).model(model, document)


class _Converter:
    def __init__(self, definitions: Json, models: dict[str, type[BaseModel]], defaults: bool, rules: bool):
        self.definitions, self.models, self.defaults, self.rules = definitions, models, defaults, rules

    def model(self, cls: type[BaseModel], source: Json) -> Json:
        properties: Json = {}
        for name, field in cls.model_fields.items():
            outside = field.alias or name
            converted = self.value(source["properties"][outside])
            default = default_value(field)
            if self.defaults and default is not None:
                converted["default"] = default
            properties[outside] = converted
        result: Json = {"type": "object"}
        if "description" in source:
            result["description"] = source["description"]
        if required := source.get("required"):
            result["required"] = sorted(required)
        result["properties"] = properties
        if self.rules and issubclass(cls, Spec) and (validations := cel_rules(cls)):
            result[VALIDATIONS] = validations
        return result

    def value(self, source: Json) -> Json:
        description = source.get("description")
        if options := source.get("anyOf"):
            if source.get(INT_OR_STRING):
                result: Json = {INT_OR_STRING: True, **{k: source[k] for k in ("pattern", "maxLength")}}
                result["anyOf"] = options
            else:
                chosen = [o for o in options if o.get("type") != "null"]
                if len(chosen) != 1:
                    raise TypeError(f"a structural schema does not support unions: {source}")
                result = self.value(chosen[0])
        elif reference := source.get("$ref"):
            result = self.reference(reference.rsplit("/", 1)[-1])
        else:
            result = self.plain(source)
        if description:
            result = {"description": description, **{k: v for k, v in result.items() if k != "description"}}
        return result

    def reference(self, name: str) -> Json:
        target = self.definitions[name]
        return self.model(self.models[name], target) if name in self.models else self.plain(target)

    def plain(self, source: Json) -> Json:
        if "const" in source:
            source = {**source, "enum": [source["const"]]}
        result = {key: source[key] for key in _KEPT if key in source and (self.rules or key != VALIDATIONS)}
        for bound in ("Minimum", "Maximum"):
            if (value := source.get(f"exclusive{bound}")) is not None:
                result[bound.lower()] = value
                result[f"exclusive{bound}"] = True
        match result.get("type"):
            case "integer":
                result["format"] = "int64"
            case "number":
                result["format"] = "double"
            case "array":
                result["items"] = self.value(source["items"])
                result.setdefault(LIST_TYPE, "map" if LIST_MAP_KEYS in result else "atomic")
            case "object":
                values = source.get("additionalProperties", True)
                if values is True:
                    result[PRESERVE] = True
                else:
                    result["additionalProperties"] = self.value(values)
            case "string" | "boolean":
                pass
            case other:
                raise TypeError(f"a structural schema does not support the type {other!r}: {source}")
        return result


def cel_rules(cls: type[Spec]) -> list[Json]:
    """Return the rules, transitions and immutable fields of a model as x-kubernetes-validations."""
    result: list[Json] = []
    statements: tuple[Rule | Transition, ...] = (*cls.spec_rules, *cls.spec_transitions)
    for statement in statements:
        result.append({"rule": statement.cel, "message": statement.message, "fieldPath": f".{statement.field}"})
    for outside, field in frozen_fields(cls).items():
        now, before = f"self.{outside}", f"oldSelf.{outside}"
        rule = f"{now} == {before}"
        if may_be_absent(field):
            rule = f"has({now}) == has({before}) && (!has({now}) || {rule})"
        result.append(
            {
                "rule": rule,
                "message": f"{outside} {FROZEN_MESSAGE}",
                "fieldPath": f".{outside}",
                "reason": "FieldValueForbidden",
            }
        )
    return result


def frozen_fields(cls: type[Spec]) -> dict[str, FieldInfo]:
    """Return the immutable fields by their camelCase names."""
    if cls.mutable is None:
        return {}
    return {field.alias or name: field for name, field in cls.model_fields.items() if name not in cls.mutable}


def may_be_absent(field: FieldInfo) -> bool:
    """Return whether the field is optional and the API server sets no default for it."""
    return not field.is_required() and default_value(field) is None


def default_value(field: FieldInfo) -> Any:
    """Return the field's default as JSON, or None if the API server sets no default."""
    if field.default_factory is not None:
        value = field.get_default(call_default_factory=True, validated_data={})
        # Use the complete default, because the API server checks the rules of a section before it applies nested
        # defaults.
        return to_jsonable_python(value, by_alias=True, exclude_none=True)
    return None if field.default is PydanticUndefined else to_jsonable_python(field.default)


def _models_below(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return every model class used in a model, by its name in pydantic's $defs."""
    models: dict[str, type[BaseModel]] = {}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            if models.setdefault(annotation.__name__, annotation) is not annotation:
                raise TypeError(f"two models have the name {annotation.__name__}: rename one")
            for field in annotation.model_fields.values():
                visit(field.annotation)
        for argument in getattr(annotation, "__args__", ()):
            visit(argument)

    visit(model)
    return models
