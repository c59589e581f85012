"""The same run twice, in one piece or in several: the same examples, tokens and rewards in the same order."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.orchestrator import RunPhase

from tests.support.jittered import MakeWorld, jittered_worlds
from tests.support.run_processes import RUN_URI, World
from tests.support.train_bodies import body_of

pytestmark = pytest.mark.slow

STATE = f"{RUN_URI}/orchestrator/state-000001.json"
STEPS = 8


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[MakeWorld]:
    async with jittered_worlds(tmp_path, maxSteps=STEPS) as made:
        yield made


def drawn(world: World, steps: int = STEPS) -> list[list[tuple[int, str, int]]]:
    """(ordinal, environment, example) of each group, by step."""
    return [
        list(dict.fromkeys((line["ordinal"], line["environment"], line["example"]) for line in world.rollouts(step)))
        for step in range(1, steps + 1)
    ]


def batches(world: World) -> dict[int, Any]:
    """What each step was trained on, as it was trained last."""
    return {step: body_of(batch.samples, batch.batch_id) for step, batch in world.trainer.batches}


@pytest.mark.proves("seed", "maxAsyncLevel", "buffer.onlineDifficultyFiltering", "difficultyFilter.minRewardVariance")
@pytest.mark.parametrize(
    "more",
    [
        {},
        # With this seed the rewards of one group are equal.
        {"buffer": {"onlineDifficultyFiltering": True, "easyThreshold": 0.7, "hardThreshold": 0.3}, "seed": 21},
        {"difficultyFilter": {"minRewardVariance": 0.05}, "sampling": {"maxTokens": 16, "seed": 3}},
    ],
    ids=["plain", "pools", "filter"],
)
async def test_two_runs_train_on_the_same_batches(make: MakeWorld, more: dict[str, Any]) -> None:
    one, two = await make(1, **more), await make(2, **more)
    assert await one.run() == await two.run() == 0
    assert drawn(one) == drawn(two)
    assert batches(one) == batches(two)
    rewards = [[line["reward/mean"] for line in world.lines()] for world in (one, two)]
    assert rewards[0] == rewards[1]
    filtered = [world.last_word.groups.filtered for world in (one, two)]
    assert filtered[0] == filtered[1]
    assert not more or filtered[0] > 0, "nothing was replaced, so that equality shows little"


@pytest.mark.proves("seed", "buffer.seed")
async def test_other_seeds_are_other_runs(make: MakeWorld) -> None:
    one, two, three = await make(1), await make(1, seed=6), await make(1, buffer={"seed": 6})
    assert await one.run() == await two.run() == await three.run() == 0
    examples = [[[group[1:] for group in step] for step in drawn(world)] for world in (one, two, three)]
    assert examples[0] != examples[1]
    assert examples[1] == examples[2], "buffer.seed goes before seed"
    assert batches(two) != batches(three), "and the sampling has the run's seed all the same"


@pytest.mark.proves("checkpoints.interval")
@pytest.mark.parametrize("memory", ["state", "checkpoint"])
@pytest.mark.parametrize("filtering", [False, True])
async def test_a_resumed_run_equals_the_uninterrupted_one(make: MakeWorld, memory: str, filtering: bool) -> None:
    more = {"buffer": {"onlineDifficultyFiltering": filtering}, "checkpoints": {"interval": 4}}
    whole, cut = await make(1, **more), await make(2, **more)
    assert await whole.run() == 0
    cut.spec["maxSteps"] = 4
    assert await cut.run() == 0
    cut.trainer.restart()
    if memory == "checkpoint":
        del cut.store.objects[STATE]
    cut.spec["maxSteps"] = STEPS
    assert await cut.run() == 0
    assert cut.trainer.opened[-1].resume_from == f"{RUN_URI}/checkpoints/step-000004"
    assert drawn(cut) == drawn(whole)
    assert batches(cut) == batches(whole)
    assert [line["step"] for line in cut.lines()] == list(range(1, STEPS + 1))


async def test_steps_that_are_made_again_after_the_trainers_death_are_the_same_steps(make: MakeWorld) -> None:
    whole, torn = await make(1), await make(2)
    torn.trainer.die_before = {3, 5}
    assert await whole.run() == await torn.run() == 0
    assert [step for step, _ in torn.trainer.batches] == [0, 1, 2, 2, 3, 4, 4, 5, 6, 7]
    by_step: dict[int, list[Any]] = {}
    for step, batch in torn.trainer.batches:
        by_step.setdefault(step, []).append(body_of(batch.samples, batch.batch_id))
    assert by_step[2][0] == by_step[2][1]
    assert batches(torn) == batches(whole)


async def test_a_trainer_that_starts_again_from_nothing_is_dealt_the_same(make: MakeWorld) -> None:
    whole, torn = await make(1), await make(2)
    torn.trainer.die_before = {1}
    assert await whole.run() == await torn.run() == 0
    assert [step for step, _ in torn.trainer.batches][:3] == [0, 0, 1]
    assert batches(torn) == batches(whole)


async def test_asynchronous_groups_that_were_under_way_are_not_skipped(make: MakeWorld) -> None:
    """What is in a batch depends on timing here; which example has which number does not."""
    asynchronous = {"maxAsyncLevel": 3, "oversamplingFactor": 3, "checkpoints": {"interval": 2}}
    cut = await make(1, **asynchronous)
    running = asyncio.create_task(cut.run())
    await cut.until(lambda: len(cut.trainer.batches) >= 5)
    cut.stop.set()
    assert await running == 1
    before = cut.last_word.groups
    cut.stop.clear()
    cut.trainer.restart()
    assert await cut.run() == 0
    whole = await make(2, maxSteps=20)
    assert await whole.run() == 0
    number = {ordinal: (name, example) for step in drawn(whole, 20) for ordinal, name, example in step}
    groups = [group for step in drawn(cut) for group in step]
    assert all(number[ordinal] == (name, example) for ordinal, name, example in groups)
    ordinals = [ordinal for ordinal, *_ in groups]
    assert len(set(ordinals)) == len(ordinals), "no group is trained twice in what remains of the run"
    assert before.in_flight > 0
    # The run goes on from what it had saved, which may be older than its last word.
    late = max(0, cut.last_word.groups.stale - before.stale - before.in_flight)
    assert len(set(range(max(ordinals))) - set(ordinals)) <= late, "none is skipped but those that came too late"


# --- the orchestrator dies in mid-step --------------------------------------------------------------------------------


async def die_in_step(world: World, step: int) -> None:
    """The trainer makes the step; the orchestrator is gone before it hears of it."""
    world.trainer.hold = {step}
    running = asyncio.create_task(world.run())

    def sent() -> bool:
        saved = json.loads(world.store.objects.get(STATE, b"{}"))
        return any(batch["step"] == step for batch in saved.get("sent", [])) and world.trainer.step == step + 1

    await world.until(sent)
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    world.trainer.hold = set()
    world.trainer.released.set()


async def test_step_with_a_lost_response_has_its_metrics_and_artifacts(make: MakeWorld) -> None:
    whole, torn = await make(1), await make(2)
    assert await whole.run() == 0
    await die_in_step(torn, 3)
    assert [line["step"] for line in torn.lines()] == [1, 2, 3]
    assert await torn.run() == 0
    assert [step for step, _ in torn.trainer.batches] == list(range(STEPS)), "and is not made again"
    assert batches(torn) == batches(whole)
    assert 4 in torn.trainer.checkpoints, "that of the step that nobody heard of"
    lines = torn.lines()
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    for name in ("reward/mean", "loss/mean", "mismatch_kl/all/mean", "seq_len/mean"):
        assert [line[name] for line in lines] == [line[name] for line in whole.lines()], name
    ours, theirs = torn.last_word, whole.last_word
    assert ours.phase is RunPhase.completed
    assert ours.groups == theirs.groups
    assert ours.mismatch_kl == pytest.approx(theirs.mismatch_kl)


async def test_a_step_whose_policy_is_not_published_yet_is_asked_for_again(make: MakeWorld) -> None:
    """No rollout of the next step may come from the policy before, so that the run would wait for ever."""
    whole, torn = await make(1), await make(2)
    assert await whole.run() == 0
    await die_in_step(torn, 3)
    torn.trainer.unpublished = True
    assert await torn.run() == 0
    assert batches(torn) == batches(whole)
    assert [line["loss/mean"] for line in torn.lines()] == [line["loss/mean"] for line in whole.lines()]


async def test_without_the_record_of_the_batch_the_line_has_what_the_trainer_knows(make: MakeWorld) -> None:
    torn = await make(1)
    await die_in_step(torn, 3)
    saved = json.loads(torn.store.objects[STATE])
    saved["sent"] = []
    torn.store.objects[STATE] = json.dumps(saved).encode()
    assert await torn.run() == 0
    line = torn.lines()[3]
    assert line["step"] == 4
    assert line["loss/mean"] == 0.1
    assert "reward/mean" not in line


async def test_a_batch_that_was_sent_and_not_trained_is_dealt_again(make: MakeWorld) -> None:
    whole, torn = await make(1), await make(2)
    assert await whole.run() == 0
    await die_in_step(torn, 3)
    torn.trainer.restart()  # with its step: the newest checkpoint is of step 2
    assert await torn.run() == 0
    assert [step for step, _ in torn.trainer.batches] == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7]
    assert batches(torn) == batches(whole)


async def test_a_state_that_cannot_be_read_costs_the_counters_and_not_the_run(make: MakeWorld) -> None:
    torn = await make(1, maxSteps=4)
    await die_in_step(torn, 2)
    torn.store.objects[STATE] = b'{"version": 2, "step": "?", "board": []}'
    assert await torn.run() == 0
    assert torn.last_word.step == 4


async def test_a_step_is_reported_even_if_the_newest_state_is_older_than_the_previous_step(make: MakeWorld) -> None:
    torn = await make(1)
    await die_in_step(torn, 3)
    saved = json.loads(torn.store.objects[STATE])
    torn.store.objects[STATE] = json.dumps(saved | {"step": 2, "sent": []}).encode()
    assert await torn.run() == 0
    assert [step for step, _ in torn.trainer.batches] == list(range(STEPS))
    assert [(line["step"], line["loss/mean"]) for line in torn.lines()] == [(n, 0.1) for n in range(1, STEPS + 1)]
    assert 4 in torn.trainer.checkpoints
