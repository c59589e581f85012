"""JSON messages between the processes of a trainer.

A message names its class, and its content is validated against that class. No received data is unpickled.
"""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from pydantic_core import to_json
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError

T = TypeVar("T")


@dataclass(frozen=True)
class Refusal:
    """ProblemError as part of a message."""

    status: int
    problem: Problem

    @classmethod
    def of(cls, error: ProblemError) -> "Refusal":
        """Convert an error to a message."""
        return cls(error.status, error.problem)

    @property
    def error(self) -> ProblemError:
        """Error to raise for this message."""
        return ProblemError(self.status, self.problem)


class MessageFormat(Generic[T]):
    """Format for messages of certain dataclasses: the name of the class, a line feed, and the fields as JSON."""

    def __init__(self, *classes: type[T]) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {each.__name__: TypeAdapter(each) for each in classes}

    def encode(self, value: T) -> bytes:
        """Encode a value as a message, without the fields that its class names in `local_fields`."""
        local: frozenset[str] = getattr(value, "local_fields", frozenset())
        return type(value).__name__.encode() + b"\n" + to_json(value, by_alias=True, exclude=set(local))

    def decode(self, message: bytes) -> T:
        """Decode a message. Raises RuntimeError if it does not have this format."""
        name, _, fields = message.partition(b"\n")
        adapter = self._adapters.get(name.decode(errors="replace"))
        if adapter is None:
            raise RuntimeError(f"A message from another process starts with {name[:40]!r}, which is not a known class.")
        try:
            value: T = adapter.validate_json(fields)
        except ValueError as error:
            raise RuntimeError(f"The message {name.decode()} from another process is not valid: {error}") from error
        return value
