"""JSON messages between the processes of a trainer.

A message names its class, and its content is validated against it: nothing that a process receives is unpickled.
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
    """A ProblemError, as part of a message."""

    status: int
    problem: Problem

    @classmethod
    def of(cls, error: ProblemError) -> "Refusal":
        """Return the refusal of an error."""
        return cls(error.status, error.problem)

    @property
    def error(self) -> ProblemError:
        """The error to raise."""
        return ProblemError(self.status, self.problem)


class MessageFormat(Generic[T]):
    """Format of the messages of some dataclasses: the name of the class, a line feed, and the fields as JSON."""

    def __init__(self, *classes: type[T]) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {each.__name__: TypeAdapter(each) for each in classes}

    def encode(self, value: T) -> bytes:
        """Return the message of a value."""
        return type(value).__name__.encode() + b"\n" + to_json(value, by_alias=True)

    def decode(self, message: bytes) -> T:
        """Return the value of a message. Raises RuntimeError if it is not of this format."""
        name, _, fields = message.partition(b"\n")
        adapter = self._adapters.get(name.decode(errors="replace"))
        if adapter is None:
            raise RuntimeError(f"The message of another process begins with {name[:40]!r} and is of no known class.")
        try:
            value: T = adapter.validate_json(fields)
        except ValueError as error:
            raise RuntimeError(f"The {name.decode()} of another process is not valid: {error}") from error
        return value
