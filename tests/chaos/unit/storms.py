"""An API server that is overloaded, an S3 that is away, a kubelet that is late, an operator that keeps dying: seeded.

Each storm ends, and afterwards the run must have come out as if it had never been.
"""

import random
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from rlrun.kube.errors import ApiError

from tests.chaos.invariants import Expected
from tests.chaos.scenario import Scenario, require_strike
from tests.chaos.unit.faults import Call, Rule, s3_500, s3_silent
from tests.chaos.unit.kills import LIVES, WHOLE, check_full_life, full_life
from tests.chaos.unit.life import After, Event, Life, check_end, restart_and_pause, usual_events
from tests.support.fake_cluster import Crash

ANSWERS = (
    (429, "TooManyRequests"),
    (500, "InternalError"),
    (503, "ServiceUnavailable"),
    (504, "Timeout"),
    (409, "Conflict"),
    (0, "Unreachable"),
)


@dataclass
class Storm(Rule):
    """Breaks a share of the calls at random, up to a number of them; also loses responses to writes."""

    dice: random.Random
    share: float
    limit: int
    where: tuple[str, ...] = ("cluster",)
    kinds: tuple[str, ...] = ("error",)
    broken: int = field(default=0)

    def before(self, call: Call) -> None:
        if self._hits(call):
            raise self._error(call)

    def after(self, call: Call) -> None:
        if call.writes and self._hits(call):
            raise self._error(call)

    def _hits(self, call: Call) -> bool:
        if call.where not in self.where or self.broken >= self.limit or self.dice.random() >= self.share:
            return False
        self.broken += 1
        return True

    def _error(self, call: Call) -> Exception:
        if self.dice.choice(self.kinds) == "crash":
            return Crash()
        if call.where == "s3":
            return self.dice.choice((s3_500, s3_silent))(call.name)
        status, reason = self.dice.choice(ANSWERS)
        return ApiError(status, reason, "in a storm")


@dataclass
class Outage(Rule):
    """Fails every call while `down` is set."""

    where: str
    down: bool = False
    broken: int = 0

    def before(self, call: Call) -> None:
        if self.down and call.where == self.where:
            self.broken += 1
            raise s3_silent(call.name) if self.where == "s3" else ApiError(0, "Unreachable", "nobody listens")


BLIND = Expected(restarts=(0, 2), run_restarts=(0, 1), attempts=(1, 3))
"""Upper bounds, because the operator does not count changes that begin and end during an outage."""


def scenarios(seed: int) -> Iterator[Scenario]:
    """All of them, with seeds from `seed` on."""
    for i in range(20):
        share = (0.02, 0.1, 0.3, 0.5)[i % 4]
        yield Scenario(f"api-server-storm/{share}-{i:02d}", "unit", stormy(seed + i, share, ("cluster",)), seed + i)
    for i in range(12):
        share = (0.05, 0.2, 0.4)[i % 3]
        yield Scenario(f"s3-storm/{share}-{i:02d}", "unit", stormy(seed + i, share, ("s3",)), seed + i)
    for i in range(12):
        both = stormy(seed + i, 0.03, ("cluster", "s3"), ("error", "crash"))
        yield Scenario(f"operator-keeps-dying-in-a-storm/{i:02d}", "unit", both, seed + i)
    for rounds in (1, 3, 10, 40):
        for start in (2, 8, 12, 20):
            yield Scenario(f"s3-down/{rounds:02d}-ticks-from-{start:02d}", "unit", outage("s3", start, rounds))
    for rounds in (1, 5, 20):
        for start in (1, 6, 15):
            yield Scenario(
                f"api-server-down/{rounds:02d}-ticks-from-{start:02d}", "unit", outage("cluster", start, rounds)
            )
    for every in (2, 3, 5):
        yield Scenario(f"kubelet-reports-late/every-{every}-ticks", "unit", late_kubelet(every, every))
    for ticks in (4, 8):
        yield Scenario(f"pods-end-late/{ticks}-ticks", "unit", late_kubelet(1, ticks))


def stormy(
    seed: int, share: float, where: tuple[str, ...], kinds: tuple[str, ...] = ("error",)
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A full life in a storm."""

    async def play(_: Any) -> None:
        dice = random.Random(seed)
        storm = Storm(dice, share, 150, where, kinds)
        life = full_life(dice.choice(sorted(LIVES)), storm)

        def calm(_: Life) -> None:
            storm.limit = 0

        # What retention has not done when a retained run is deleted is left to `rlrun gc`: the storm ends before.
        finished = After(lambda life: life.phase == "Completed", 2)
        life.events[-1:] = [Event(finished, calm), Event(After(finished, 12), Life.delete)]
        await life.live()
        # A crash and a pause during one outage of the API server make one new attempt. An S3 outage hides neither.
        check_end(life, {"Completed": ["Completed"]}, BLIND if "cluster" in where else WHOLE)
        require_strike(storm.broken > 0, "a call fails in the storm")

    return play


def outage(where: str, start: int, ticks: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A full life in which S3, or the API server, is away for a while; S3 for the trainer as well."""

    async def play(_: Any) -> None:
        rule = Outage(where)
        life = Life(spec=LIVES["delete"], rule=rule)

        def begin(life: Life) -> None:
            rule.down = True
            if where == "s3":
                life.trainer_store._s3._gate.rule = rule

        def end(_: Life) -> None:
            rule.down = False

        life.events = usual_events(
            Event(lambda life: life.now >= start, begin),
            Event(lambda life: life.now >= start + ticks, end),
            *restart_and_pause(),
        )
        await life.live(lambda life: life.now > start + ticks and life.run is None and life.cluster_is_quiet())
        # A run that was deleted just then may have given up on its files: that is what the deadline is for.
        check_end(life, {"Completed": ["Completed"]}, BLIND if where == "cluster" else WHOLE)
        require_strike(rule.broken > 0, f"a call to {where} fails")

    return play


def late_kubelet(every: int, end_ticks: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The kubelet reports changes of pods late, or pods take longer to end than the next attempt waits."""

    async def play(_: Any) -> None:
        life = full_life("delete")
        life.kubelet.report_every = every
        life.kubelet.end_ticks = end_ticks
        await life.live()
        check_full_life(life)

    return play
