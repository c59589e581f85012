"""The operator is killed at every instant of the whole life of a run that differs from the others, each a scenario.

The undisturbed life says which calls there are. What a kill leaves is the world as it then is, because all that the
operator knew dies with it. Within one tick the world changes by the operator's writes alone: a kill before any call is
the same as one after the write before it, or, where there is none, as one before the first call of that tick.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.chaos.scenario import Lost, Scenario
from tests.chaos.unit.faults import Call, CrashAt, Rule
from tests.chaos.unit.life import Life, check_end, restart_and_pause, usual_events

RESTART = {"rules": [{"action": "RestartRun", "exitCodes": [9]}]}

LIVES: dict[str, dict[str, Any]] = {
    "delete": {"artifactPolicy": "Delete", "failurePolicy": RESTART},
    "retain": {"failurePolicy": RESTART},
}
"""Name of the life and what is special in its spec."""


def full_life(name: str, rule: Rule | None = None) -> Life:
    """Create, start, crash and restart, run, pause, resume, complete, delete; nothing lived yet."""
    return Life(spec=LIVES[name], rule=rule or Rule(), events=usual_events(*restart_and_pause()))


async def undisturbed(name: str) -> Life:
    """The life in which nothing breaks; the measure for the others."""
    life = full_life(name)
    await life.live()
    check_end(life, {"Completed": ["Completed"]}, attempts=3)
    return life


def scenarios(calls: Callable[[str], list[Call]]) -> Iterator[Scenario]:
    """All kills; `calls` gives the calls of an undisturbed life."""
    for name in LIVES:
        tick: int | None = None
        for call in calls(name):
            first, tick = call.tick != tick, call.tick
            where = f"{call.index:04d}-{call.name}"
            if first:
                yield Scenario(f"operator-killed-before-call-{name}/{where}", "unit", killed(name, CrashAt(call.index)))
            if call.writes:
                rule = CrashAt(call.index, after_effect=True)
                yield Scenario(f"operator-killed-after-call-{name}/{where}", "unit", killed(name, rule))


def killed(name: str, rule: CrashAt) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which the operator dies once."""

    async def play(_: Any) -> None:
        life = full_life(name, CrashAt(rule.index, rule.after_effect))
        await life.live()
        if life.crashes != 1:
            raise Lost(f"the operator was to die at call {rule.index} and died {life.crashes} times")
        # Whether the dying operator saw the trainer's crash decides nothing: the run restarts once for it.
        check_end(life, {"Completed": ["Completed"]}, restarts=(1, 3 * 4 + 4), attempts=3)

    return play
