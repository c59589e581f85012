"""Pods die at random moments: their process, their object, their node. Every role, seeded.

A trainer also dies after each write of its uploads: the operator sees every state of a folder that is not whole.

None of this is a reason to fail: evictions and deletions do not count, and a few crashes stay below maxRestarts.
"""

import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.chaos.invariants import Expected
from tests.chaos.scenario import Scenario, require_strike
from tests.chaos.unit.bucket import store_of
from tests.chaos.unit.faults import CrashAfterWrite, Gate
from tests.chaos.unit.life import ROLES, Event, Life, check_end, usual_events

WAYS: dict[str, Callable[[Life, str], object]] = {
    "crash": lambda life, role: life.kubelet.crash(role),
    "out-of-memory": lambda life, role: life.kubelet.crash(role, 137, "OOMKilled"),
    "delete": lambda life, role: life.kubelet.delete(role),
    "evict": lambda life, role: life.kubelet.evict(role),
}
COUNTED = ("crash", "out-of-memory")
DEATHS = 4
LATEST_TICK = 16
"""Early enough for all of them to happen before the last step."""
MAX_STEPS = 16
UPLOAD_WRITES = 15
"""Three checkpoints and two adapters, each of two files and a manifest."""


def scenarios(seed: int) -> Iterator[Scenario]:
    """Every role in every way, mixtures of all, drains, and one that must fail."""
    for role in ROLES:
        for way in WAYS:
            for i in range(2):
                name = f"pod-dies-{role}/{way}-{i}"
                yield Scenario(name, "unit", single(seed + i, role, way), seed + i)
    for i in range(16):
        yield Scenario(f"pods-die-at-random/{i:02d}", "unit", mixture(seed + i), seed + i)
    for i in range(6):
        yield Scenario(f"node-drained/{i:02d}", "unit", drained(seed + i), seed + i)
    for n in range(UPLOAD_WRITES):
        yield Scenario(f"trainer-dies-in-an-upload/after-write-{n:02d}", "unit", in_an_upload(n))
    for role in ROLES:
        yield Scenario(f"crash-loop-fails-the-run/{role}", "unit", crash_loop(role))


def single(seed: int, role: str, way: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """One role dies twice at random ticks."""

    async def play(_: Any) -> None:
        dice = random.Random(f"{seed} {role} {way}")
        await _live([(dice.randint(3, LATEST_TICK), role, way) for _ in range(2)])

    return play


def mixture(seed: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Any role in any way, no role by its own fault more often than it may."""

    async def play(_: Any) -> None:
        dice = random.Random(seed)
        deaths = [(dice.randint(3, LATEST_TICK), dice.choice(ROLES), dice.choice(sorted(WAYS))) for _ in range(DEATHS)]
        await _live([d for i, d in enumerate(deaths) if d[2] not in COUNTED or i < 3])

    return play


def drained(seed: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """All pods are evicted in one tick."""

    async def play(_: Any) -> None:
        tick = random.Random(seed).randint(3, LATEST_TICK)
        await _live([(tick, role, "evict") for role in ROLES])

    return play


def in_an_upload(n: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The trainer's n-th write of a file is its last; the next trainer continues from what is whole."""

    async def play(_: Any) -> None:
        rule = CrashAfterWrite(n)
        life = Life(events=usual_events())
        life.trainer_store = store_of(life.bucket, Gate(rule))
        await life.live()
        check_end(life, {"Completed": ["Completed"]}, Expected(restarts=1, run_restarts=0, attempts=1))
        require_strike(rule.struck, f"the trainer writes {n + 1} files")

    return play


def crash_loop(role: str) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A role that crashes again and again fails the run, with its name in the reason."""

    async def play(_: Any) -> None:
        life = Life(spec={"maxRestarts": 2, "maxSteps": 100})
        life.events = usual_events(
            Event(lambda life: bool(life.kubelet.ready(role)), lambda life: life.kubelet.crash(role), times=20)
        )
        await life.live()
        check_end(life, {"Failed": [f"{role.capitalize()}Crashed"]}, Expected(restarts=3, run_restarts=0, attempts=1))

    return play


async def _live(deaths: list[tuple[int, str, str]]) -> None:
    done: list[str] = []

    def strike(role: str, way: str) -> Callable[[Life], object]:
        def act(life: Life) -> object:
            if life.run is None or life.step >= MAX_STEPS - 1:
                # Restarts while the run is being completed are not counted.
                return None
            # No pod of the role runs in this tick: try in the next one.
            struck = bool(life.kubelet.ready(role)) and WAYS[way](life, role)
            if struck:
                done.append(way)
            return struck

        return act

    life = Life(spec={"maxSteps": MAX_STEPS})
    life.events = usual_events(
        *(Event(lambda life, tick=tick: life.now >= tick, strike(role, way)) for tick, role, way in deaths)  # type: ignore[misc]
    )
    await life.live()
    check_end(life, {"Completed": ["Completed"]}, Expected(restarts=len(done), run_restarts=0, attempts=1))
    require_strike(len(done) == len(deaths), f"all of {deaths} happen, and not only {done}")
