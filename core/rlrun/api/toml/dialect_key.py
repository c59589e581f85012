"""Rows of the tables that map keys in other trainers' TOML files to this schema."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DialectKey:
    """Row for a key in another trainer's TOML file. It also applies to keys below this key that have no row of their
    own.
    """

    key: str
    """Path without list indexes: `env.weight`. A part `*` matches any name."""
    equivalent: str | None = None
    """Path of the equivalent key in this schema, with `[]` after a list: `env[].weight`. None if this schema has no
    equivalent.
    """
    remark: str = ""
    """Difference in meaning. For a key without an equivalent, the reason and what to use instead."""
    is_ignored: bool = False
    """True if the key is allowed but has no effect. The reader then reports the remark as a note."""
    is_inverted: bool = False
    """True if the equivalent is a boolean with the opposite value."""
    values: Mapping[str, Any] | None = None
    """Mapping from values in the file to values in this schema. Other values are refused with the remark. None keeps
    all values.
    """
    elsewhere: Mapping[str, tuple[str, Any]] | None = None
    """Values in the file that set a key other than `equivalent`, mapped to the path and value of that key."""
    accepted: tuple[Any, ...] = ()
    """Values that describe what every run does anyway. They are dropped without a note."""
    convert: Callable[[float], float] | None = None
    """Function that converts the number. A note reports the result."""
    divisor: str | None = None
    """Path of the key in this schema by which the value is divided."""
    same_as: str | None = None
    """Path of a key in this schema that must have the same value. Any other value is refused, unless the row has an
    `equivalent` and the file does not set the key in this schema: then the value is used for the equivalent.
    """
    is_default: bool = False
    """True if this key is used only when the file does not set the equivalent. If the file sets both, the equivalent
    keeps its value and this key stays at its own path, untranslated.
    """
    is_for_text: bool = False
    """True if the row is skipped when the key's value is a table, which is already this schema's own section."""


def same(*keys: str) -> Iterator[DialectKey]:
    """Yield rows for keys whose path is the same in this schema."""
    return (DialectKey(key, key) for key in keys)


def ignore(remark: str, *keys: str) -> Iterator[DialectKey]:
    """Yield rows for keys that have no effect, all for the same reason."""
    return (DialectKey(key, None, remark, is_ignored=True) for key in keys)


def refuse(remark: str, *keys: str) -> Iterator[DialectKey]:
    """Yield rows for keys that are refused, all for the same reason."""
    return (DialectKey(key, None, remark) for key in keys)


def below(section: str, target: str, *keys: str) -> Iterator[DialectKey]:
    """Yield rows for keys that keep their names but are in a different section of this schema."""
    return (DialectKey(f"{section}.{key}", f"{target}.{key}") for key in keys)
