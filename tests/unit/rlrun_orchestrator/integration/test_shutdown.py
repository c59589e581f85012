"""Told to end: what a run does after that is what it would have done without."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.orchestrator import RunPhase
from rlrun.storage.store import Unreachable

from tests.support.jittered import MakeWorld, jittered_worlds
from tests.support.run_processes import RUN_URI, World
from tests.support.train_bodies import body_of

pytestmark = pytest.mark.slow

STEPS = 7
PLAIN: dict[str, Any] = {}
POOLS: dict[str, Any] = {
    "buffer": {"onlineDifficultyFiltering": True, "easyThreshold": 0.7, "hardThreshold": 0.3, "hardFraction": 0.5}
}
FILTER: dict[str, Any] = {"difficultyFilter": {"minRewardVariance": 0.05}}
KINDS = pytest.mark.parametrize("more", [PLAIN, POOLS, FILTER], ids=["plain", "pools", "filter"])


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeWorld]:
    async with jittered_worlds(tmp_path, maxSteps=STEPS, checkpoints={"interval": 100}) as made:
        yield made


def batches(world: World) -> dict[int, Any]:
    """What each step was trained on."""
    assert len(world.trainer.batches) == STEPS, "no step is made twice"
    return {step: body_of(batch.samples, batch.batch_id) for step, batch in world.trainer.batches}


def assert_same(cut: World, whole: World) -> None:
    assert cut.last_word.phase is RunPhase.completed
    assert batches(cut) == batches(whole)
    lines, others = cut.lines(), whole.lines()
    assert [line["step"] for line in lines] == [line["step"] for line in others] == list(range(1, STEPS + 1))
    assert [line["reward/mean"] for line in lines] == [line["reward/mean"] for line in others]
    counts = cut.last_word.groups
    assert counts.trained == whole.last_word.groups.trained == 2 * STEPS, "nothing is counted twice"
    dispatched = sum(environment.groups["train"] for environment in cut.environments.values())
    assert counts.trained + counts.filtered + counts.errored + counts.stale == dispatched


@pytest.mark.proves("checkpoints.interval", "seed", "buffer.onlineDifficultyFiltering")
@KINDS
@pytest.mark.parametrize("also_the_trainer", [False, True], ids=["orchestrator", "both"])
async def test_run_restarted_at_every_step_equals_an_undisturbed_run(
    make: MakeWorld, more: dict[str, Any], also_the_trainer: bool
) -> None:
    """Nodes are drained one after the other: each process writes what it has, and the next ones go on from there."""
    whole, cut = await make(1, **more), await make(2, **more)
    assert await whole.run() == 0
    for step in range(1, STEPS):
        running = asyncio.create_task(cut.run())
        await cut.until(lambda step=step: len(cut.trainer.batches) >= step)  # type: ignore[misc]
        cut.stop.set()
        assert await running == 1
        cut.stop.clear()
        if also_the_trainer:
            async with cut.trainer.turn:  # a step under way is made first
                cut.trainer.preempt()
    assert await cut.run() == 0
    assert_same(cut, whole)
    assert not also_the_trainer or cut.trainer.lives >= STEPS - 1


@KINDS
@pytest.mark.parametrize("remembers", [True, False], ids=["told", "guessed"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_run_with_a_trainer_preempted_at_every_step_equals_an_undisturbed_run(
    make: MakeWorld, more: dict[str, Any], moment: str, remembers: bool
) -> None:
    """Before a step, or after one whose result nobody hears: its checkpoint has the step, the orchestrator the rest."""
    whole, cut = await make(1, **more), await make(2, **more)
    cut.trainer.remembers = remembers
    if moment == "before":
        cut.trainer.preempted_before = set(range(1, STEPS))
    else:
        cut.trainer.preempted_after = set(range(STEPS - 1))
    assert await whole.run() == await cut.run() == 0
    assert_same(cut, whole)
    assert not remembers or all("loss/mean" in line for line in cut.lines())
    assert cut.trainer.lives == STEPS - 1


async def test_checkpoint_saved_at_shutdown_is_used_after_a_later_crash(make: MakeWorld) -> None:
    """Told to end at step 3, killed at step 5: back at 3, where only this run's own record knows the draw."""
    whole, cut = await make(1, **POOLS), await make(2, **POOLS)
    cut.trainer.preempted_before, cut.trainer.die_before = {3}, {5}
    assert await whole.run() == await cut.run() == 0
    assert [step for step, _ in cut.trainer.batches] == [0, 1, 2, 3, 4, 3, 4, 5, 6]
    assert cut.trainer.opened[-1].resume_from == f"{RUN_URI}/checkpoints/step-000003"
    newest = {step: body_of(batch.samples, batch.batch_id) for step, batch in cut.trainer.batches}
    assert newest == batches(whole)


async def test_checkpoint_saved_at_shutdown_is_used_by_another_process(make: MakeWorld) -> None:
    whole, cut = await make(1, **POOLS), await make(2, **POOLS)
    assert await whole.run() == 0
    cut.trainer.preempted_before = {3}
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: len(cut.trainer.batches) >= 5)
    cut.stop.set()
    assert await running == 1
    cut.stop.clear()
    async with cut.trainer.turn:
        cut.trainer.restart()
    assert await cut.run() == 0
    steps = [step for step, _ in cut.trainer.batches]
    assert steps[3:] == [3, 4, *range(3, STEPS)]
    assert {step: body_of(batch.samples, batch.batch_id) for step, batch in cut.trainer.batches} == batches(whole)


async def test_shutdown_writes_the_newest_state_and_final_status(make: MakeWorld) -> None:
    cut = await make(1)
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: len(cut.trainer.batches) >= 3)
    del cut.store.objects[f"{RUN_URI}/orchestrator/state-000001.json"]
    cut.stop.set()
    assert await running == 1, "so that the Job starts another pod"
    assert cut.state()["step"] in (2, 3)
    assert cut.last_word.phase is RunPhase.running


async def test_shutdown_during_an_s3_outage_ends_within_the_grace_period(make: MakeWorld) -> None:
    cut = await make(1)
    cut.settings |= {"stop_deadline": 0.2}
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: len(cut.trainer.batches) >= 2)
    cut.store.away = Unreachable("s3://bucket does not answer at http://s3")
    cut.stop.set()
    async with asyncio.timeout(20.0):
        assert await running == 1
