"""Checks of a value, each a single expression."""

from collections.abc import Container
from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return the value, which is there."""
    assert value is not None
    return value


def lacks(text: Container[str], *parts: str) -> list[str]:
    """Return the parts that a text does not have."""
    return [part for part in parts if part not in text]
