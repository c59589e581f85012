"""Pods that cannot start: the run waits with a reason, and fails when the policy says so."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.cluster_objects import event_object, terminated
from tests.support.operator_world import World

Obj = dict[str, Any]

PULL = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
BACK_OFF = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
CONFIG = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x" not found'}}
CREATING = {"waiting": {"reason": "ContainerCreating"}}
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}


async def obstruct(world: World, state: Obj | None, condition: Obj | None = None) -> None:
    """The trainer's pod is not ready, for that reason."""
    trainer = world.cluster.held("Pod", "reverse-trainer-0")
    trainer["status"]["phase"] = "Pending"
    trainer["status"]["conditions"] = [{"type": "Ready", "status": "False"}, *([condition] if condition else [])]
    trainer["status"]["containerStatuses"][0]["state"] = state or {}
    await world.put(trainer)


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
    await obstruct(world, state, condition)
    assert world.condition("TrainerReady")["reason"] == reason, "a condition at once"
    assert await world.phase(after=59) == "Pending"
    assert await world.phase(after=1) == "Failed"
    assert world.condition("Failed")["reason"] == reason
    assert setting in world.condition("Failed")["message"]


@pytest.mark.parametrize(("setting", "state", "condition", "reason"), CASES, ids=[c[0] for c in CASES])
async def test_without_a_deadline_the_run_waits_with_a_reason(
    world: World, setting: str, state: Obj | None, condition: Obj | None, reason: str
) -> None:
    await world.start()
    await obstruct(world, state, condition)
    assert await world.shown(after=3599) == ("Pending", reason)
    await world.reconcile(after=1)
    assert world.condition("Failed")["reason"] == reason, "startDeadlineSeconds"


@pytest.mark.parametrize(("setting", "state", "condition", "reason"), CASES, ids=[c[0] for c in CASES])
async def test_a_startup_failure_is_subject_to_its_own_deadline_only(
    make_world: Callable[..., World], setting: str, state: Obj | None, condition: Obj | None, reason: str
) -> None:
    others = {name: 10 for name, *_ in CASES if name != setting}
    world = make_world(failurePolicy=others)
    await world.start()
    await obstruct(world, state, condition)
    assert await world.phase(after=100) == "Pending"


async def test_both_reasons_of_an_image_pull_error_share_one_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"imagePullDeadlineSeconds": 60})
    await world.start()
    for state in (PULL, BACK_OFF, PULL):
        await obstruct(world, state)
        assert world.status["phase"] == "Pending"
        world.clock.advance(20)
    assert await world.phase() == "Failed"


async def test_the_deadline_of_a_startup_failure_restarts_when_it_recurs(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"imagePullDeadlineSeconds": 60})
    await world.start()
    for state in (PULL, CREATING, PULL):
        await obstruct(world, state)
        world.clock.advance(59)
    assert await world.phase() == "Pending"


async def test_a_crash_is_not_a_startup_failure(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={setting: 10 for setting, *_ in CASES})
    await world.start()
    await obstruct(world, terminated(1))
    assert await world.phase(after=100) == "Pending"
    assert world.condition("TrainerReady")["reason"] == "TrainerCrashed"


@pytest.mark.parametrize("setting", [None, "configErrorDeadlineSeconds"])
async def test_a_volume_that_is_missing_is_told_and_limited_like_a_configuration(
    make_world: Callable[..., World], setting: str | None
) -> None:
    world = make_world(failurePolicy={setting: 60} if setting else {})
    await world.start()
    since = world.clock().isoformat()
    await obstruct(world, CREATING, {"type": "PodScheduled", "status": "True", "lastTransitionTime": since})
    uid = world.cluster.held("Pod", "reverse-trainer-0")["metadata"]["uid"]
    await world.put(event_object(uid, "FailedMount", 'configmap "x" not found', since))
    assert world.condition("TrainerReady")["reason"] == "Starting"
    assert await world.shown(after=15) == ("Pending", "VolumeMountFailed")
    assert 'configmap "x" not found' in world.status["message"]
    await world.reconcile(after=60)
    assert world.status["phase"] == ("Failed" if setting else "Pending")


ACCESS = ("S3AccessDenied", "S3BucketMissing", "StorageAccessDenied", "ModelAccessDenied")
AWAY = ("S3Unreachable", "S3Full", "StorageServerUnavailable", "ModelHubUnreachable")


async def fetch_ends(world: World, reason: str, restarts: int, code: int = 1, *, again: bool = False) -> None:
    """The container that fetches the weights has ended so, and waits for its restart or runs `again`."""
    pod = world.cluster.held("Pod", "reverse-trainer-0")
    end = terminated(code, "Error", json.dumps({"reason": reason, "message": f"the words of {reason}"}))
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    state = {"running": {}} if again else end if not restarts else waiting
    fetcher = {"name": "fetch-model", "restartCount": restarts, "state": state, "lastState": end if restarts else {}}
    pod["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [{"name": "trainer", "restartCount": 0, "state": {"waiting": {}}}],
        "initContainerStatuses": [fetcher],
    }
    await world.put(pod)


@pytest.mark.parametrize("code", [1, 64], ids=["this version", "fetchers of 0.1.0"])
@pytest.mark.parametrize("reason", ACCESS)
async def test_weights_that_are_refused_are_final_after_a_grace_only(world: World, reason: str, code: int) -> None:
    await world.start()
    await fetch_ends(world, reason, 0, code)
    assert world.condition("TrainerReady")["reason"] == reason, "a condition at once"
    for restarts in range(1, 9):
        await fetch_ends(world, reason, restarts, code, again=restarts % 2 == 0)
        assert await world.shown(after=100) == ("Pending", reason)
    assert await world.phase(after=99) == "Pending"
    assert await world.phase(after=1) == "Failed"
    assert world.condition("Failed")["reason"] == reason
    assert f"the words of {reason}" in world.condition("Failed")["message"]


@pytest.mark.parametrize("reason", AWAY)
async def test_weights_whose_store_is_away_are_no_crash_and_waited_for(world: World, reason: str) -> None:
    await world.start()
    for restarts in range(20):
        await fetch_ends(world, reason, restarts)
        assert await world.shown(after=100) == ("Pending", reason)
    assert not any(component.get("crashes") for component in world.status["components"])


async def test_weights_that_arrive_within_the_grace_are_never_final(world: World) -> None:
    await world.start()
    await fetch_ends(world, "S3AccessDenied", 0)
    await world.reconcile(after=800)
    pod = world.cluster.held("Pod", "reverse-trainer-0")
    refused = terminated(1, "Error", json.dumps({"reason": "S3AccessDenied", "message": "m"}))
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    fetcher = {"name": "fetch-model", "restartCount": 1, "state": done, "lastState": refused}
    pod["status"]["initContainerStatuses"] = [fetcher]
    pod["status"]["containerStatuses"] = [{"name": "trainer", "restartCount": 0, "state": {"running": {}}}]
    await world.put(pod)
    assert await world.phase(after=2000) == "Pending"


async def test_weights_that_are_missing_or_corrupt_are_final_at_once(world: World) -> None:
    await world.start()
    await fetch_ends(world, "ModelNotFound", 0, 64)
    assert await world.phase(after=1) == "Failed"
