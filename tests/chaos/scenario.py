"""One scenario: a fault is injected, and the run has to recover from it.

A scenario is a function that plays a run on the stage of its level and returns when all invariants hold at the
end. It raises `Lost` with the violated invariants, `Hung` if the run did not end, and `NotStruck` if all
invariants hold but the fault was never injected: such a result proves nothing. `NotReached` is the same where the fault
may be missed: at one of the last positions of a life that is not always equally long.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

Level = Literal["unit", "apiserver", "e2e"]
LEVELS: tuple[Level, ...] = ("unit", "apiserver", "e2e")


class Outcome(StrEnum):
    """How a scenario came out; anything but survived and not_reached is a failure."""

    survived = "survived"
    lost = "lost"
    """An invariant does not hold."""
    hung = "hung"
    """It did not end before its deadline."""
    not_struck = "not struck"
    """Everything holds, but the fault of the scenario never happened."""
    not_reached = "not reached"
    """Everything holds, and the life ended before the position of the fault, which is one of those that it need not
    reach. No failure, and not counted as survived."""
    broken = "broken"
    """An unexpected exception: a mistake in the project or in the scenario."""


class Lost(Exception):
    """An invariant does not hold; the message says which, and how."""


class NotStruck(Exception):
    """The fault of the scenario was not injected; the message says which."""


class NotReached(Exception):
    """The life was too short for the position of the fault, which is among its last few; the message says which."""


class Hung(BaseException):
    """The scenario did not end in time. Not an Exception, so that no code under test swallows it."""


@dataclass(frozen=True)
class Scenario:
    """A reproducible scenario: the same name and seed inject the same faults."""

    name: str
    level: Level
    play: Callable[[Any], Awaitable[None] | None]
    """Takes the stage of its level (see `tests.chaos.stages`)."""
    seed: int = 0
    seconds: float = 20.0
    """Deadline on the wall clock."""


@dataclass(frozen=True)
class Origin:
    """One call of `python -m tests.chaos`."""

    commit: str
    date: str
    machine: str
    seed: int


@dataclass(frozen=True)
class Result:
    """Result of a scenario."""

    name: str
    level: Level
    seed: int
    outcome: Outcome
    detail: str = ""
    """Empty where it survived."""
    seconds: float = 0.0
    origin: Origin | None = None
    """The call that has played it. None: not recorded."""

    def to_json(self) -> dict[str, Any]:
        """One entry of build/chaos.json, without its origin."""
        entry = asdict(self) | {"outcome": self.outcome.value, "seconds": round(self.seconds, 3)}
        del entry["origin"]
        return entry


def require(violations: Iterable[str]) -> None:
    """Raises Lost with all of them, if there are any."""
    found = list(violations)
    if found:
        raise Lost("; ".join(found))


def require_strike(struck: bool, fault: str, *, may_be_missed: bool = False) -> None:
    """Raises NotStruck if the fault was not injected. Call it after the invariants, because a violation says more.

    With `may_be_missed` it raises NotReached instead.
    """
    if not struck and may_be_missed:
        raise NotReached(f"{fault}: this life ended before, as it may at one of the last positions")
    if not struck:
        raise NotStruck(f"{fault}: this never happened, so the scenario shows nothing")
