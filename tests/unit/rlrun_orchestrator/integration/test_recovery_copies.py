"""A trainer that is killed loses the steps since its newest recovery copy, and no batch, metric or artifact."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.orchestrator import RunPhase

from tests.support.jittered import MakeWorld, jittered_worlds
from tests.support.run_processes import World
from tests.support.train_bodies import body_of

pytestmark = pytest.mark.slow

STEPS = 7
POOLS: dict[str, Any] = {
    "buffer": {"onlineDifficultyFiltering": True, "easyThreshold": 0.7, "hardThreshold": 0.3, "hardFraction": 0.5}
}
KINDS = pytest.mark.parametrize("more", [{}, POOLS], ids=["plain", "pools"])


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeWorld]:
    async with jittered_worlds(tmp_path, maxSteps=STEPS, checkpoints={"interval": 100}) as made:
        yield made


def steps_of(world: World) -> list[int]:
    return [step for step, _ in world.trainer.batches]


def assert_same(cut: World, whole: World) -> None:
    assert cut.last_word.phase is RunPhase.completed
    newest = [{s: body_of(b.samples, b.batch_id) for s, b in world.trainer.batches} for world in (cut, whole)]
    assert newest[0] == newest[1]
    lines = [{line["step"]: line["reward/mean"] for line in world.lines()} for world in (cut, whole)]
    assert lines[0] == lines[1]
    assert set(lines[0]) == set(range(1, STEPS + 1))


@KINDS
async def test_a_copy_of_the_newest_step_loses_no_step(make: MakeWorld, more: dict[str, Any]) -> None:
    whole, cut = await make(1, **more), await make(2, **more)
    cut.trainer.copied_after = {2, 4}
    cut.trainer.die_before = {2, 4}
    assert await whole.run() == await cut.run() == 0
    assert steps_of(cut) == list(range(STEPS))
    assert cut.trainer.opened[-1].resume_from is None
    assert_same(cut, whole)


@KINDS
async def test_only_steps_after_the_copy_are_made_again_and_equal_the_first(
    make: MakeWorld, more: dict[str, Any]
) -> None:
    """The trainer knows no state of the orchestrator, because no checkpoint was due."""
    whole, cut = await make(1, **more), await make(2, **more)
    cut.trainer.copied_after = {2, 5}
    cut.trainer.die_before = {4, 6}
    assert await whole.run() == await cut.run() == 0
    assert steps_of(cut) == [0, 1, 2, 3, 2, 3, 4, 5, 5, 6]
    assert_same(cut, whole)


async def test_a_step_whose_response_is_lost_is_in_the_copy_and_is_not_made_again(make: MakeWorld) -> None:
    whole, cut = await make(1), await make(2)
    cut.trainer.copied_after, cut.trainer.hold = {4}, {3}
    assert await whole.run() == 0
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: 4 in cut.trainer.copies)
    cut.trainer.restart()
    cut.trainer.turn = asyncio.Lock()
    assert await running == 0
    assert steps_of(cut) == list(range(STEPS))
    assert_same(cut, whole)
    assert all("loss/mean" in line for line in cut.lines())


@KINDS
async def test_a_new_orchestrator_continues_exactly_from_the_copy(make: MakeWorld, more: dict[str, Any]) -> None:
    whole, cut = await make(1, **more), await make(2, **more)
    cut.trainer.copied_after = {1, 2, 3}
    assert await whole.run() == 0
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: len(cut.trainer.batches) >= 5)
    cut.stop.set()
    assert await running == 1
    cut.stop.clear()
    async with cut.trainer.turn:
        cut.trainer.restart()
    assert await cut.run() == 0
    made = steps_of(cut)
    assert made[made.index(4) + 1 :][-4:] == [3, 4, 5, 6]
    assert_same(cut, whole)


async def test_a_checkpoint_lost_with_the_trainer_is_requested_again_at_the_copy(make: MakeWorld) -> None:
    cut = await make(2, checkpoints={"interval": 3})
    cut.trainer.copied_after, cut.trainer.die_at_checkpoint = {3}, {3}
    assert await cut.run() == 0
    assert steps_of(cut) == list(range(STEPS))
    assert cut.trainer.checkpoints == {3, 6, 7}
