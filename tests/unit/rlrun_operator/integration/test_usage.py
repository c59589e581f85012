"""Each ended attempt is in the usage log, once, whatever S3 and the operator do."""

from typing import Any

import pytest
from rlrun.api.usage import UsageRecord, read_records
from rlrun.storage.errors import Unreachable

from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import World


@pytest.fixture
async def world() -> World:
    """A run that has trained for a minute on three GPUs."""
    run = run_object()
    run["metadata"]["annotations"] = {"rlrun.dev/user": "ann"}
    model = model_object(trainer={"gpus": 2}, inference={"gpus": 1})
    made = World(FakeCluster(run, model, source_secret()))
    await made.train()
    made.clock.advance(60)
    return made


def logged(world: World) -> list[UsageRecord]:
    return [record for data in world.artifacts.usage.values() for record in read_records(data)]


async def test_an_attempt_that_ends_is_in_the_log_with_its_user_and_gpus(world: World) -> None:
    began = world.status["attemptStartTime"]
    await world.change(3, suspend=True)
    (record,) = logged(world)
    assert (record.namespace, record.name, record.attempt, record.user, record.gpus) == ("team", "reverse", 1, "ann", 3)
    assert record.model == world.run["spec"]["model"]
    assert record.start_time.isoformat().replace("+00:00", "Z") == began
    assert (record.end_time - record.start_time).total_seconds() >= 60
    assert "endedAttempts" not in world.status
    await world.change(3, suspend=False)
    world.clock.advance(30)
    await world.change(3, stop=True)
    assert sorted(one.attempt for one in logged(world)) == [1, 2]


async def test_usage_that_s3_does_not_take_is_written_later(world: World) -> None:
    world.artifacts.errors["add_usage"] = Unreachable("S3 does not answer")
    await world.change(2, stop=True)
    assert world.status["phase"] == "Stopped", "no run waits for its usage record"
    (kept,) = world.status["endedAttempts"]
    assert kept["gpus"] == 3
    world.clock.advance(3600)
    del world.artifacts.errors["add_usage"]
    await world.reconcile(2)
    (record,) = logged(world)
    assert record.end_time.isoformat().replace("+00:00", "Z") == kept["endTime"]
    assert "endedAttempts" not in world.status


async def test_a_lost_answer_of_s3_counts_nothing_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    add_usage = world.artifacts.add_usage

    async def lose_answer(*args: Any) -> None:
        await add_usage(*args)
        raise Unreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(world.artifacts, "add_usage", lose_answer)
        await world.change(2, suspend=True)
        assert world.status["endedAttempts"]
    world.clock.advance(100)
    await world.reconcile(2)
    assert len(logged(world)) == 1
    assert "endedAttempts" not in world.status


async def test_a_run_that_is_deleted_while_it_trains_is_in_the_log(world: World) -> None:
    run = world.run
    run["metadata"] |= {"deletionTimestamp": world.clock.now.isoformat(), "finalizers": ["rlrun.dev/artifacts"]}
    world.cluster.put(run)
    await world.reconcile(3)
    assert [record.attempt for record in logged(world)] == [1]
