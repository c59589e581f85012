"""The operator is killed at every instant of the whole life of a run that differs from the others, each a scenario.

The undisturbed life says which calls there are. What a kill leaves is the world as it then is, because all that the
operator knew dies with it. Within one tick the world changes by the operator's writes alone: a kill before any call is
the same as one after the write before it, or, where there is none, as one before the first call of that tick. Two kills
that leave the same world, by its fingerprint, are one scenario: the number of scenarios is the number of such worlds.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.chaos.invariants import Expected
from tests.chaos.scenario import Scenario, require_strike
from tests.chaos.unit.faults import Call, CrashAt, Rule
from tests.chaos.unit.life import Life, check_end, restart_and_pause, usual_events

RESTART = {"rules": [{"action": "RestartRun", "exitCodes": [9]}]}

LIVES: dict[str, dict[str, Any]] = {
    "delete": {"artifactPolicy": "Delete", "failurePolicy": RESTART},
    "retain": {"failurePolicy": RESTART},
}
"""Name of the life and what is special in its spec."""


def full_life(name: str, rule: Rule | None = None) -> Life:
    """Create, start, crash and restart, run, pause, resume, complete, delete. It is not played yet."""
    return Life(spec=LIVES[name], rule=rule or Rule(), events=usual_events(*restart_and_pause()))


def check_full_life(life: Life) -> None:
    """The end of such a life: one crash of the trainer, which restarts the run, and one pause, whatever else broke."""
    check_end(life, {"Completed": ["Completed"]}, WHOLE)


WHOLE = Expected(restarts=2, run_restarts=1, attempts=3)
"""The trainer's container and the run have restarted once each; the third attempt follows the pause."""


async def undisturbed(name: str) -> Life:
    """Play a life without faults, to which the other lives are compared."""
    life = full_life(name)
    await life.live()
    check_full_life(life)
    return life


@dataclass(frozen=True)
class Kill:
    """One instant at which the operator may die, and what the world is then."""

    call: Call
    after_effect: bool
    world: str
    """Fingerprint."""

    @property
    def name(self) -> str:
        """The number and name of the call."""
        return f"{self.call.index:04d}-{self.call.name}"


@dataclass
class Recorder(Rule):
    """Breaks nothing and takes fingerprints: before the first call of each tick and after writes, or at all calls."""

    all_calls: bool = False
    life: Life | None = None
    kills: list[Kill] = field(default_factory=list)
    tick: int = -1

    def before(self, call: Call) -> None:
        if self.all_calls or call.tick != self.tick:
            self._record(call, False)
        self.tick = call.tick

    def after(self, call: Call) -> None:
        if self.all_calls or call.writes:
            self._record(call, True)

    def _record(self, call: Call, after_effect: bool) -> None:
        if self.life is not None:
            self.kills.append(Kill(call, after_effect, self.life.fingerprint()))


def possible_kills(name: str, *, all_calls: bool = False) -> list[Kill]:
    """Every instant of an undisturbed life; without `all_calls` not those before and after reads."""
    recorder = Recorder(all_calls)
    life = recorder.life = full_life(name, recorder)
    asyncio.run(life.live())
    return recorder.kills


@cache
def distinct_kills(name: str) -> list[Kill]:
    """The first of all instants that leave the same world."""
    first: dict[str, Kill] = {}
    for kill in possible_kills(name):
        first.setdefault(kill.world, kill)
    return list(first.values())


def undisturbed_scenarios() -> Iterator[Scenario]:
    """The lives in which nothing breaks."""
    for name in LIVES:
        yield Scenario(f"undisturbed/{name}", "unit", alone(name))


def scenarios() -> Iterator[Scenario]:
    """The undisturbed lives, and all kills."""
    yield from undisturbed_scenarios()
    for name in LIVES:
        for kill in distinct_kills(name):
            when = "after" if kill.after_effect else "before"
            rule = CrashAt(kill.call.index, kill.after_effect)
            yield Scenario(f"operator-killed-{when}-call-{name}/{kill.name}", "unit", killed(name, rule))


def alone(name: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which nothing breaks."""

    async def play(_: Any) -> None:
        await undisturbed(name)

    return play


def killed(name: str, rule: CrashAt) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which the operator dies once."""

    async def play(_: Any) -> None:
        life = full_life(name, CrashAt(rule.index, rule.after_effect))
        await life.live()
        check_full_life(life)
        require_strike(life.crashes == 1, f"the operator dies at call {rule.index}")

    return play
