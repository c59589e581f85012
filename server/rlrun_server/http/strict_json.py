"""JSON, YAML and TOML from clients, without input that parsers read differently or that is expensive to parse."""

import json
import re
import tomllib
from collections.abc import Hashable
from typing import Any

import yaml

MAX_DEPTH = 32
MAX_NODES = 5000
"""Values and keys of a YAML document, whose parser needs up to 100 µs for each. The text of a run has some hundreds."""
MAX_BITS = 1024
"""Bits of an integer. Larger ones are larger than all floating-point numbers."""
TOML_TEXT = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?'
    r"|'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""Strings and comments. One that does not end is an error of the parser, which reads no further than to it."""
TOML_SEPARATOR = re.compile(r"[=,{}\[\]\n]")


class TextInvalid(ValueError):
    """The text cannot be read. The message is for users."""


def read_json(body: bytes) -> Any:
    """Return the value. Raises TextInvalid, also for NaN, names that are there twice and more than MAX_DEPTH levels."""
    try:
        value = json.loads(_text(body), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except TextInvalid:
        raise
    except json.JSONDecodeError as error:
        raise TextInvalid(f"The body is not JSON: {error}.") from None
    except ValueError:
        raise _too_long() from None
    except RecursionError:
        raise _too_deep() from None
    return _check_value(value)


def read_yaml(body: bytes) -> Any:
    """Return the value of the one document. Raises TextInvalid, also for aliases, which can make it huge."""
    try:
        value = yaml.load(_text(body), Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise TextInvalid(f"The body is not YAML: {error}.") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, TextInvalid):
            raise
        raise TextInvalid("The body is not YAML: it is nested too deep, or a value is out of range.") from None
    return _check_value(value)


def check_toml(body: bytes) -> str:
    """Return the text, which is TOML of bounded depth. Raises TextInvalid."""
    text = _text(body)
    # The parser needs time and memory that grow with the square of the parts of a key.
    if any(part.count(".") > MAX_DEPTH for part in TOML_SEPARATOR.split(TOML_TEXT.sub("", text))):
        raise _too_deep()
    try:
        _check_value(tomllib.loads(text))
    except TextInvalid:
        raise
    except tomllib.TOMLDecodeError as error:
        raise TextInvalid(f"The body is not TOML: {error}.") from None
    except ValueError:
        raise _too_long() from None
    except RecursionError:
        raise _too_deep() from None
    return text


class _StrictLoader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Refuse aliases, and more than MAX_NODES nodes, before the rest of the text is read."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise TextInvalid(f"The body has more than {MAX_NODES} values and keys in YAML. Send it as JSON.")
        if self.check_event(yaml.AliasEvent):
            raise TextInvalid("The body has a YAML alias (*). Write the value again in its place.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a key that is repeated or not a string."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, str):
                raise TextInvalid(f"The body has the key {key!r}, which is not a string. Put it into quotes.")
            if key in seen:
                raise _twice(key)
            seen.add(key)
        return super().construct_mapping(node, deep=True)


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TextInvalid(f"The body is not UTF-8: {error.reason} at byte {error.start}.") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _twice(name)
            seen.add(name)
    return unique


def _check_value(content: Any) -> Any:
    """Return the value if all of it can be sent to the API server as JSON. Raises TextInvalid."""
    level: list[Any] = [content]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return content
    raise _too_deep()


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            message = "The body has half of a surrogate pair (\\ud800 to \\udfff), which UTF-8 cannot express."
            raise TextInvalid(message) from None
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise _too_long()
    elif isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        _refuse_constant(str(value))
    elif not isinstance(value, bool | int | float | None):
        raise TextInvalid(f"The body has a value of type {type(value).__name__}. Put it into quotes.")
    return []


def _refuse_constant(text: str) -> Any:
    raise TextInvalid(f"The body has {text}, which is no number in JSON.")


def _twice(name: str) -> TextInvalid:
    return TextInvalid(f"The body has {name[:60]!r} twice in one object. Remove one of them.")


def _too_deep() -> TextInvalid:
    return TextInvalid(f"The body is nested deeper than {MAX_DEPTH} levels.")


def _too_long() -> TextInvalid:
    return TextInvalid("The body has an integer with too many digits. Write a smaller one.")
