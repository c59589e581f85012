"""When a run that has ended is reconciled again, and when it is deleted."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.plan.artifact_catalog import ArtifactCatalog
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.ending.requeue import S3_RETRY_SECONDS, requeue_after_finish, time_to_live

from tests.support.clocks import START
from tests.support.cluster_objects import pod, run_object
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"


@pytest.mark.proves("ttlSecondsAfterFinished")
@pytest.mark.parametrize(("ttl", "after", "expected"), [(None, 5, None), (10, 4, 6.0), (10, 10, 0.0), (0, 1, -1.0)])
def test_time_to_live(ttl: int | None, after: int, expected: float | None) -> None:
    assert time_to_live(ttl, START, START + timedelta(seconds=after)) == expected


def test_unfinished_run_has_no_time_to_live() -> None:
    assert time_to_live(10, None, START) is None


def leaving(world: World, grace: float = 60) -> None:
    """The trainer's pod is told to end, and takes its time."""
    obj = pod("trainer", uid="slow")
    when = world.clock.now + timedelta(seconds=grace)
    obj["metadata"]["deletionTimestamp"] = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.cluster.put(obj)


@pytest.mark.proves("stop", "suspend")
@pytest.mark.parametrize(("change", "phase"), [({"stop": True}, "Stopped"), ({"suspend": True}, "Suspended")])
async def test_last_checkpoint_of_a_pod_that_ends_is_listed(world: World, change: dict[str, Any], phase: str) -> None:
    await world.start()
    await world.change(**change)
    assert world.status["phase"] == phase
    leaving(world)
    assert await world.reconcile() == world.settings.poll_seconds
    world.clock.advance(50)
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000007"] = manifest(7)
    del world.cluster.objects[("Pod", "team", "reverse-trainer-slow")]
    assert await world.reconcile() is None
    assert (world.status["lastCheckpoint"], world.status["phase"]) == ("reverse-step-000007-uid-1", phase)


async def test_pod_on_a_lost_node_is_waited_for_until_its_grace_period_has_passed_twice(world: World) -> None:
    await world.start()
    await world.change(suspend=True)
    leaving(world, grace=60)
    assert await world.reconcile(after=119) == world.settings.poll_seconds
    assert await world.reconcile(after=1) is None


def test_finished_run_is_requeued_during_an_s3_outage() -> None:
    away = RunObservation(run_object(), artifacts_problem=Problem(reason="S3Unreachable", message="m"))
    assert requeue_after_finish(away, START, 2) == S3_RETRY_SECONDS
    assert requeue_after_finish(RunObservation(run_object(), catalog=ArtifactCatalog(is_listed=True)), START, 2) is None


@pytest.mark.proves("ttlSecondsAfterFinished")
async def test_time_to_live_waits_for_the_last_checkpoint_but_not_long(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await world.start()
    await world.change(stop=True)
    leaving(world, grace=600)
    await world.reconcile()
    assert world.run
    await world.reconcile(after=120)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
