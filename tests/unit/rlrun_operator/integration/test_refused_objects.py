"""Objects of a run that the API server refuses, or whose names are taken."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.protocol.orchestrator import RunPhase, RunStatus

from tests.support.clocks import START
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World

TRAINER = "apply Deployment team/reverse-trainer"
QUOTA = ApiError(
    403,
    "Forbidden",
    'deployments.apps "reverse-trainer" is forbidden: exceeded quota: small, requested: count/deployments.apps=1, '
    "used: count/deployments.apps=2, limited: count/deployments.apps=2",
)
WEBHOOK = ApiError(400, "BadRequest", 'admission webhook "policy.test" denied the request: no GPUs on Sundays')
AWAY = ApiError(500, "InternalError", 'Internal error occurred: failed calling webhook "policy.test": no endpoints')
OVERLOAD = ApiError(429, "TooManyRequests", "please try again later")


def refuse(world: World, error: ApiError, request: str = TRAINER) -> None:
    world.cluster.answers[request] = [error]


async def look(world: World) -> None:
    with pytest.raises(ApiError):
        await world.reconcile()


@pytest.mark.parametrize(
    ("error", "reason", "quoted"),
    [
        (QUOTA, "QuotaExceeded", "used: count/deployments.apps=2"),
        (WEBHOOK, "ObjectRefused", "no GPUs on Sundays"),
        (AWAY, "ObjectRefused", "no endpoints"),
    ],
    ids=["quota", "webhook", "webhook that is away"],
)
async def test_the_first_look_reports_a_refused_object(world: World, error: ApiError, reason: str, quoted: str) -> None:
    refuse(world, error)
    await look(world)
    refused = world.condition("ChildrenApplied")
    assert (refused["status"], refused["reason"]) == ("False", reason)
    assert "Deployment team/reverse-trainer" in refused["message"]
    assert quoted in refused["message"]
    assert (world.status["phase"], world.status["reason"]) == ("Pending", reason)
    assert world.status["attemptStartTime"]
    assert [e["reason"] for e in world.cluster.events].count(reason) == 1


async def test_objects_after_a_refused_one_are_not_written(world: World) -> None:
    refuse(world, QUOTA)
    await look(world)
    assert [o["metadata"]["name"] for o in world.cluster.all("Deployment", "Job")] == ["reverse-env-0"]


async def test_a_repeated_refusal_writes_nothing(world: World) -> None:
    refuse(world, QUOTA)
    await look(world)
    await look(world)  # This look has seen the objects before the refused one.
    writes, events = world.cluster.writes, len(world.cluster.events)
    world.clock.advance(30)
    await look(world)
    assert (world.cluster.writes, len(world.cluster.events)) == (writes, events)


async def test_a_run_starts_when_its_objects_are_accepted(world: World) -> None:
    refuse(world, QUOTA)
    await look(world)
    del world.cluster.answers[TRAINER]
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"
    assert world.status.get("reason") != "QuotaExceeded"
    assert len(world.cluster.all("Deployment", "Job")) == 4


async def test_a_run_that_is_never_accepted_fails_at_its_start_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(startDeadlineSeconds=60)
    refuse(world, QUOTA)
    await look(world)
    world.clock.advance(61)
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    failed = world.condition("Failed")
    assert failed["reason"] == "QuotaExceeded"
    assert "60 s" in failed["message"]
    assert "exceeded quota: small" in failed["message"]


async def test_an_error_that_passes_by_itself_is_no_refusal(world: World) -> None:
    refuse(world, OVERLOAD)
    await look(world)
    assert world.status == {}


async def test_a_run_that_trains_reports_a_refused_object_and_goes_on(world: World) -> None:
    await world.start()
    world.poller.answer = RunStatus(phase=RunPhase.running, step=3, max_steps=10, started_at=START)
    await world.reconcile()
    refuse(world, WEBHOOK, "apply ConfigMap team/reverse-config")
    world.change_spec(maxSteps=20)
    await look(world)
    assert world.status["phase"] == "Running"
    assert world.status["reason"] == "ObjectRefused"
    assert world.condition("ChildrenApplied")["status"] == "False"


async def test_a_run_without_refusals_has_no_condition_about_them(world: World) -> None:
    await world.start()
    assert "ChildrenApplied" not in {c["type"] for c in world.status["conditions"]}


def foreign(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "team"}, **more}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ServiceAccount", "reverse"),
        ("Secret", "reverse-s3"),
        ("ConfigMap", "reverse-config"),
        ("Deployment", "reverse-trainer"),
        ("Job", "reverse-orchestrator-a1"),
    ],
)
async def test_an_object_of_another_owner_is_not_taken_over(world: World, kind: str, name: str) -> None:
    world.cluster.put(foreign(kind, name, data={"key": "theirs"}))
    before = world.cluster.find(kind, name)
    await look(world)
    assert world.cluster.find(kind, name) == before
    taken = world.condition("ChildrenApplied")
    assert (taken["status"], taken["reason"]) == ("False", "NameTaken")
    assert f"{kind} team/{name}" in taken["message"]

    del world.cluster.objects[kind, "team", name]
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"


async def test_an_artifact_object_of_another_owner_is_not_taken_over(world: World) -> None:
    await world.start()
    name = "reverse-step-000005-uid-1"
    world.cluster.put(foreign("RLCheckpoint", name, spec={"uri": "s3://rlrun/other/uid-2/checkpoints/step-000005"}))
    world.artifacts.folders["s3://rlrun/team/uid-1/checkpoints/step-000005"] = manifest(5)
    await look(world)
    held = world.cluster.find("RLCheckpoint", name)
    assert held is not None
    assert held["spec"] == {"uri": "s3://rlrun/other/uid-2/checkpoints/step-000005"}
    assert world.condition("ChildrenApplied")["reason"] == "NameTaken"
