"""Validation errors for users: one line per problem, with the field's path as written in their file."""

import difflib
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core.core_schema import ErrorType

from rlrun.api.base.names import (
    LABEL,
    UTC_TIME,
    CheckpointId,
    EgressHost,
    EnvironmentId,
    EnvironmentName,
    EnvironmentReference,
    ModelId,
    Namespace,
    ObjectName,
    PackageDigest,
    PackageVersion,
    S3Path,
    snake,
    snake_words,
)
from rlrun.api.base.received import MAX_FAULTS

MAX_SUGGESTIONS = 10
"""Maximum number of unknown fields for which similar names are suggested. Each suggestion takes up to a millisecond."""
UNKNOWN = "unknown field; remove it"
"""Message about an unknown field without a suggestion."""
MAX_NEAR = 3
"""Maximum number of known fields that a message lists if none is similar to the unknown field."""
FORMS: dict[Any, str] = {
    ModelId: "write owner/name as on the Hugging Face Hub, or a name without an owner",
    EnvironmentId: "write owner/name, with letters, digits and . _ -",
    EnvironmentReference: "write owner/name, owner/name@version or owner/name==version, with letters, digits and . _ -",
    EnvironmentName: "start with a letter or digit, followed by letters, digits, spaces and . _ -",
    PackageVersion: "write a version such as 1.2.0",
    PackageDigest: "write sha256: followed by 64 hexadecimal digits",
    CheckpointId: "write the name of a checkpoint, namespace/name or cp_namespace.name",
    EgressHost: "write a host in lower case, with an optional port, such as api.example.com:8443 or *.example.com",
    ObjectName: "use lower-case letters, digits, - and ., beginning and ending with a letter or digit",
    Namespace: "use lower-case letters, digits and -, beginning and ending with a letter or digit",
    S3Path: "write s3://bucket/path",
}
"""Hints that describe valid values, by the type of the field."""
OTHER_FORMS = {
    UTC_TIME: "write a time in UTC as in 2027-01-31T12:00:00Z",
    LABEL: "use lower-case letters, digits and -, beginning with a letter and ending with a letter or digit",
    r"^https?://[^\s]+$": "write a URL with http:// or https://, without spaces",
    r"^(hf|s3|pvc|oci)://[^/\s]+(/[^\s]*)?$": "write hf://owner/name@COMMIT, s3://bucket/path, pvc://claim/path or "
    r"oci://…",
    r"^[^\s]+$": "remove the spaces",
    r"^/[^:]*$": "write an absolute path without :",
    r"^[A-Za-z]+$": "use letters only",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "use letters, digits and _, not starting with a digit",
    r"^[-._a-zA-Z0-9]+$": "use letters, digits and . _ -",
    r"^(prompt|completion|answer|error|info(\.[A-Za-z0-9_-]+)*)$": (
        "write prompt, completion, answer, error, info or a key below info, such as info.name"
    ),
    r"^[+-]?([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$": (
        "write a Kubernetes quantity, such as 500m, 4 or 16Gi"
    ),
}
"""Hints that describe valid values, by the pattern of the field."""
MAX_COMPARED = 100
"""Number of characters of a name that are compared with known names. Bounds the time of a suggestion."""
_PYDANTIC_ERRORS = frozenset(typing.get_args(ErrorType))
"""Types of pydantic's own errors, whose messages do not quote the value."""


@dataclass(frozen=True)
class FieldProblem:
    """Path of an invalid field, and a message about its value."""

    path: str
    """Path of the field: `spec.env[0].id` in an object, `env[0].id` in a TOML file."""
    message: str
    """Description of the problem and what to change."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def path_of(location: Iterable[str | int]) -> str:
    """Return `spec.env[0].id` for `('spec', 'env', 0, 'id')`. pydantic's markers such as `[key]` are omitted."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return path


def problems(error: ValidationError, model: type[BaseModel], *, by_name: bool = False) -> list[FieldProblem]:
    """Return the first MAX_FAULTS problems from a failed validation of `model`.

    Messages about the first MAX_SUGGESTIONS unknown fields suggest a similar field. `by_name` gives snake_case names,
    for input that was validated by field names (TOML).
    """
    field_problems: list[FieldProblem] = []
    unknown = 0
    for detail in error.errors(include_url=False)[:MAX_FAULTS]:
        location = tuple(
            part for piece in detail["loc"] for part in (piece.split(".") if isinstance(piece, str) else [piece])
        )
        unknown += detail["type"] == "extra_forbidden"
        field_problems.append(_problem(detail, location, model, by_name, suggests=unknown <= MAX_SUGGESTIONS))
    return field_problems


def unknown_field(name: str, known: Iterable[str], *, suggests: bool = True) -> str:
    """Return the message for a field that does not exist. `suggests` adds the name of a similar field."""
    if not suggests:
        return UNKNOWN
    names = {k.lower(): k for k in known}
    wanted = name[:MAX_COMPARED].lower()
    if close := difflib.get_close_matches(wanted, names, n=1, cutoff=0.6):
        return f"unknown field; did you mean {names[close[0]]}?"
    near = difflib.get_close_matches(wanted, names, n=MAX_NEAR, cutoff=0.4)
    return f"{UNKNOWN} (nearest: {', '.join(names[key] for key in near)})" if near else UNKNOWN


def form_of(pattern: str) -> str:
    """Return the hint that describes valid values of a field with this pattern."""
    return _forms().get(pattern, "see the field's description")


@cache
def _forms() -> dict[str, str]:
    forms = dict(OTHER_FORMS)
    for kind, form in FORMS.items():
        for limit in typing.get_args(kind)[1].metadata:
            if pattern := getattr(limit, "pattern", None):
                forms[pattern] = form
    return forms


def fields_at(model: type[BaseModel], location: Iterable[str | int], *, by_name: bool) -> list[str]:
    """Return the names of the fields of the section at a location, or an empty list if the section is free-form."""
    section: Any = model
    for part in location:
        if isinstance(part, int):
            continue
        field = next((f for n, f in section.model_fields.items() if part in (n, f.alias)), None)
        section = _model_in(field.annotation) if field else None
        if section is None:
            return []
    return [name if by_name else (field.alias or name) for name, field in section.model_fields.items()]


def _problem(
    detail: ErrorDetails, location: tuple[str | int, ...], model: type[BaseModel], by_name: bool, *, suggests: bool
) -> FieldProblem:
    message = re.sub(r"^Input should be|^\w+ should have", _must, detail["msg"].replace(" after validation", ""))
    if detail["type"] == "extra_forbidden":
        known = fields_at(model, location[:-1], by_name=by_name)
        message = unknown_field(str(location[-1]), known, suggests=suggests)
    elif detail["type"] == "missing":
        message = "is required"
    elif detail["type"] == "string_pattern_mismatch":
        message = f"{_short_repr(detail['input'])} has the wrong format: {form_of(detail['ctx']['pattern'])}"
    elif detail["type"] in _PYDANTIC_ERRORS:
        # Messages about the length of a list or a map contain the actual length instead of the value.
        actual = "" if "actual_length" in detail.get("ctx", {}) else f", not {_short_repr(detail['input'])}"
        message = f"{message[0].lower()}{message[1:]}{actual}{_reason_of_limit(model, location)}"
    if by_name:
        # pydantic and the rules use camelCase. An unknown key is kept as written in the file.
        as_written = len(location) - 1 if detail["type"] == "extra_forbidden" else len(location)
        location = tuple(
            snake(part) if isinstance(part, str) and index < as_written else part for index, part in enumerate(location)
        )
        message = snake_words(message)
    return FieldProblem(path_of(location), message)


def _must(beginning: re.Match[str]) -> str:
    return "must be" if beginning[0].endswith("be") else "must have"


def _reason_of_limit(model: type[BaseModel], location: Iterable[str | int]) -> str:
    """Return the reason for a field's limit if its description gives one: "Must be above 0: REASON."."""
    section: Any = model
    field = None
    for part in location:
        if section is not None and not isinstance(part, int):
            field = next((f for n, f in section.model_fields.items() if part in (n, f.alias)), None)
            section = _model_in(field.annotation) if field else None
    found = re.search(r"Must be above \d+: ([^.]+)\.", (field.description or "") if field else "")
    return f": {found[1]}" if found else ""


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        if model := _model_in(argument):
            return model
    return None
