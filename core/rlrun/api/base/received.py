"""Parser of all JSON that a program receives: request and response bodies, S3 files, ConfigMaps, file headers.

The parser checks the size and the number of values before it creates an object, so every input has bounded cost; only
`read_stored` relies on the API server's limits. An error lists only the first faults. The error holds no reference to
the input or to other exceptions, so storing it is cheap.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

MAX_DEPTH = 32
STORED_DEPTH = 100
"""Maximum depth of an object from the API server that pydantic's parser rejects. Deeper values are replaced by null.
The API server stores up to 10,000 levels.
"""
MAX_BITS = 1024
"""Maximum number of bits of an integer. Larger integers do not fit into a float."""
MAX_FAULTS = 100
"""Maximum number of faults that an error lists."""
MAX_LISTED = 20_000
"""Maximum number of pydantic errors for which details are listed. Above it, only their number is reported, because
pydantic creates the details of all errors at once.
"""
MAX_NAME = 60
"""Maximum number of characters of a name that an error quotes."""
BODY = "The body"
_BRACKETS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
"""Pattern of strings (which may contain brackets) and brackets."""
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)

M = TypeVar("M", bound=BaseModel)
Location = tuple[str | int, ...]


@dataclass(frozen=True)
class InputLimits:
    """Limits of one JSON text."""

    size: int = 1024**2
    """Maximum size in bytes."""
    values: int = 20_000
    """Maximum number of values. Each invalid value costs up to a kilobyte of memory and a few microseconds."""


DEFAULT_LIMITS = InputLimits()
ENGINE_LIMITS = InputLimits(size=64 * 1024**2, values=4_000_000)
"""Limits of a response from an inference engine, which has several values per token."""


@dataclass(frozen=True)
class Fault:
    """Field that does not match the model. Contains no value from the input."""

    location: Location
    message: str


class InputInvalid(ValueError):
    """Raised for input that cannot be parsed. The message is for users."""

    def __init__(self, source: str, cause: str, unquoted: str = "", faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(f"{source} {cause}")
        self.cause = cause
        self.unquoted = unquoted or cause
        """Cause of the error, without any text from the input."""
        self.faults = faults
        """First fields that do not match the model. Empty if the input is not JSON or exceeds a limit."""


class _Refused(Exception):
    """Raised inside the parser for a rejected value. Contains the cause, and the cause without text from the input."""

    def __init__(self, cause: str, unquoted: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.unquoted = unquoted


def limits_of(model: type[BaseModel]) -> InputLimits:
    """Return the limits of a model's JSON text: its attribute `wire_limits`, or the default."""
    limits: InputLimits = getattr(model, "wire_limits", DEFAULT_LIMITS)
    return limits


def parse(
    model: type[M], data: bytes | str, source: str = BODY, *, context: Any = None, is_user_input: bool = False
) -> M:
    """Parse a JSON text as `model`, within the model's limits.

    `source` begins the message of an error. `context` is the validation context of pydantic. `is_user_input` applies
    the strict checks of `read_json`. Raises InputInvalid.
    """
    limits = limits_of(model)
    try:
        if is_user_input:
            return model.model_validate(read_json(data, source, limits), context=context)
        text = _to_bytes(data)
        check_limits(text, limits, source)
        return model.model_validate_json(text, context=context)
    except ValidationError as error:
        invalid = to_input_invalid(error, f"{source} is not a valid {model.__name__} of this version")
    raise invalid


def to_input_invalid(error: ValidationError, beginning: str) -> InputInvalid:
    """Convert a validation error to an InputInvalid that quotes no input and has at most MAX_FAULTS faults."""
    count = error.error_count()
    if count > MAX_LISTED:
        cause = f"{count} values are invalid, too many to list. Check that the data has the right format."
        return InputInvalid(f"{beginning}:", cause)
    details = error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]
    faults = tuple(Fault(tuple(each["loc"]), each["msg"]) for each in details)
    place = ".".join(str(part)[:MAX_NAME] for part in faults[0].location)
    more = f" (and {count - 1} more)" if count > 1 else ""
    cause = f"{place}: {faults[0].message}" if place else faults[0].message
    return InputInvalid(f"{beginning}:", f"{cause}{more}", faults[0].message, faults)


def read_fast(
    data: bytes | str, source: str = BODY, limits: InputLimits = DEFAULT_LIMITS, *, allows_nan: bool = False
) -> Any:
    """Parse a JSON text written by a program. If a name occurs twice in an object, the last value counts.

    Raises InputInvalid if the text is not JSON or exceeds a limit. NaN and infinities are not JSON unless `allows_nan`.
    """
    text = _to_bytes(data)
    check_limits(text, limits, source)
    try:
        return from_json(text, allow_inf_nan=allows_nan, cache_strings="keys")
    except ValueError as error:
        cause = f"is not JSON: {str(error)[:200]}."
    raise InputInvalid(source, cause)


def read_json(data: bytes | str, source: str = BODY, limits: InputLimits = DEFAULT_LIMITS) -> Any:
    """Parse a JSON text written by a person or an unknown program.

    Raises InputInvalid if the text is not JSON or exceeds a limit, or has NaN, an infinity, an integer of more than
    MAX_BITS bits, a duplicate name, half of a surrogate pair, or more than MAX_DEPTH levels.
    """
    text = _to_bytes(data)
    check_limits(text, limits, source)
    decoded = decode(text, source)
    try:
        value = json.loads(decoded, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        _check_levels(value)
        return value
    except _Refused as refused:
        cause, unquoted = refused.cause, refused.unquoted
    except json.JSONDecodeError as error:
        cause, unquoted = f"is not JSON: {error}.", ""
    except RecursionError:
        cause, unquoted = _TOO_DEEP, ""
    except ValueError:
        cause, unquoted = _TOO_LONG, ""
    raise InputInvalid(source, cause, unquoted)


def read_stored(data: bytes | str) -> Any:
    """Parse a JSON text from the API server, which stores objects of many users and has its own limits.

    A single object cannot make a list unreadable: if pydantic's parser rejects the text, values nested deeper than
    STORED_DEPTH are replaced by null. Raises ValueError if the text is not JSON.
    """
    text = _to_bytes(data)
    try:
        return from_json(text, cache_strings="keys")
    except ValueError:
        return json.loads(_cut(text))


def check_value(value: Any, source: str = BODY) -> Any:
    """Return a value from another parser unchanged. Raises InputInvalid if a part of it cannot be sent as JSON, or is
    nested deeper than MAX_DEPTH.
    """
    try:
        _check_levels(value)
        return value
    except _Refused as refused:
        cause, unquoted = refused.cause, refused.unquoted
    raise InputInvalid(source, cause, unquoted)


def decode(data: bytes, source: str = BODY) -> str:
    """Decode UTF-8, with or without a byte order mark. Raises InputInvalid for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        cause = f"is not UTF-8: {error.reason} at byte {error.start}."
    raise InputInvalid(source, cause)


def named_twice(name: str) -> str:
    """Return the error text for a name that occurs twice in one object."""
    return f"has {name[:MAX_NAME]!r} twice in one object. Remove one."


_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels."
_TOO_LONG = "has an integer with too many digits. Write a smaller one."


def _to_bytes(data: bytes | str) -> bytes:
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data


def check_limits(text: bytes, limits: InputLimits, source: str) -> None:
    """Raise InputInvalid for a JSON text with more bytes or values than the limits allow.

    Counting commas and brackets is much faster than parsing. Commas and brackets inside strings are excluded only if
    the first count exceeds the limit.
    """
    if len(text) > limits.size:
        raise InputInvalid(source, f"is larger than {limits.size} bytes.")
    # A value and its separator have at least two characters.
    if len(text) // 2 < limits.values or _most_values(text) <= limits.values:
        return
    if _most_values(_STRING.sub(b"", text)) > limits.values:
        raise InputInvalid(source, f"has more than {limits.values} values. Send fewer.")


def _most_values(text: bytes) -> int:
    return 1 + text.count(b",") + text.count(b"[") + text.count(b"{")


def _cut(text: bytes) -> bytes:
    kept, begin, depth = list[bytes](), 0, 0
    for found in _BRACKETS.finditer(text):
        if found[0] in (b"[", b"{"):
            depth += 1
            if depth == STORED_DEPTH + 1:
                kept += [text[begin : found.start()], b"null"]
        elif found[0] in (b"]", b"}"):
            if depth == STORED_DEPTH + 1:
                begin = found.end()
            depth -= 1
    if depth > 0:
        raise ValueError("the text ends within an object or a list")
    return b"".join([*kept, text[begin:]])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Refused(named_twice(name), "has a duplicate name in one object.")
            seen.add(name)
    return unique


def _check_levels(content: Any) -> None:
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise _Refused(_TOO_DEEP)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        if not value.isascii():
            _check_surrogates(value)
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _Refused(_TOO_LONG)
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        _refuse_constant(str(value))
    elif not isinstance(value, bool | int | float | None):
        raise _Refused(f"has a value of type {type(value).__name__}. Write it as a string.")
    return []


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return
    raise _Refused("has half of a surrogate pair (\\ud800 to \\udfff), which UTF-8 cannot express.")


def _refuse_constant(text: str) -> NoReturn:
    raise _Refused(f"has {text}, which is not a number in JSON.")
