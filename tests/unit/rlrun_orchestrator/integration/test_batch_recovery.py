"""The batch a step was made of, where more than one process has sent one for the step."""

import asyncio
import random
import re
from typing import Any

import pytest
from aiohttp import web
from rlrun.protocol.train_batch import TrainBatch
from rlrun.service.server import read_batch

from tests.support import fake_trainer
from tests.support.run_processes import World

STEPS = 6
ALL_ROLLOUTS = {"algorithm": {"filterZeroAdvantages": False}}
"""The trainer gets all rollouts whose rewards a step reports."""


def reward_of(said: str) -> float:
    return int(said.strip("<>")) * 2_654_435_761 % 2**32 / 2**32


def told(batch: TrainBatch) -> tuple[float, list[int]]:
    """(mean reward, examples) of what the trainer had."""
    texts = ["".join(map(chr, sample.token_ids)) for sample in batch.samples]
    rewards = [reward_of(re.findall(r"<\d+>", text)[-1]) for text in texts]
    examples = {int(re.findall(r"example (\d+)", text)[0]) for text in texts}
    return sum(rewards) / len(rewards), sorted(examples)


async def leave_while_it_computes(world: World, step: int) -> None:
    """The orchestrator is gone, and the trainer is still making the step that it asked for."""
    world.trainer.computing = {step}
    running = asyncio.create_task(world.run())
    await world.trainer.asked.wait()
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    assert world.trainer.step == step


@pytest.mark.parametrize("level", [0, 1, 3])
async def test_step_requested_by_another_process_keeps_its_rewards(world: World, level: int) -> None:
    world.spec |= {"maxSteps": STEPS, "maxAsyncLevel": level, "oversamplingFactor": max(1, level)} | ALL_ROLLOUTS
    world.environments["words"].reward_of = reward_of
    for number, engine in enumerate(world.engines):
        engine.jitter = random.Random(number)
    await world.start()
    await leave_while_it_computes(world, 2)
    running = asyncio.create_task(world.run())
    # The new process has a batch of its own, and waits for the answer to it.
    await world.until(lambda: len(sent(world)) == 2)
    first, second = (one["id"] for one in sent(world))
    assert first != second
    world.trainer.released.set()
    assert await running == 0
    assert [step for step, _ in world.trainer.batches] == list(range(STEPS))
    batches = dict(world.trainer.batches)
    assert batches[2].batch_id == first, "the one that the first process sent"
    lines = world.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for line in lines:
        mean, _ = told(batches[line["step"] - 1])
        assert line["reward/mean"] == pytest.approx(mean), f"step {line['step']}"
    examples = [example for batch in batches.values() for example in told(batch)[1]]
    assert len(set(examples)) == len(examples) == 2 * STEPS, "none is trained twice"
    for step, batch in batches.items():
        assert all(0 <= step - sample.policy_version <= (8 if level else 0) for sample in batch.samples)
    counts = world.last_word.groups
    assert counts.trained == 2 * STEPS
    dispatched = world.environments["words"].groups["train"]
    assert counts.trained + counts.filtered + counts.errored + counts.stale == dispatched


def sent(world: World) -> list[dict[str, Any]]:
    """The batches that the state in S3 knows for the next step."""
    found: list[dict[str, Any]] = world.state().get("sent", [])
    return found


async def test_restarted_trainer_computes_the_newest_batch(world: World) -> None:
    world.spec |= {"maxSteps": STEPS, "checkpoints": {"interval": 1}} | ALL_ROLLOUTS
    world.environments["words"].reward_of = reward_of
    await world.start()
    await leave_while_it_computes(world, 2)
    world.trainer.restart()
    world.trainer.turn, world.trainer.computing = asyncio.Lock(), set()
    assert await world.run() == 0
    world.trainer.released.set()
    batches = dict(world.trainer.batches)
    for line in world.lines():
        assert line["reward/mean"] == pytest.approx(told(batches[line["step"] - 1])[0])
    counts = world.last_word.groups
    assert counts.trained == 2 * STEPS


async def test_supervised_batches_are_attributed_by_id(world: World) -> None:
    world.spec |= {"maxSteps": 4, "algorithm": {"name": "sft"}}
    await world.start()
    await leave_while_it_computes(world, 1)
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(sent(world)) == 2)
    world.trainer.released.set()
    assert await running == 0
    examples = [example for _, batch in world.trainer.batches for example in lessons(batch)]
    assert len(examples) == 4 * 8
    assert [line["step"] for line in world.lines()] == [1, 2, 3, 4]


def lessons(batch: TrainBatch) -> list[str]:
    return ["".join(map(chr, sample.token_ids)) for sample in batch.samples]


async def test_the_record_of_a_batch_is_in_s3_before_the_trainer_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a process that is killed at any moment leaves no step that nobody can explain."""
    world.spec["maxSteps"] = 4
    known: list[bool] = []

    async def checked(request: web.Request) -> TrainBatch:
        batch = await read_batch(request)
        known.append(any(one["id"] == batch.batch_id for one in sent(world)))
        return batch

    monkeypatch.setattr(fake_trainer, "read_batch", checked)
    await world.start()
    assert await world.run() == 0
    assert known == [True] * 4
