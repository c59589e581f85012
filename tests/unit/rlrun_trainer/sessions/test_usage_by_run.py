"""Usage by run: the device seconds of all runs and the idle seconds are the age of the process."""

from collections.abc import Iterator

import pytest
from rlrun.protocol.pool_usage import PoolUsage, TokenKind
from rlrun_trainer.runtime.compute_thread import PLATFORM, Compute
from rlrun_trainer.sessions.usage_by_run import KEPT_SECONDS, UsageByRun


class Clock:
    """Time that only the work and the test move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def compute(clock: Clock) -> Iterator[Compute]:
    made = Compute(clock)
    yield made
    made.close()


def total(usage: PoolUsage) -> float:
    return usage.idle_seconds + sum(run.device_seconds for run in usage.runs.values())


async def test_seconds_of_runs_and_idle_seconds_sum_to_the_age(clock: Clock, compute: Compute) -> None:
    usage = UsageByRun(compute, age=clock, clock=clock)
    await compute.run(PLATFORM, clock.pass_by, 20.0)  # the model is loaded
    usage.set_runs({"one", "two"})
    await compute.run("one", clock.pass_by, 3.0)
    await compute.run("two", clock.pass_by, 4.0)
    clock.pass_by(5.0)
    usage.add_trained("one", 128)
    found = usage.current()
    assert {uid: run.device_seconds for uid, run in found.runs.items()} == {"one": 3.0, "two": 4.0}
    assert {uid: run.tokens for uid, run in found.runs.items()} == {
        "one": {TokenKind.trained: 128},
        "two": {TokenKind.trained: 0},
    }
    assert (found.idle_seconds, total(found)) == (25.0, 32.0)


async def test_a_former_run_is_dropped_after_several_scrapes_and_its_time_is_not_idle(
    clock: Clock, compute: Compute
) -> None:
    usage = UsageByRun(compute, age=clock, clock=clock)
    usage.set_runs({"one", "two"})
    await compute.run("one", clock.pass_by, 3.0)
    usage.set_runs({"two"})
    clock.pass_by(KEPT_SECONDS)
    assert usage.current().runs["one"].device_seconds == 3.0
    usage.set_runs({"two"})
    clock.pass_by(1.0)
    found = usage.current()
    assert (list(found.runs), found.idle_seconds) == (["two"], KEPT_SECONDS + 1.0)
    usage.set_runs({"one", "two"})
    assert usage.current().runs["one"].device_seconds == 0.0


async def test_a_run_that_comes_back_goes_on_counting(clock: Clock, compute: Compute) -> None:
    usage = UsageByRun(compute, age=clock, clock=clock)
    usage.set_runs({"one"})
    usage.add_trained("one", 8)
    usage.set_runs(())
    usage.set_runs({"one"})
    clock.pass_by(2 * KEPT_SECONDS)
    usage.add_trained("one", 8)
    assert usage.current().runs["one"].tokens == {TokenKind.trained: 16}
