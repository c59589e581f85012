"""Objects, references and Events, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]


@dataclass(frozen=True)
class Ref:
    """An object to delete; the uid makes sure that nothing younger of the same name is hit."""

    kind: str
    name: str
    uid: str | None = None

    @classmethod
    def of(cls, obj: Mapping[str, Any]) -> "Ref":
        """The reference to an object that was observed."""
        return cls(obj["kind"], obj["metadata"]["name"], obj["metadata"].get("uid"))


@dataclass(frozen=True)
class Note:
    """A Kubernetes Event to be."""

    reason: str
    message: str
    warning: bool = False
