"""Parsers of YAML and TOML from clients. They reject ambiguous input, and input that is expensive to parse."""

import re
import tomllib
from collections.abc import Hashable
from typing import Any

import yaml
from rlrun.api.base.received import BODY, MAX_DEPTH, InputInvalid, check_value, decode, named_twice

MAX_NODES = 5000
"""Maximum number of values and keys of a YAML document, each of which takes up to 100 µs. A run has a few hundred."""
MAX_PARTS = 50_000
"""Maximum number of values, keys and lines of a TOML document, each of which takes a few microseconds."""
TOML_TEXT = re.compile(
    r'"""(?:\\.|[^\\])*?(?:"{3,5}|\Z)|"(?:\\.|[^"\\\n])*"?'
    r"|'''.*?(?:'{3,5}|\Z)|'[^'\n]*'?|#[^\n]*",
    re.DOTALL,
)
"""Pattern of strings and comments. An unterminated string matches, too, because the parser stops there anyway."""
TOML_SEPARATOR = re.compile(r"[=,{}\[\]\n]")


def read_yaml(body: bytes) -> Any:
    """Parse a YAML document. Raises InputInvalid, including for aliases, which could expand to a huge document."""
    try:
        value = yaml.load(decode(body), Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise InputInvalid(BODY, f"is not YAML: {error}.") from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, InputInvalid):
            raise
        raise InputInvalid(BODY, "cannot be read as YAML: nesting is too deep, or a value is out of range.") from None
    return check_value(value)


def check_toml(body: bytes) -> str:
    """Check that the body is TOML of limited size and depth, and return the text. Raises InputInvalid."""
    text = decode(body)
    parts = TOML_SEPARATOR.split(TOML_TEXT.sub("", text))
    if len(parts) > MAX_PARTS:
        raise InputInvalid(BODY, f"has more than {MAX_PARTS} values, keys and lines in TOML. Send it as JSON.")
    # The parser's time and memory grow with the square of the number of parts in a key.
    if any(part.count(".") > MAX_DEPTH for part in parts):
        raise InputInvalid(BODY, f"is nested deeper than {MAX_DEPTH} levels.")
    try:
        check_value(tomllib.loads(text))
    except InputInvalid:
        raise
    except tomllib.TOMLDecodeError as error:
        raise InputInvalid(BODY, f"is not TOML: {error}.") from None
    except ValueError:
        raise InputInvalid(BODY, "has an integer with too many digits. Write a smaller one.") from None
    except RecursionError:
        raise InputInvalid(BODY, f"is nested deeper than {MAX_DEPTH} levels.") from None
    return text


class _StrictLoader(yaml.SafeLoader):
    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Reject aliases and more than MAX_NODES nodes before the rest of the text is parsed."""
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise InputInvalid(BODY, f"has more than {MAX_NODES} values and keys in YAML. Send it as JSON.")
        if self.check_event(yaml.AliasEvent):
            raise InputInvalid(BODY, "has a YAML alias (*). Write the value again in its place.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Reject a key that is repeated or is not a string."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        seen: set[str] = set()
        for key in keys:
            if not isinstance(key, str):
                raise InputInvalid(BODY, f"has the key {key!r}, which is not a string. Put it into quotes.")
            if key in seen:
                raise InputInvalid(BODY, named_twice(key))
            seen.add(key)
        return super().construct_mapping(node, deep=True)
