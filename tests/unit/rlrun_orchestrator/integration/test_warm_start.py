"""A run that starts from another run's checkpoint goes on in its draw and counts its own steps."""

from collections.abc import Iterable
from typing import Any, ClassVar

import pytest
from aiohttp import web
from rlrun.constants import ExitCode
from rlrun.protocol.environment import GroupRequest
from rlrun_orchestrator.data.example_buffer import BufferSettings, Example, ExampleBuffer
from rlrun_orchestrator.data.example_sampler import ExampleSampler, SampledExample

from tests.support.expectations import lacks, present
from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import RUN_URI, World
from tests.support.train_bodies import body_of

SIZES = {"words": 30, "sums": 11}
POOLS = BufferSettings(seed=3, filtering=True, easy_threshold=0.8, hard_threshold=0.2, hard_fraction=0.3)


def deal(sizes: dict[str, int] | None = None, settings: BufferSettings = POOLS) -> ExampleSampler:
    return ExampleSampler(ExampleBuffer(sizes or SIZES, [2.0, 1.0], settings))


def draw(one: ExampleSampler, count: int) -> list[SampledExample]:
    drawn = [one.next_example(list(SIZES)) for _ in range(count)]
    return [sampled for sampled in drawn if sampled is not None]


def examples(sampled: Iterable[SampledExample]) -> list[Example]:
    return [one.example for one in sampled]


def rewards(sampled: SampledExample) -> float:
    return (sampled.example.index * 7 + len(sampled.example.environment)) % 11 / 10


def train(one: ExampleSampler, sampled: list[SampledExample]) -> None:
    for found in sampled:
        one.add_score(found, rewards(found))
    one.apply_scores()


def test_the_next_examples_are_those_of_the_uninterrupted_run() -> None:
    source = deal()
    for _ in range(9):  # so that both environments are in a later epoch, with easy and hard examples
        train(source, draw(source, 8))
    under_way = draw(source, 6)
    state = source.snapshot(under_way[2:])
    warm = deal()
    warm.start_from_run(state)
    found = draw(warm, 60)
    assert examples(found) == examples([*under_way[2:], *draw(source, 56)])
    assert [sampled.ordinal for sampled in found] == list(range(60)), "numbers of its own"
    assert warm.buffer.metrics()["pool/easy"] > 0
    assert warm.buffer.metrics()["pool/hard"] > 0


def test_the_difficulty_of_examples_goes_on_to_be_learnt() -> None:
    source, warm = deal(), deal()
    train(source, draw(source, 20))
    warm.start_from_run(source.snapshot([]))
    for one in (source, warm):
        train(one, draw(one, 12))
    assert examples(draw(warm, 40)) == examples(draw(source, 40))
    assert warm.buffer.state() == source.buffer.state()


def test_a_warm_start_includes_scores_that_were_not_applied_yet() -> None:
    source, warm = deal(), deal()
    drawn = draw(source, 10)
    for sampled in drawn:
        source.add_score(sampled, rewards(sampled))
    warm.start_from_run(source.snapshot([]))
    source.apply_scores()
    assert warm.buffer.state() == source.buffer.state()


def test_a_warm_start_begins_the_first_epoch_of_an_added_environment() -> None:
    source = ExampleSampler(ExampleBuffer({"words": 30}, None, POOLS))
    under_way = [source.next_example(["words"]) for _ in range(5)]
    warm = deal()
    warm.start_from_run(source.snapshot(found for found in under_way if found is not None))
    fresh = deal()
    assert [found.example.environment for found in draw(warm, 5)] == ["words"] * 5
    sums = [sampled.example for sampled in draw(warm, 60) if sampled.example.environment == "sums"]
    expected = [sampled.example for sampled in draw(fresh, 120) if sampled.example.environment == "sums"]
    assert sums == expected[: len(sums)]


def test_a_data_set_of_another_size_begins_its_first_epoch() -> None:
    source = deal()
    train(source, draw(source, 20))
    warm = deal({"words": 30, "sums": 3})
    warm.start_from_run(source.snapshot(draw(source, 4)))
    assert all(warm.buffer.contains(sampled.example) for sampled in draw(warm, 30))


# --- runs -------------------------------------------------------------------------------------------------------------

MORE: dict[str, Any] = {"maxAsyncLevel": 0, "oversamplingFactor": 1, "seed": 5, "checkpoints": {"interval": 4}}


def place(world: World, name: str) -> str:
    """The run's checkpoint of step 4, brought to another run's folder."""
    uri = f"s3://bucket/runs/ns/{name}/checkpoints/step-000004"
    world.trainer.saved[uri] = world.trainer.saved[f"{RUN_URI}/checkpoints/step-000004"] | {"run": name}
    return uri


@pytest.mark.proves("checkpointId", "buffer.onlineDifficultyFiltering")
@pytest.mark.parametrize("filtering", [False, True])
async def test_a_warm_started_run_continues_with_the_examples_of_the_other_run(world: World, filtering: bool) -> None:
    world.environments = {
        name: Noting(name, examples=9, reward_of=lambda said: (sum(map(ord, said)) % 4) / 3)
        for name in ("words", "sums")
    }
    for engine in world.engines:
        engine.seeded = True
    Noting.asked.clear()
    world.spec = MORE | {"maxSteps": 8, "buffer": {"onlineDifficultyFiltering": filtering}}
    await world.start()
    assert await world.run() == 0
    drawn, begun = [drawn_by(world, step) for step in range(1, 9)], begun_with(4)
    Noting.asked.clear()
    world.warm_start_from = place(world, "other")
    world.trainer.restart()
    world.trainer.batches.clear()
    for key in [key for key in world.store.objects if "/orchestrator/" in key or "/checkpoints/" in key]:
        del world.store.objects[key]
    world.spec["maxSteps"] = 4
    assert await world.run() == 0
    assert world.trainer.opened[-1].warm_start_from == world.warm_start_from
    assert world.trainer.opened[-1].resume_from is None
    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 3], "steps are counted from 0"
    assert begun_with(0) == begun != []
    # With pools, what comes later follows from rewards, which are another policy's and other seeds'.
    assert filtering or [drawn_by(world, step) for step in range(1, 5)] == drawn[4:]
    status = world.last_word
    assert (status.step, status.groups.trained) == (4, 8), "counters are this run's own"


class Noting(FakeEnvironment):
    """Notes what is asked of all environments, in its order."""

    asked: ClassVar[list[tuple[str, str, int]]] = []

    async def roll_out(self, request: web.Request) -> web.Response:
        found = GroupRequest.model_validate_json(await request.read())
        self.asked.append((found.model, self.name, found.example_index))
        return await super().roll_out(request)


def begun_with(version: int) -> list[tuple[str, int]]:
    """The first batch that was begun with that version of the policy; its groups start together, in any order."""
    name = f"policy-v{version:06d}-"
    return sorted([(environment, index) for model, environment, index in Noting.asked if model.startswith(name)][:2])


def drawn_by(world: World, step: int) -> list[tuple[str, int]]:
    return list(dict.fromkeys((line["environment"], line["example"]) for line in world.rollouts(step)))


@pytest.mark.proves("checkpointId")
async def test_a_trainer_that_dies_before_the_first_checkpoint_of_its_own_starts_warm_again(world: World) -> None:
    world.environments = {"words": FakeEnvironment("words", examples=50)}
    for engine in world.engines:
        engine.seeded = True
    world.spec = MORE | {"maxSteps": 4}
    await world.start()
    assert await world.run() == 0
    world.warm_start_from = place(world, "other")
    world.trainer.restart()
    world.trainer.batches.clear()
    for key in [key for key in world.store.objects if "/orchestrator/" in key or "/checkpoints/" in key]:
        del world.store.objects[key]
    world.spec["maxSteps"] = 3
    world.trainer.die_before = {2}
    assert await world.run() == 0
    made = [(step, body_of(batch.samples, batch.batch_id)) for step, batch in world.trainer.batches]
    assert [step for step, _ in made] == [0, 1, 0, 1, 2]
    assert made[:2] == made[2:4]


@pytest.mark.proves("checkpointId")
async def test_a_run_without_any_usable_checkpoint_does_not_start_from_the_base_model(world: World) -> None:
    """The operator leaves out a start checkpoint that is gone if the run has checkpoints, all of which are corrupt."""
    world.spec = MORE | {"maxSteps": 4, "checkpointId": "other"}
    for step in (2, 4):
        world.store.objects[f"{RUN_URI}/checkpoints/step-{step:06d}/manifest.json"] = b"{"
    await world.start()
    assert await world.run() == ExitCode.CONFIGURATION
    problem = present(world.last_word.problem)
    assert problem.reason == "CheckpointNotFound"
    assert not lacks(problem.message, "`spec.checkpointId`", "other", f"{RUN_URI}/checkpoints", "Start a new run")
    assert not world.trainer.opened
