"""Pods that cannot start: the run waits with a reason, and fails when the policy says so."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cluster_objects import terminated
from tests.support.operator_world import World

Obj = dict[str, Any]

PULL = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
CONFIG = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}


def obstruct(world: World, state: Obj | None, condition: Obj | None = None) -> None:
    """The trainer's pod is not ready, for that reason."""
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    trainer["status"]["phase"] = "Pending"
    trainer["status"]["conditions"] = [{"type": "Ready", "status": "False"}, *([condition] if condition else [])]
    trainer["status"]["containerStatuses"][0]["state"] = state or {}
    world.cluster.put(trainer)


CASES = [
    ("imagePullDeadlineSeconds", BACK_OFF, None, "ImagePullFailed"),
    ("configErrorDeadlineSeconds", CONFIG, None, "CreateContainerConfigError"),
    ("unschedulableDeadlineSeconds", None, UNSCHEDULABLE, "Unschedulable"),
]


@pytest.mark.proves(
    "failurePolicy.imagePullDeadlineSeconds",
    "failurePolicy.configErrorDeadlineSeconds",
    "failurePolicy.unschedulableDeadlineSeconds",
)
@pytest.mark.parametrize(("setting", "state", "condition", "reason"), CASES, ids=[c[0] for c in CASES])
async def test_the_run_fails_when_its_deadline_has_passed(
    make_world: Callable[..., World], setting: str, state: Obj | None, condition: Obj | None, reason: str
) -> None:
    world = make_world(failurePolicy={setting: 60})
    await world.start()
    obstruct(world, state, condition)
    await world.reconcile()
    assert world.condition("TrainerReady")["reason"] == reason, "a condition at once"
    world.clock.advance(59)
    await world.reconcile()
    assert world.status["phase"] == "Pending"
    world.clock.advance(1)
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.condition("Failed")["reason"] == reason
    assert setting in world.condition("Failed")["message"]


@pytest.mark.parametrize(("setting", "state", "condition", "reason"), CASES, ids=[c[0] for c in CASES])
async def test_without_a_deadline_the_run_waits_with_a_reason(
    world: World, setting: str, state: Obj | None, condition: Obj | None, reason: str
) -> None:
    await world.start()
    obstruct(world, state, condition)
    await world.reconcile()
    world.clock.advance(3599)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", reason)
    world.clock.advance(1)
    await world.reconcile()
    assert world.condition("Failed")["reason"] == reason, "startDeadlineSeconds"


@pytest.mark.parametrize(("setting", "state", "condition", "reason"), CASES, ids=[c[0] for c in CASES])
async def test_a_startup_failure_is_subject_to_its_own_deadline_only(
    make_world: Callable[..., World], setting: str, state: Obj | None, condition: Obj | None, reason: str
) -> None:
    others = {name: 10 for name, *_ in CASES if name != setting}
    world = make_world(failurePolicy=others)
    await world.start()
    obstruct(world, state, condition)
    await world.reconcile()
    world.clock.advance(100)
    await world.reconcile()
    assert world.status["phase"] == "Pending"


async def test_both_reasons_of_an_image_pull_error_share_one_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"imagePullDeadlineSeconds": 60})
    await world.start()
    for state in (PULL, BACK_OFF, PULL):
        obstruct(world, state)
        await world.reconcile()
        assert world.status["phase"] == "Pending"
        world.clock.advance(20)
    await world.reconcile()
    assert world.status["phase"] == "Failed"


async def test_the_deadline_of_a_startup_failure_restarts_when_it_recurs(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"imagePullDeadlineSeconds": 60})
    await world.start()
    for state in (PULL, CREATING, PULL):
        obstruct(world, state)
        await world.reconcile()
        world.clock.advance(59)
    await world.reconcile()
    assert world.status["phase"] == "Pending"


async def test_a_crash_is_not_a_startup_failure(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={setting: 10 for setting, *_ in CASES})
    await world.start()
    obstruct(world, terminated(1))
    await world.reconcile()
    world.clock.advance(100)
    await world.reconcile()
    assert world.status["phase"] == "Pending"
    assert world.condition("TrainerReady")["reason"] == "TrainerCrashed"


@pytest.mark.parametrize("setting", [None, "configErrorDeadlineSeconds"])
async def test_a_volume_that_is_missing_is_told_and_limited_like_a_configuration(
    make_world: Callable[..., World], setting: str | None
) -> None:
    world = make_world(failurePolicy={setting: 60} if setting else {})
    await world.start()
    since = world.clock().isoformat()
    obstruct(world, CREATING, {"type": "PodScheduled", "status": "True", "lastTransitionTime": since})
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    world.cluster.put(
        {
            "kind": "Event",
            "metadata": {"name": "mount", "namespace": "team"},
            "involvedObject": {"uid": trainer["metadata"]["uid"]},
            "type": "Warning",
            "reason": "FailedMount",
            "message": 'configmap "x" not found',
            "lastTimestamp": since,
        }
    )
    await world.reconcile()
    assert world.condition("TrainerReady")["reason"] == "Starting"
    world.clock.advance(15)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "VolumeMountFailed")
    assert 'configmap "x" not found' in world.status["message"]
    world.clock.advance(60)
    await world.reconcile()
    assert world.status["phase"] == ("Failed" if setting else "Pending")
