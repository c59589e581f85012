"""The operator's clock jumps: by minutes and hours, back and forth.

What is asserted: a jump back fires nothing. A jump forth by less than a deadline fires nothing, also where it only
takes back an earlier one. A jump forth beyond a deadline may fire that deadline and no other, since to the
operator it is the same as having waited. No number in the status becomes negative, and a jump does not make anything be
deleted that a wait would have kept.
"""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from tests.chaos.invariants import Expected
from tests.chaos.scenario import Lost, Scenario, require_strike
from tests.chaos.unit.kills import RESTART, WHOLE
from tests.chaos.unit.life import After, Event, Life, check_end, restart_and_pause, usual_events

MINUTE, HOUR = 60.0, 3600.0
DEADLINES = {"startDeadlineSeconds": 1800, "stallDeadlineSeconds": 1800, "activeDeadlineSeconds": 86400}
WHEN: dict[str, Callable[[Life], bool]] = {
    "while-starting": lambda life: life.phase == "Pending" and life.now >= 3,
    "while-running": lambda life: life.phase == "Running" and life.step >= 2,
    "while-restarting": lambda life: life.status.get("reason") in ("Restarting", "WaitingForPreviousPods"),
    "while-suspended": lambda life: life.phase == "Suspended",
    "after-the-end": lambda life: life.phase == "Completed",
}


NOTHING = Expected(restarts=0, run_restarts=0, attempts=1)


def scenarios() -> Iterator[Scenario]:
    """Jumps by size and moment."""
    for moment in WHEN:
        for seconds in (-5 * MINUTE, -HOUR, -26 * HOUR, 5 * MINUTE, 20 * MINUTE):
            yield Scenario(f"clock-jumps/{moment}-{seconds / MINUTE:+.0f}-min", "unit", harmless(moment, [seconds]))
        yield Scenario(f"clock-jumps/{moment}-back-and-forth", "unit", harmless(moment, [-20 * MINUTE, 20 * MINUTE]))
    yield Scenario("clock-jumps/past-the-start-deadline", "unit", fires("while-starting", "StartDeadlineExceeded"))
    yield Scenario("clock-jumps/past-the-active-deadline", "unit", fires("while-running", "ActiveDeadlineExceeded"))
    yield Scenario("clock-jumps/ttl-is-kept", "unit", ttl())


def harmless(moment: str, jumps: list[float]) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The run completes as if the clock had been right."""

    async def play(_: Any) -> None:
        left = list(jumps)
        life = Life(spec=DEADLINES | {"failurePolicy": RESTART})
        jump = Event(
            WHEN[moment],
            lambda life: life.clock.advance(left.pop(0)),
            times=len(jumps),
        )
        pause = restart_and_pause()
        life.events = usual_events(jump, *pause)
        if moment == "after-the-end":
            # Its user waits some ticks, whatever the clock says.
            life.events[-1] = Event(After(WHEN[moment], 6), Life.delete)
        await life.live()
        check_end(life, {"Completed": ["Completed"]}, replace(WHOLE, steady_clock=False))
        require_strike(not left, f"the clock jumps {moment}")

    return play


def fires(moment: str, reason: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A jump beyond a deadline fails the run for that deadline, as a wait would have."""

    async def play(_: Any) -> None:
        life = Life(spec={"startDeadlineSeconds": 600, "activeDeadlineSeconds": 5 * 3600, "maxSteps": 50})
        far = 700.0 if moment == "while-starting" else 6 * HOUR
        if moment == "while-starting":
            life.kubelet.stopped = True
        jump = Event(WHEN[moment], lambda life: life.clock.advance(far))
        life.events = usual_events(jump)
        await life.live()
        check_end(life, {"Failed": [reason]}, replace(NOTHING, steady_clock=False))
        require_strike(jump.times == 0, f"the clock jumps {moment}")

    return play


def ttl() -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A clock that went back does not delete a finished run early; one that came back does it in time."""

    async def play(_: Any) -> None:
        life = Life(spec={"ttlSecondsAfterFinished": 3600})
        life.events = usual_events()[:1]
        await life.live(lambda life: life.phase == "Completed")
        for jump in (-2 * HOUR, 2 * HOUR, 50 * MINUTE):
            life.clock.advance(jump)
            await life.settle(3)
            if life.run is None:
                raise Lost(f"the run was deleted before its time, after a jump of {jump:.0f} s")
        life.look_back()
        life.clock.advance(15 * MINUTE)
        await life.live(lambda life: life.run is None and life.cluster_is_quiet())
        check_end(life, {"Completed": ["Completed"]}, replace(NOTHING, steady_clock=False))

    return play
