"""The operator is killed at every single call that it makes in the whole life of a run, each kill a scenario.

The undisturbed life says which calls there are. A read can be interrupted in one way only; a write either did not
arrive, or it arrived and nobody was there any more to hear so.
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
        earlier: Call | None = None
        for call in calls(name):
            last, earlier = earlier, call
            if name == "retain" and not call.writes:
                # The reads are those of the other life.
                continue
            where = f"{call.index:04d}-{call.name}"
            if last is None or not (call.writes and last.writes):
                # Between two writes in a row one kill is enough: before the second is after the first.
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
