"""More steps for a run that lives: whenever they are wanted, the run makes them or is complete without them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.orchestrator import RunPhase
from rlrun.protocol.resolved import ResolvedRun
from rlrun_orchestrator.config_watcher import ConfigChange, ConfigWatcher, diff_configuration
from rlrun_orchestrator.data.schedule import RunSchedule

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World


def run(world: World, *, attempt: int = 1, **spec: Any) -> ResolvedRun:
    world.urls = dict.fromkeys(world.environments, "http://e")
    world.trainer_url, world.spec = "http://t", spec
    resolved = world.resolved()
    return resolved.model_copy(update={"run": resolved.run.model_copy(update={"attempt": attempt})})


@pytest.mark.proves("maxSteps")
def test_only_more_steps_are_taken_over(world: World) -> None:
    now = run(world, maxSteps=5)
    more = diff_configuration(
        now, 5, run(world, maxSteps=9, checkpoints={"interval": 2, "keepCloud": -1}, maxRestarts=7)
    )
    assert more == ConfigChange(9, ["spec.checkpoints", "spec.maxRestarts"])
    assert diff_configuration(now, 5, now) == ConfigChange(None, [])
    assert diff_configuration(now, 5, run(world, maxSteps=4)) == ConfigChange(None, ["maxSteps 4 is below 5"])
    other = diff_configuration(now, 5, run(world, maxSteps=9, attempt=2))
    assert other.max_steps is None
    assert "attempt 2" in other.ignored_fields[0]


def test_more_steps_are_compared_with_the_schedule_and_not_with_the_first_configuration(world: World) -> None:
    now = run(world, maxSteps=5)
    assert diff_configuration(now, 9, run(world, maxSteps=7)) == ConfigChange(None, ["maxSteps 7 is below 9"])
    assert diff_configuration(now, 9, run(world, maxSteps=9)) == ConfigChange(None, [])


def test_the_record_of_the_packages_is_no_change(world: World) -> None:
    now = run(world)
    world.packages = [EnvironmentPackage(id="owner/words", version="1.0", digest=f"sha256:{'a' * 64}")]
    assert diff_configuration(now, 5, run(world)) == ConfigChange(None, [])


def watched(world: World, schedule: RunSchedule) -> tuple[ConfigWatcher, Path]:
    path = world.folder / "run.json"
    return ConfigWatcher(path, run(world, maxSteps=5), 1.0, schedule), path


async def test_a_file_that_is_away_or_broken_changes_nothing(world: World) -> None:
    schedule, applied = RunSchedule(5), list[int]()
    schedule.subscribe(lambda: applied.append(schedule.max_steps))
    watcher, path = watched(world, schedule)
    await watcher.check_once()
    path.write_text("{")
    await watcher.check_once()
    for steps in (5, 7, 7, 6, 9):
        path.write_text(run(world, maxSteps=steps).model_dump_json(by_alias=True))
        await watcher.check_once()
    assert applied == [7, 9]


async def test_a_change_that_comes_too_late_is_tried_again_with_the_next_one(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = RunSchedule(5)
    schedule.complete()
    watcher, path = watched(world, schedule)
    for steps in (7, 5, 7):
        path.write_text(run(world, maxSteps=steps).model_dump_json(by_alias=True))
        await watcher.check_once()
    assert schedule.max_steps == 5
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "ignoring maxSteps 7: the run is already complete with 5 steps"
    ] * 2


# --- runs -------------------------------------------------------------------------------------------------------------


def assert_complete(world: World, steps: int) -> None:
    status = world.last_word
    assert (status.phase, status.step, status.max_steps) == (RunPhase.completed, steps, steps)
    assert [step for step, _ in world.trainer.batches] == list(range(steps))
    assert [line["step"] for line in world.lines()] == list(range(1, steps + 1))
    assert steps in world.trainer.checkpoints
    assert steps in world.trainer.adapters
    assert world.trainer.opened[-1].max_steps == steps
    c = status.groups
    assert c.in_flight == 0
    assert c.trained + c.filtered + c.errored + c.stale == world.environments["words"].groups["train"]


@pytest.mark.proves("maxSteps", "adapters.interval")
async def test_more_steps_in_the_middle_of_a_run(world: World) -> None:
    world.spec |= {"maxSteps": 4, "checkpoints": {"interval": 3}}
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 2)
    world.write_configuration(maxSteps=8)
    await world.until(lambda: len(world.trainer.opened) >= 2)
    assert (await world.status()).max_steps == 8
    assert await running == 0
    assert_complete(world, 8)
    assert world.trainer.checkpoints == {3, 6, 8}, "nothing ends at step 4 any more"
    assert world.trainer.adapters == {8}
    assert len(world.trainer.opened) == 2


@pytest.mark.proves("maxSteps")
async def test_more_steps_while_the_last_one_is_being_made(world: World) -> None:
    world.spec |= {"maxSteps": 3, "maxAsyncLevel": 0, "oversamplingFactor": 1}
    world.trainer.hold = {2}
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) == 3)
    world.write_configuration(maxSteps=5)
    await until_known(world, 5)
    world.trainer.released.set()
    assert await running == 0
    assert_complete(world, 5)


@pytest.mark.proves("maxSteps")
async def test_more_steps_while_the_last_artifacts_are_uploaded(world: World) -> None:
    world.spec["maxSteps"] = 3
    await world.start()
    uploading = asyncio.Event()
    state = world.trainer.state

    def slow() -> Any:
        found = state()
        if world.trainer.step == 3 and world.trainer.checkpoints >= {3}:
            uploading.set()
            return found.model_copy(update={"checkpoints": [], "uploads_pending": 1})
        return found

    world.trainer.state = slow  # type: ignore[method-assign]
    running = asyncio.create_task(world.run())
    await uploading.wait()
    world.write_configuration(maxSteps=6)
    assert await running == 0
    assert_complete(world, 6)
    assert world.last_word.waiting_for is None


@pytest.mark.proves("maxSteps")
async def test_more_steps_while_the_last_evaluation_runs(world: World) -> None:
    world.eval_environments["exam"] = FakeEnvironment("exam", rewards=[1.0, 0.0])
    world.spec |= {"maxSteps": 2, "eval": {"interval": 100, "rolloutsPerExample": 2, "env": [{"id": "owner/exam"}]}}
    gate, asked = asyncio.Event(), asyncio.Event()
    exam = world.eval_environments["exam"]
    roll_out = exam.roll_out

    async def held(request: web.Request) -> web.Response:
        if world.trainer.step == 2:
            asked.set()
            await gate.wait()
        return await roll_out(request)

    exam.roll_out = held  # type: ignore[method-assign]
    await world.start()
    running = asyncio.create_task(world.run())
    await asked.wait()
    world.write_configuration(maxSteps=5)
    await world.until(lambda: len(world.trainer.batches) >= 4)
    gate.set()
    assert await running == 0
    status = world.last_word
    assert (status.phase, status.step) == (RunPhase.completed, 5)
    assert {line["step"] for line in world.lines() if "eval/exam/avg@2" in line} >= {2, 5}


@pytest.mark.proves("maxSteps")
async def test_more_steps_after_the_end_change_nothing(world: World) -> None:
    world.spec["maxSteps"] = 2
    await world.start()
    assert await world.run() == 0
    world.write_configuration(maxSteps=4)
    assert world.last_word.max_steps == 2
    assert await world.run() == 0, "a new attempt makes them"
    assert (world.last_word.step, len(world.trainer.batches)) == (4, 4)


async def test_a_run_that_was_resumed_at_its_end_starts_again_for_more_steps(world: World) -> None:
    world.spec["maxSteps"] = 2
    await world.start()
    assert await world.run() == 0
    state = world.trainer.state
    uploading = asyncio.Event()

    def slow() -> Any:
        found = state()
        if world.trainer.step == 2:
            uploading.set()
            return found.model_copy(update={"checkpoints": [], "uploads_pending": 1})
        return found

    world.trainer.state = slow  # type: ignore[method-assign]
    running = asyncio.create_task(world.run())
    await uploading.wait()
    world.write_configuration(maxSteps=4)
    assert await running == 0
    assert (world.last_word.phase, world.last_word.step) == (RunPhase.completed, 4)


async def test_a_trainer_that_is_replaced_meanwhile_gets_the_new_number_as_well(world: World) -> None:
    world.spec |= {"maxSteps": 4, "checkpoints": {"interval": 1}}
    world.trainer.hold = {2}
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) == 3)
    world.write_configuration(maxSteps=6)
    await until_known(world, 6)
    world.trainer.die_before = {3}
    world.trainer.released.set()
    assert await running == 0
    assert world.last_word.step == 6
    assert [step for step, _ in world.trainer.batches] == [0, 1, 2, 3, 4, 5]


@pytest.mark.proves("algorithm.name")
async def test_supervised_runs_learn_from_demonstrations_to_the_new_end(world: World) -> None:
    world.spec |= {"maxSteps": 2, "algorithm": {"name": "sft"}}
    world.trainer.hold = {1}
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) == 2)
    world.write_configuration(maxSteps=4)
    await until_known(world, 4)
    world.trainer.released.set()
    assert await running == 0
    assert len(world.environments["words"].demonstrated) == 4 * 8
    assert all(sample.loss == "cross_entropy" for _, batch in world.trainer.batches for sample in batch.samples)


async def until_known(world: World, steps: int) -> None:
    async with asyncio.timeout(60.0):
        while (await world.status()).max_steps != steps:  # noqa: ASYNC110 (another server's state has no event)
            await asyncio.sleep(0.005)
