"""Objects of a run that the API server refuses, or whose names are taken."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.storage.store import AccessDenied
from rlrun_operator.planning.policies.children.refusal_report import report_read, report_unread

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.fake_artifacts import manifest
from tests.support.fake_kubelet import end_orchestrator
from tests.support.operator_world import World

TRAINER = "apply ReplicaSet team/reverse-trainer"
QUOTA = ApiError(
    403,
    "Forbidden",
    'replicasets.apps "reverse-trainer" is forbidden: exceeded quota: small, requested: count/replicasets.apps=1, '
    "used: count/replicasets.apps=2, limited: count/replicasets.apps=2",
)
WEBHOOK = ApiError(400, "BadRequest", 'admission webhook "policy.test" denied the request: no GPUs on Sundays')
UNANSWERED = ApiError(
    500, "InternalError", 'Internal error occurred: failed calling webhook "policy.test": no endpoints'
)
OVERLOAD = ApiError(429, "TooManyRequests", "please try again later")
BROKEN = ApiError(500, "InternalError", "Internal error occurred: the object cannot be decoded")


def refuse(world: World, error: ApiError, request: str = TRAINER) -> None:
    world.cluster.answers[request] = [error]


@pytest.mark.parametrize(
    ("error", "reason", "quoted"),
    [
        (QUOTA, "QuotaExceeded", "used: count/replicasets.apps=2"),
        (WEBHOOK, "ObjectRefused", "no GPUs on Sundays"),
        (UNANSWERED, "ObjectRefused", "no endpoints"),
        (ApiError(500, "X", WEBHOOK.message), "ObjectRefused", "no GPUs on Sundays"),
    ],
    ids=["quota", "webhook", "webhook that does not respond", "webhook with status 500"],
)
async def test_the_first_reconcile_reports_a_refused_object(
    world: World, error: ApiError, reason: str, quoted: str
) -> None:
    refuse(world, error)
    await world.reconcile()
    refused = world.condition("ChildrenApplied")
    assert (refused["status"], refused["reason"]) == ("False", reason)
    assert "ReplicaSet team/reverse-trainer" in refused["message"]
    assert quoted in refused["message"]
    assert (world.status["phase"], world.status["reason"]) == ("Pending", reason)
    assert world.status["attemptStartTime"]
    assert [e["reason"] for e in world.cluster.events].count(reason) == 1


async def test_objects_after_a_refused_one_are_not_written(world: World) -> None:
    refuse(world, QUOTA)
    await world.reconcile()
    assert [o["metadata"]["name"] for o in world.cluster.all("ReplicaSet", "Job")] == ["reverse-env-0"]


async def test_a_repeated_refusal_writes_nothing_although_its_numbers_change(world: World) -> None:
    refuse(world, QUOTA)
    await world.reconcile()
    await world.reconcile()  # This one has seen the objects before the refused one.
    writes, events = world.cluster.writes, len(world.cluster.events)
    refuse(world, ApiError(403, "Forbidden", QUOTA.message.replace("used: count/replicasets.apps=2", "used: 3")))
    world.clock.advance(30)
    await world.reconcile()
    assert (world.cluster.writes, len(world.cluster.events)) == (writes, events)


async def test_the_pause_grows_with_the_refusal(world: World) -> None:
    refuse(world, QUOTA)
    pauses = []
    for _ in range(5):
        pause = await world.reconcile()
        assert pause is not None
        pauses.append(pause)
        world.clock.advance(20)
    assert pauses == [1, 20, 30, 30, 30]


async def test_a_run_starts_when_its_objects_are_accepted(world: World) -> None:
    refuse(world, QUOTA)
    await world.reconcile()
    del world.cluster.answers[TRAINER]
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"
    assert world.status.get("reason") != "QuotaExceeded"
    assert len(world.cluster.all("ReplicaSet", "Job")) == 4


async def test_a_run_that_is_never_accepted_fails_at_its_start_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(startDeadlineSeconds=60)
    refuse(world, QUOTA)
    await world.reconcile()
    world.clock.advance(61)
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    failed = world.condition("Failed")
    assert failed["reason"] == "QuotaExceeded"
    assert "60 s" in failed["message"]
    assert "exceeded quota: small" in failed["message"]
    assert world.condition("ChildrenApplied")["status"] == "False", "nothing was written since"


async def test_a_refusal_stays_while_the_run_is_suspended(world: World) -> None:
    refuse(world, QUOTA)
    await world.reconcile()
    world.change_spec(suspend=True)
    await world.reconcile(2)
    assert world.status["phase"] == "Suspended"
    assert world.condition("ChildrenApplied")["status"] == "False"


@pytest.mark.parametrize(
    "error",
    [
        OVERLOAD,
        ApiError(403, "Forbidden", "namespace team is forbidden because it is being terminated"),
        ApiError(500, "InternalError", 'Internal error occurred: replicasets.apps "webhook-1-trainer": no leader'),
    ],
)
async def test_a_transient_error_is_not_reported_as_a_refusal(world: World, error: ApiError) -> None:
    refuse(world, error)
    with pytest.raises(ApiError):
        await world.reconcile()
    assert world.status == {}


async def test_a_run_that_trains_reports_a_refused_object_and_goes_on(world: World) -> None:
    await world.start()
    world.poller.answer = RunStatus(phase=RunPhase.running, step=3, max_steps=10, started_at=START)
    await world.reconcile()
    refuse(world, WEBHOOK, "apply ConfigMap team/reverse-config")
    world.change_spec(maxSteps=20)
    world.poller.watches = True
    assert await world.reconcile() == 1, "no event follows, and a quiet run is looked at once a minute"
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
        ("Secret", "reverse-rlrun-token"),
        ("ConfigMap", "reverse-config"),
        ("ReplicaSet", "reverse-trainer"),
        ("Job", "reverse-orchestrator-a1"),
    ],
)
async def test_an_object_of_another_owner_is_not_taken_over(world: World, kind: str, name: str) -> None:
    world.cluster.put(foreign(kind, name, data={"key": "theirs"}))
    before = world.cluster.find(kind, name)
    await world.reconcile()
    assert world.cluster.find(kind, name) == before
    taken = world.condition("ChildrenApplied")
    assert (taken["status"], taken["reason"]) == ("False", "NameTaken")
    assert f"{kind} team/{name}" in taken["message"]

    del world.cluster.objects[kind, "team", name]
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"


CHECKPOINT = "reverse-step-000005-uid-1"


async def train(world: World) -> None:
    """As far as a run that trains and has uploaded a checkpoint."""
    await world.start()
    world.poller.answer = RunStatus(phase=RunPhase.running, step=5, max_steps=10, started_at=START)
    await world.reconcile()
    world.artifacts.folders["s3://rlrun/team/uid-1/checkpoints/step-000005"] = manifest(5)


async def test_an_artifact_object_of_another_owner_is_not_taken_over(world: World) -> None:
    await train(world)
    spec = {"runUid": "uid-2", "uri": "s3://rlrun/other/uid-2/checkpoints/step-000005"}
    world.cluster.put(foreign("RLCheckpoint", CHECKPOINT, spec=spec))
    await world.reconcile()
    held = world.cluster.find("RLCheckpoint", CHECKPOINT)
    assert held is not None
    assert (held["spec"], "status" in held) == (spec, False)
    assert world.condition("ArtifactsRecorded")["reason"] == "NameTaken"
    assert world.status["phase"] == "Running"


async def test_a_checkpoint_without_an_object_is_not_listed(world: World) -> None:
    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    await world.reconcile()
    assert world.condition("ArtifactsRecorded")["reason"] == "QuotaExceeded"
    assert "lastCheckpoint" not in world.status
    assert "CheckpointReady" not in [e["reason"] for e in world.cluster.events]

    del world.cluster.answers[f"apply RLCheckpoint team/{CHECKPOINT}"]
    await world.reconcile()
    assert world.condition("ArtifactsRecorded")["status"] == "True"
    assert world.status["lastCheckpoint"] == CHECKPOINT
    assert [e["reason"] for e in world.cluster.events].count("CheckpointReady") == 1


async def test_a_refused_checkpoint_does_not_keep_a_lost_child_from_being_made_again(world: World) -> None:
    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    del world.cluster.objects["ReplicaSet", "team", "reverse-trainer"]
    await world.reconcile()
    assert world.cluster.find("ReplicaSet", "reverse-trainer")


async def test_a_finished_run_is_deleted_only_after_its_checkpoints_have_objects(
    make_world: Callable[..., World],
) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    await world.reconcile()
    world.clock.advance(3600)
    end_orchestrator(world.cluster, 0, RunStatus(phase=RunPhase.completed, step=10, max_steps=10).model_dump_json())
    for _ in range(4):
        pause = await world.reconcile()
        world.clock.advance(200)
        assert pause is not None
        assert pause <= 30
    assert world.status["phase"] == "Completed"
    assert world.status["reason"] == "Completed"
    del world.cluster.answers[f"apply RLCheckpoint team/{CHECKPOINT}"]
    await world.reconcile(3)
    assert world.cluster.find("RLRun", "reverse") is None
    assert world.cluster.find("RLCheckpoint", CHECKPOINT)


async def test_retention_deletes_nothing_while_a_newer_checkpoint_has_no_object(
    make_world: Callable[..., World],
) -> None:
    world = make_world(checkpoints={"keepCloud": 1})
    await train(world)
    await world.reconcile()
    newer = "reverse-step-000010-uid-1"
    refuse(world, QUOTA, f"apply RLCheckpoint team/{newer}")
    world.artifacts.folders["s3://rlrun/team/uid-1/checkpoints/step-000010"] = manifest(10)
    await world.reconcile(4)
    assert len(world.artifacts.folders) == 2
    older = world.cluster.find("RLCheckpoint", CHECKPOINT)
    assert older
    assert older["status"]["phase"] == "Ready"
    del world.cluster.answers[f"apply RLCheckpoint team/{newer}"]
    await world.reconcile(4)
    assert world.status["lastCheckpoint"] == newer
    assert len(world.artifacts.folders) == 1


async def test_older_checkpoints_stay_listed_beside_many_without_objects(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoints={"keepCloud": -1})
    await train(world)
    await world.reconcile()
    for step in range(10, 30):
        world.artifacts.folders[f"s3://rlrun/team/uid-1/checkpoints/step-{step:06d}"] = manifest(step)
    refuse(world, QUOTA, "apply RLCheckpoint team/reverse-step-000010-uid-1")
    await world.reconcile()
    assert [c["name"] for c in world.status["checkpoints"]] == [CHECKPOINT]


async def test_a_failure_is_reported_once_although_a_checkpoint_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"rules": [{"action": "RestartRun", "exitCodes": [9]}]})
    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    trainer["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": 9}}}
    world.cluster.put(trainer)
    await world.reconcile()
    assert world.status["runRestarts"] == 1
    reasons = [e["reason"] for e in world.cluster.events]
    assert (reasons.count("RunRestarting"), reasons.count("CheckpointReady")) == (1, 0)
    assert world.condition("ArtifactsRecorded")["reason"] == "QuotaExceeded"


async def test_a_refused_checkpoint_does_not_hide_what_the_run_waits_for(world: World) -> None:
    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    await world.reconcile()
    assert not world.status.get("reason")
    assert world.condition("ArtifactsRecorded")["reason"] == "QuotaExceeded"


async def test_a_listed_checkpoint_stays_listed_if_only_its_update_is_refused(world: World) -> None:
    await train(world)
    await world.reconcile()
    assert world.status["lastCheckpoint"] == CHECKPOINT
    refuse(world, WEBHOOK, f"apply RLCheckpoint team/{CHECKPOINT}")
    world.change_spec(artifactPolicy="Delete")
    await world.reconcile(2)
    assert world.condition("ArtifactsRecorded")["reason"] == "ObjectRefused"
    assert world.status["lastCheckpoint"] == CHECKPOINT


async def test_a_refusal_ends_only_when_s3_is_listed_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse_list(*_: Any) -> None:
        raise AccessDenied("no")

    await train(world)
    refuse(world, QUOTA, f"apply RLCheckpoint team/{CHECKPOINT}")
    await world.reconcile()
    monkeypatch.setattr(world.artifacts, "list", refuse_list)
    await world.reconcile()
    assert world.condition("ArtifactsRecorded")["status"] == "False"


async def delete_with_a_kept_checkpoint(world: World, error: ApiError) -> None:
    """As far as the run having no pods, while its checkpoint, from which another run starts, cannot be freed."""
    await train(world)
    await world.reconcile(2)
    other = run_object(checkpointId=CHECKPOINT)
    other["metadata"] |= {"name": "next", "uid": "uid-2"}
    world.cluster.put(other)
    run = world.run
    run["metadata"]["deletionTimestamp"] = world.clock.now.isoformat()
    world.cluster.put(run)
    refuse(world, error, f"apply RLCheckpoint team/{CHECKPOINT}")
    await world.reconcile(3)
    assert world.cluster.all("ReplicaSet", "Job") == [], "the pods end all the same"
    world.cluster.objects = {key: o for key, o in world.cluster.objects.items() if key[0] != "Pod"}
    await world.reconcile(3)
    assert world.run["metadata"]["finalizers"]


@pytest.mark.parametrize("ends", ["time", "annotation"])
async def test_the_wait_for_an_object_that_is_kept_ends(make_world: Callable[..., World], ends: str) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete_with_a_kept_checkpoint(world, UNANSWERED)
    refused = world.condition("ArtifactsRecorded")
    assert (refused["status"], refused["reason"]) == ("False", "ObjectRefused")
    assert f"RLCheckpoint team/{CHECKPOINT}" in refused["message"]
    if ends == "time":
        world.clock.advance(world.settings.artifact_deletion_seconds)
    else:
        run = world.run
        run["metadata"].setdefault("annotations", {})["rlrun.dev/skip-artifact-deletion"] = "true"
        world.cluster.put(run)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
    assert world.artifacts.folders
    assert [e["reason"] for e in world.cluster.events].count("ArtifactsNotDeleted") == 1


async def test_an_error_that_may_pass_costs_no_object_that_is_kept(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete_with_a_kept_checkpoint(world, UNANSWERED)
    refuse(world, OVERLOAD, f"apply RLCheckpoint team/{CHECKPOINT}")
    world.clock.advance(world.settings.artifact_deletion_seconds)
    with pytest.raises(ApiError, match="429"):
        await world.reconcile()
    assert world.run["metadata"]["finalizers"]


async def test_the_deletion_of_a_run_waits_for_an_object_that_it_keeps(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await delete_with_a_kept_checkpoint(world, WEBHOOK)
    assert world.artifacts.folders

    del world.cluster.answers[f"apply RLCheckpoint team/{CHECKPOINT}"]
    await world.reconcile(3)
    assert world.cluster.find("RLRun", "reverse") is None
    assert world.cluster.find("RLCheckpoint", CHECKPOINT)


async def test_pods_that_are_refused_to_a_replica_set_are_reported(world: World) -> None:
    await world.reconcile(2)
    trainer = world.cluster.find("ReplicaSet", "reverse-trainer")
    assert trainer
    message = 'pods "reverse-trainer-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=8'
    trainer["status"] = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": message}]}
    world.cluster.put(trainer)
    await world.reconcile()
    ready = world.condition("TrainerReady")
    assert (ready["status"], ready["reason"]) == ("False", "QuotaExceeded")
    assert message in ready["message"]
    assert world.status["reason"] == "QuotaExceeded"


ORCHESTRATOR = "reverse-orchestrator-a1"


@pytest.mark.parametrize("spec", [{"suspend": True}, {"stop": True}], ids=["suspended", "stopped"])
@pytest.mark.parametrize("error", [WEBHOOK, UNANSWERED], ids=["refused", "webhook that does not respond"])
async def test_a_refused_deletion_is_reported_and_holds_up_no_other(
    world: World, spec: dict[str, Any], error: ApiError
) -> None:
    await train(world)
    refuse(world, error, f"delete Job team/{ORCHESTRATOR}")
    world.change_spec(**spec)
    assert await world.reconcile() == 1, "no event follows"
    assert [o["metadata"]["name"] for o in world.cluster.all("ReplicaSet", "Job")] == [ORCHESTRATOR]
    refused = world.condition("ChildrenApplied")
    assert (refused["status"], refused["reason"]) == ("False", "ObjectRefused")
    assert refused["message"].startswith(f"The API server refused the deletion of Job team/{ORCHESTRATOR}: ")
    assert [e["reason"] for e in world.cluster.events].count("ObjectRefused") == 1
    status = world.status
    world.clock.advance(10)
    await world.reconcile()
    assert world.status == status

    del world.cluster.answers[f"delete Job team/{ORCHESTRATOR}"]
    await world.reconcile()
    assert world.cluster.all("Job") == []
    assert world.condition("ChildrenApplied")["status"] == "True"


async def test_a_refused_deletion_is_tried_less_and_less_often(world: World) -> None:
    await train(world)
    deletion = f"delete Job team/{ORCHESTRATOR}"
    refuse(world, WEBHOOK, deletion)
    world.change_spec(suspend=True)
    end = world.clock.now + timedelta(minutes=10)
    while world.clock.now < end:
        pause = await world.reconcile()
        assert pause is not None
        assert pause <= 30
        world.clock.advance(pause)
    assert world.cluster.calls.count(deletion) <= 27


async def test_policies_stay_while_the_deletion_of_what_could_make_pods_is_refused(world: World) -> None:
    await train(world)
    world.change_spec(suspend=True)
    await world.reconcile()
    world.cluster.objects = {key: o for key, o in world.cluster.objects.items() if key[0] != "Pod"}
    refuse(world, WEBHOOK, "delete ServiceAccount team/reverse")
    await world.reconcile()
    assert world.cluster.all("NetworkPolicy")
    assert world.condition("ChildrenApplied")["reason"] == "ObjectRefused"
    del world.cluster.answers["delete ServiceAccount team/reverse"]
    await world.reconcile()
    assert world.cluster.all("NetworkPolicy", "ServiceAccount") == []


async def test_a_deletion_that_may_succeed_later_holds_up_no_other(world: World) -> None:
    await train(world)
    refuse(world, BROKEN, f"delete Job team/{ORCHESTRATOR}")
    world.change_spec(suspend=True)
    with pytest.raises(ApiError, match="500"):
        await world.reconcile()
    assert [o["metadata"]["name"] for o in world.cluster.all("ReplicaSet", "Job")] == [ORCHESTRATOR]
    assert world.status["phase"] == "Running", "the status is written after what it reports"


@pytest.mark.parametrize(
    "error",
    [OVERLOAD, ApiError(0, "Timeout", "no answer"), ApiError(0, "Unreachable", "x"), ApiError(503, "X", "x")],
    ids=["overload", "timeout", "unreachable", "unavailable"],
)
async def test_no_deletion_follows_an_error_that_the_others_would_have_as_well(world: World, error: ApiError) -> None:
    await train(world)
    refuse(world, error, f"delete Job team/{ORCHESTRATOR}")
    world.change_spec(suspend=True)
    with pytest.raises(ApiError, match=error.reason):
        await world.reconcile()
    assert [call for call in world.cluster.calls if call.startswith("delete ")] == [f"delete Job team/{ORCHESTRATOR}"]
    assert len(world.cluster.all("ReplicaSet", "Job")) == 4


@pytest.mark.parametrize("error", [BROKEN, OVERLOAD], ids=["500", "overload"])
async def test_a_refused_deletion_is_reported_beside_another_error(world: World, error: ApiError) -> None:
    await train(world)
    refuse(world, WEBHOOK, f"delete Job team/{ORCHESTRATOR}")
    refuse(world, error, "delete ReplicaSet team/reverse-trainer")
    world.change_spec(suspend=True)
    for _ in range(2):
        with pytest.raises(ApiError, match=str(error.status)):
            await world.reconcile()
    refused = world.condition("ChildrenApplied")
    assert refused["message"].startswith(f"The API server refused the deletion of Job team/{ORCHESTRATOR}: ")
    assert (world.status["phase"], world.status["reason"]) == ("Running", "ObjectRefused")
    assert [e["reason"] for e in world.cluster.events].count("ObjectRefused") == 1


async def test_a_finished_run_is_not_deleted_while_a_deletion_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world(ttlSecondsAfterFinished=0)
    await train(world)
    refuse(world, WEBHOOK, "delete ReplicaSet team/reverse-trainer")
    world.change_spec(stop=True)
    world.clock.advance(3600)
    await world.reconcile(3)
    assert [o["metadata"]["name"] for o in world.cluster.all("ReplicaSet", "Job")] == ["reverse-trainer"]
    assert world.condition("ChildrenApplied")["reason"] == "ObjectRefused"
    assert world.run


async def test_an_object_with_the_runs_label_and_another_owner_stays(world: World) -> None:
    monitoring = {**foreign("Service", "monitoring"), "spec": {}}
    monitoring["metadata"]["labels"] = {"rlrun.dev/run": "reverse"}
    world.cluster.put(monitoring)
    await world.start()
    assert world.cluster.find("Service", "monitoring")
    assert len(world.cluster.all("ReplicaSet", "Job")) == 4


async def test_the_message_names_the_object_that_is_refused_now(world: World) -> None:
    refuse(world, QUOTA)
    await world.reconcile()
    assert "ReplicaSet team/reverse-trainer" in world.condition("ChildrenApplied")["message"]
    del world.cluster.answers[TRAINER]
    refuse(world, QUOTA, "apply ReplicaSet team/reverse-inference")
    await world.reconcile()
    assert "ReplicaSet team/reverse-inference" in world.condition("ChildrenApplied")["message"]


LIST = "list configmaps in namespace team"
TOO_LARGE = ApiError(0, "TooLarge", "the response has more than 32 MiB", action=LIST)


def too_large(world: World) -> None:
    world.cluster.answers[LIST] = [TOO_LARGE]


async def test_objects_that_are_too_large_to_be_read_become_a_condition_of_a_new_run(world: World) -> None:
    too_large(world)
    with pytest.raises(ApiError):
        await world.reconcile()
    found = world.condition("ChildrenApplied")
    assert (found["status"], found["reason"]) == ("False", "ObjectsTooLarge")
    assert "cannot list configmaps in namespace team" in found["message"]
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "ObjectsTooLarge")
    writes = world.cluster.writes
    with pytest.raises(ApiError):
        await world.reconcile()
    assert world.cluster.writes == writes
    del world.cluster.answers[LIST]
    await world.start()
    assert world.condition("ChildrenApplied")["status"] == "True"
    assert world.cluster.all("Job")


async def test_objects_that_become_too_large_change_no_more_than_a_condition_of_a_run(world: World) -> None:
    await world.start()
    before = world.status
    too_large(world)
    with pytest.raises(ApiError):
        await world.reconcile()
    assert world.condition("ChildrenApplied")["reason"] == "ObjectsTooLarge"
    assert {k: v for k, v in world.status.items() if k not in ("conditions", "reason", "message")} == {
        k: v for k, v in before.items() if k not in ("conditions", "reason", "message")
    }
    del world.cluster.answers[LIST]
    await world.reconcile()
    assert world.condition("ChildrenApplied")["status"] == "True"


@pytest.mark.parametrize(
    "spec", [{"stopRequested": True}, {"suspend": True}, {}], ids=["stopped", "suspended", "going on"]
)
async def test_the_condition_ends_with_the_next_look_that_reads_all(world: World, spec: dict[str, Any]) -> None:
    await world.start()
    too_large(world)
    with pytest.raises(ApiError):
        await world.reconcile()
    world.change_spec(**spec)
    del world.cluster.answers[LIST]
    await world.reconcile()
    assert world.condition("ChildrenApplied")["status"] == "True"
    assert world.status.get("reason") != "ObjectsTooLarge"


async def test_of_several_lists_that_are_too_large_the_first_stays_in_the_condition(world: World) -> None:
    await world.start()
    too_large(world)
    with pytest.raises(ApiError):
        await world.reconcile()
    writes = world.cluster.writes
    del world.cluster.answers[LIST]
    other = "list services in namespace team"
    world.cluster.answers[other] = [ApiError(0, "TooLarge", "the response has more than 4 MiB", action=other)]
    with pytest.raises(ApiError):
        await world.reconcile()
    assert world.cluster.writes == writes


async def test_a_run_that_is_gone_is_not_reported(world: World) -> None:
    await world.start()
    too_large(world)
    run = world.run
    world.cluster.answers["get RLRun team/reverse"] = [run, ApiError(404, "NotFound", "x", details={"name": "reverse"})]
    writes = world.cluster.writes
    with pytest.raises(ApiError, match="TooLarge"):
        await world.reconcile()
    assert world.cluster.writes == writes


def test_a_run_that_was_read_again_has_no_reason_until_a_policy_names_one() -> None:
    status = report_unread(run_object("reverse"), TOO_LARGE, START)
    assert status.reason == "ObjectsTooLarge"
    read = report_read(status).status
    assert read.fields == {"reason": None, "message": None}
    other = status.model_copy(update={"reason": "Suspended"})
    assert report_read(other).status.fields == {}
