"""Whole stories of a run, against a cluster in memory.

Each is told twice: every reconcile is a freshly started operator, or all are one that keeps what it has read.
"""

import base64
import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.constants import CONFIG_ANNOTATION, RUN_UID_LABEL
from rlrun.garbage_collection.tombstones import RunTombstone
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import label
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.store import Unreachable
from rlrun_operator.planning.artifacts import FOLDER_KINDS
from rlrun_operator.planning.resolution import MAX_CONFIG

from tests.support.clocks import START
from tests.support.cluster_objects import OUT_OF_DISK, event_object, evict, model_object, pod, source_secret
from tests.support.expectations import lacks
from tests.support.fake_artifacts import manifest
from tests.support.fake_kubelet import crash_container, end_orchestrator, step_kubelet
from tests.support.fake_poller import training
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"


@pytest.fixture(params=["fresh operators", "one operator"])
def make_world(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> Callable[..., World]:
    def make(**spec: Any) -> World:
        world = make_world(**spec)
        if request.param == "one operator":
            world.follow()
            # Files appear here at any time, not when uploads are due.
            world.settings = world.settings.model_copy(update={"artifact_sweep_seconds": 1.0})
        return world

    return make


def left_of_the_run(world: World) -> list[str]:
    """Its objects besides checkpoints and adapters."""
    labelled = [o for o in world.cluster.objects.values() if label(o, RUN_UID_LABEL) == "uid-1"]
    names = [f"{o['kind']} {o['metadata']['name']}" for o in labelled if o["kind"] not in FOLDER_KINDS.values()]
    return sorted(names)


async def test_run_becomes_pending_and_gets_all_its_children(world: World) -> None:
    assert await world.phase(2) == "Pending"
    assert (world.condition("Validated")["status"], world.condition("Validated")["reason"]) == ("True", "Valid")
    names = {(o["kind"], o["metadata"]["name"]) for o in world.cluster.all("ReplicaSet", "Job", "Secret", "ConfigMap")}
    assert names == {
        ("ReplicaSet", "reverse-trainer"),
        ("ReplicaSet", "reverse-inference"),
        ("ReplicaSet", "reverse-env-0"),
        ("Job", "reverse-orchestrator-a1"),
        ("Secret", "reverse-rlrun-token"),
        ("Secret", "s3"),
        ("ConfigMap", "reverse-config"),
    }
    services = {o["metadata"]["name"] for o in world.cluster.all("Service")}
    assert services == {"reverse-trainer", "reverse-inference", "reverse-env-0", "reverse-orchestrator"}
    assert len(world.cluster.all("NetworkPolicy")) == 2
    assert [o["metadata"]["name"] for o in world.cluster.all("ServiceAccount")] == ["reverse"]


async def test_steady_state_costs_no_write(world: World) -> None:
    await world.train(eta_seconds=10.0)
    before = world.cluster.writes
    for eta in (9.0, 8.0, 7.0):
        world.poller.answer = training(eta_seconds=eta)
        assert await world.reconcile(after=2) == world.settings.poll_seconds
    assert world.cluster.writes == before


async def test_an_orchestrator_that_does_not_answer_is_shown_and_ends_nothing(world: World) -> None:
    await world.start()
    world.poller.answer, world.poller.watches = training(), True
    await world.reconcile()
    world.poller.answer, world.poller.silent = None, 29.0
    await world.reconcile(after=29)
    assert world.condition("OrchestratorReady")["status"] == "True"
    world.poller.silent = 30.0
    await world.reconcile(after=1)
    assert world.condition("OrchestratorReady")["reason"] == "OrchestratorUnreachable"
    assert (world.status["phase"], world.status["reason"]) == ("Running", "OrchestratorUnreachable")
    assert "NetworkPolicies" in world.status["message"]
    assert "(Unreachable)" in world.status["message"], "the reason: the text may change with each request"
    before = world.cluster.writes
    for silent in (60.0, 600.0):
        world.poller.silent = silent
        assert await world.reconcile(after=30) > 30, "it is looked at no more often than a run in which nothing happens"
    assert world.cluster.writes == before
    # After a restart the operator measures the silence from 0 again, and keeps the condition for any error.
    world.poller.silent, world.poller.reason = 0.0, "HTTP503"
    await world.reconcile()
    assert world.cluster.writes == before
    await world.hear(training())
    assert world.condition("OrchestratorReady")["status"] == "True"
    assert world.status.get("reason") is None


@pytest.mark.parametrize(
    ("reason", "condition"), [("WaitingForTrainer", "TrainerReady"), ("WaitingForArtifacts", "OrchestratorReady")]
)
async def test_what_a_run_waits_for_stays_shown_while_its_orchestrator_is_not_silent_for_long(
    world: World, reason: str, condition: str
) -> None:
    await world.start()
    waits = Problem(reason=reason, message="it does not respond")
    await world.hear(training(waiting_for=waits))
    assert world.status["reason"] == waits.reason
    before = world.cluster.writes
    world.poller.answer = None
    for world.poller.silent in (0.0, 29.0):
        await world.reconcile(after=world.poller.silent)
    assert (world.condition(condition)["message"], world.cluster.writes) == (waits.message, before)
    world.poller.silent = 30.0
    await world.reconcile(after=1)
    assert (world.condition("TrainerReady")["status"], world.status["reason"]) == ("True", "OrchestratorUnreachable")


@pytest.mark.parametrize("how", ["stop", "suspend"])
async def test_the_silence_of_an_orchestrator_is_over_when_its_run_is(world: World, how: str) -> None:
    await world.start()
    world.poller.silent = 60.0
    await world.reconcile(after=60)
    assert world.condition("OrchestratorReady")["reason"] == "OrchestratorUnreachable"
    await world.change(4, **{how: True})
    assert world.condition("OrchestratorReady")["reason"] != "OrchestratorUnreachable"


async def test_silence_of_a_pod_that_is_not_ready_says_nothing(world: World) -> None:
    await world.start()
    world.poller.silent = 60.0
    orchestrator = next(p for p in world.cluster.all("Pod") if label(p, "rlrun.dev/role") == "orchestrator")
    ready = next(c for c in orchestrator["status"]["conditions"] if c["type"] == "Ready")

    async def reason(status: str, after: float) -> str:
        ready.update(status=status)
        world.clock.advance(after)
        await world.put(orchestrator)
        return str(world.condition("OrchestratorReady")["reason"])

    assert await reason("False", after=20) == "Starting"
    assert await reason("True", after=600) == "Ready"
    assert await reason("True", after=29) == "Ready"
    assert await reason("True", after=1) == "OrchestratorUnreachable"


async def test_run_runs_completes_and_is_cleaned_up(world: World) -> None:
    await world.train()
    assert world.status["phase"] == "Running"
    assert world.status["progress"]["step"] == 3
    assert world.condition("OrchestratorReady")["status"] == "True"

    world.artifacts.folders[f"{ROOT}/checkpoints/step-000010"] = manifest(10)
    world.artifacts.folders[f"{ROOT}/adapters/step-000010"] = manifest(10)
    last = RunStatus(phase=RunPhase.completed, step=10, max_steps=10, reward=0.9)
    end_orchestrator(world.cluster, 0, last.model_dump_json(by_alias=True))
    await world.reconcile()

    assert world.status["phase"] == "Completed"
    assert world.status["progress"]["reward"] == 0.9
    assert world.condition("Completed")["status"] == "True"
    assert [o["status"]["phase"] for o in world.cluster.all("RLCheckpoint", "RLAdapter")] == ["Ready", "Ready"]
    assert world.cluster.all("ReplicaSet") == []
    assert [o["metadata"]["name"] for o in world.cluster.all("Job")] == ["reverse-orchestrator-a1"]
    assert world.cluster.find("ConfigMap", "reverse-config"), "its deletion follows the status"
    assert world.cluster.find("Secret", "reverse-rlrun-token") is None
    assert world.status["restarts"] == 0
    assert await world.reconcile() is None
    assert left_of_the_run(world) == ["Job reverse-orchestrator-a1", "Pod reverse-orchestrator-a1-0"]
    before, status = world.cluster.writes, world.status
    assert await world.reconcile(3) is None
    assert (world.cluster.writes, world.status) == (before, status)


async def test_children_of_a_finished_run_are_deleted_although_its_spec_is_invalid_now(world: World) -> None:
    await world.start()
    end_orchestrator(world.cluster, 0, "")
    assert await world.phase() == "Completed"
    await world.change(2, maxSteps=0)
    assert left_of_the_run(world) == ["Job reverse-orchestrator-a1", "Pod reverse-orchestrator-a1-0"]
    assert (world.status["phase"], world.condition("Validated")["reason"]) == ("Completed", "InvalidSpec")


async def test_last_artifacts_are_waited_for_until_a_limit(world: World) -> None:
    await world.train()
    end_orchestrator(world.cluster, 0, "")
    world.artifacts.errors["list"] = Unreachable("no answer")
    assert await world.phase() == "Running"
    assert world.condition("ArtifactsListed")["reason"] == "S3Unreachable"
    assert await world.phase(after=121) == "Completed"


async def test_run_starts_once_its_model_exists(world: World) -> None:
    del world.cluster.objects[("RLModel", "", "tiny-model")]
    assert await world.put(model_object("other/one"), 2) is not None
    found = world.condition("Validated")
    assert found["reason"] == "ModelNotFound"
    assert "other/one" in found["message"]
    assert world.cluster.all("ReplicaSet") == []
    await world.put(model_object())
    assert len(world.cluster.all("ReplicaSet")) == 3


@pytest.mark.proves("startDeadlineSeconds")
async def test_start_deadline_fails_with_the_reason_that_held_it_up(make_world: Callable[..., World]) -> None:
    world = make_world(model="no/such", startDeadlineSeconds=60)
    await world.reconcile()
    assert await world.phase(after=61) == "Failed"
    assert world.condition("Failed")["reason"] == "ModelNotFound"
    assert "60 s" in world.condition("Failed")["message"]


@pytest.mark.proves("suspend")
async def test_suspend_and_resume_is_a_new_attempt(world: World) -> None:
    await world.train()
    await world.change(suspend=True)
    assert world.status["phase"] == "Suspended"
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert await world.reconcile(after=1000) is None
    assert left_of_the_run(world) == []
    before = world.cluster.writes
    assert await world.reconcile(3) is None
    assert world.cluster.writes == before
    world.change_spec(suspend=False)
    await world.start()
    assert world.status["attempt"] == 2
    kinds = ("Service", "NetworkPolicy", "ConfigMap", "ServiceAccount")
    assert [len(world.cluster.all(kind)) for kind in kinds] == [4, 2, 1, 1]
    assert world.cluster.find("Secret", "reverse-rlrun-token")
    assert [j["metadata"]["name"] for j in world.cluster.all("Job")] == ["reverse-orchestrator-a2"]
    await world.hear(training(5))
    assert (world.status["phase"], world.status.get("restarts", 0)) == ("Running", 0)


async def test_new_attempt_waits_for_the_old_pods(world: World) -> None:
    await world.start()
    await world.change(suspend=True)
    stuck = pod("trainer", uid="stuck", deleting=True)
    world.cluster.put(stuck)
    await world.change(2, suspend=False)
    assert world.status["reason"] == "WaitingForPreviousPods"
    assert world.cluster.all("ReplicaSet") == []
    del world.cluster.objects[("Pod", "team", stuck["metadata"]["name"])]
    await world.reconcile()
    assert len(world.cluster.all("ReplicaSet")) == 3


@pytest.mark.proves("stop")
async def test_stop_ends_pods_and_keeps_artifacts(world: World) -> None:
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000005"] = manifest(5)
    await world.start()
    await world.change(stop=True)
    assert world.status["phase"] == "Stopped"
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert world.cluster.all("RLCheckpoint")
    assert world.status["completionTime"]
    await world.reconcile()
    assert left_of_the_run(world) == []


@pytest.mark.proves("ttlSecondsAfterFinished")
async def test_ttl_deletes_the_run_and_by_owner_its_children(make_world: Callable[..., World]) -> None:
    world = make_world(stop=True, ttlSecondsAfterFinished=100)
    await world.reconcile()
    assert await world.reconcile() == pytest.approx(100)
    await world.reconcile(after=101)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def test_deleted_pods_count_as_restarts(world: World) -> None:
    await world.train()
    del world.cluster.objects[("Pod", "team", "reverse-trainer-0")]
    await world.reconcile()
    assert world.status["restarts"] == 1
    step_kubelet(world.cluster)
    await world.reconcile(3)
    assert (world.status["restarts"], world.status["phase"]) == (1, "Running")


@pytest.mark.proves("maxRestarts")
async def test_crash_loop_fails_the_run_after_max_restarts(world: World) -> None:
    await world.start()
    trainer = world.cluster.held("Pod", "reverse-trainer-0")
    for crashes in range(1, 5):
        trainer["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        trainer["status"]["containerStatuses"][0] |= {
            "restartCount": crashes,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }
        await world.put(trainer)
        assert world.condition("TrainerReady")["reason"] == "TrainerOutOfMemory"
        assert world.status["phase"] == ("Pending" if crashes <= 3 else "Failed")
    assert world.condition("Failed")["reason"] == "TrainerOutOfMemory"
    assert world.cluster.all("ReplicaSet", "Pod", "Job") == []


async def replace_evicted(world: World, name: str, message: str) -> None:
    """The kubelet evicts the pod, and its ReplicaSet makes another, which is starting."""
    evicted = world.cluster.objects.pop(("Pod", "team", name))
    # The replacement gets its name, so it is another object with another name.
    evicted["metadata"]["name"] += f"-{evicted['metadata']['uid']}"
    evicted["metadata"]["uid"] += "-evicted"
    world.cluster.put(evict(evicted, message))
    step_kubelet(world.cluster, ready=False)
    await world.reconcile()


@pytest.mark.parametrize("message", OUT_OF_DISK)
async def test_an_environment_that_fills_its_disk_fails_the_run_after_max_restarts(world: World, message: str) -> None:
    await world.start()
    for evictions in range(1, 5):
        await replace_evicted(world, "reverse-env-0-0", message)
        found = world.condition("EnvironmentsReady")
        assert (found["status"], found["reason"]) == ("False", "EnvironmentOutOfDisk")
        assert message.strip() in found["message"]
        assert world.status["phase"] == ("Pending" if evictions <= 3 else "Failed")
    assert world.condition("Failed")["reason"] == "EnvironmentOutOfDisk"
    assert "after 4 crashes (`spec.maxRestarts` 3)" in world.condition("Failed")["message"]
    assert world.cluster.all("ReplicaSet", "Job") == []


@pytest.mark.parametrize("reason", ["Evicted", "EnvironmentOutOfDisk"])
async def test_a_failure_rule_applies_to_a_full_disk(make_world: Callable[..., World], reason: str) -> None:
    world = make_world(failurePolicy={"rules": [{"action": "Fail", "roles": ["environment"], "reasons": [reason]}]})
    await world.start()
    await replace_evicted(world, "reverse-env-0-0", OUT_OF_DISK[0])
    assert world.condition("Failed")["reason"] == "EnvironmentOutOfDisk"


async def test_a_missing_volume_that_is_there_now_fails_no_run(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"configErrorDeadlineSeconds": 600})
    await world.start()
    trainer = world.cluster.held("Pod", "reverse-trainer-0")
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START.isoformat()}
    waiting = {"name": "trainer", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    trainer["status"] = {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [waiting]}
    world.cluster.put(trainer)

    def tell(kind: str, reason: str) -> None:
        at, uid = world.clock().isoformat(), trainer["metadata"]["uid"]
        world.cluster.put(event_object(uid, reason, f"{reason} x", at, kind))

    tell("Warning", "FailedMount")
    for seconds in (20, 480):
        await world.reconcile(after=seconds)
        assert world.status["reason"] == "VolumeMountFailed"
    world.clock.advance(20)
    tell("Normal", "Pulling")
    assert await world.phase(after=101) == "Pending"
    assert world.condition("TrainerReady")["reason"] == "Starting"


async def test_configuration_error_of_the_orchestrator_fails_at_once(world: World) -> None:
    await world.start()
    problem = Problem(reason="EnvironmentLoadFailed", message="questions.jsonl is missing")
    last = RunStatus(phase=RunPhase.failed, max_steps=10, problem=problem)
    end_orchestrator(world.cluster, 64, last.model_dump_json(by_alias=True))
    assert await world.phase() == "Failed"
    assert world.condition("Failed")["reason"] == "EnvironmentLoadFailed"
    assert world.condition("EnvironmentsReady")["reason"] == "EnvironmentLoadFailed"


@pytest.mark.proves("failurePolicy.rules.action")
async def test_failure_policy_restart_run(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"rules": [{"action": "RestartRun", "roles": ["trainer"]}]})
    await world.start()
    crash_container(world.cluster, "reverse-trainer-0")
    await world.reconcile()
    assert world.cluster.all("ReplicaSet") == []
    world.clock.advance(10)
    await world.start()
    assert world.status["attempt"] == 2
    assert world.cluster.find("Job", "reverse-orchestrator-a2")


@pytest.mark.parametrize("cause", ["rule", "stall", "orchestrator"])
async def test_the_reconcile_that_fails_a_run_makes_no_child(make_world: Callable[..., World], cause: str) -> None:
    world = make_world(
        stallDeadlineSeconds=600, failurePolicy={"rules": [{"action": "Fail", "roles": ["trainer"], "exitCodes": [9]}]}
    )
    await world.train(last_step_time=START)
    missing = ("Service", "ServiceAccount", "ReplicaSet")
    for child in world.cluster.all(*missing):
        del world.cluster.objects[child["kind"], "team", child["metadata"]["name"]]
    if cause == "rule":
        crash_container(world.cluster, "reverse-trainer-0", 9)
    elif cause == "orchestrator":
        end_orchestrator(world.cluster, 64, "")
    await world.reconcile(after=601 if cause == "stall" else 0)
    assert world.status["phase"] == "Failed"
    assert world.cluster.all(*missing) == []


async def test_waiting_for_is_shown_at_the_role_it_is_about(world: World) -> None:
    await world.start()
    waiting = Problem(reason="EnvironmentPackageMissing", message="rlrun env push")
    await world.hear(RunStatus(phase=RunPhase.starting, max_steps=10, waiting_for=waiting))
    assert world.condition("EnvironmentsReady")["reason"] == "EnvironmentPackageMissing"
    assert world.status["reason"] == "EnvironmentPackageMissing"


async def test_reward_errors_are_visible(world: World) -> None:
    await world.start()
    warning = Problem(reason="RewardFunctionErrors", message="ZeroDivisionError in 3 of 8")
    await world.hear(training(reward_errors=3, warnings=[warning]))
    found = world.condition("RewardFunctionsHealthy")
    assert found["status"] == "False"
    assert "ZeroDivisionError" in found["message"]


@pytest.mark.proves("stallDeadlineSeconds")
async def test_stalled_run_fails(make_world: Callable[..., World]) -> None:
    world = make_world(stallDeadlineSeconds=600)
    await world.train(last_step_time=START)
    assert await world.phase(after=599) == "Running"
    await world.reconcile(after=2)
    assert world.condition("Failed")["reason"] == "StallDeadlineExceeded"


async def test_progress_keeps_a_run_from_stalling(make_world: Callable[..., World]) -> None:
    world = make_world(stallDeadlineSeconds=600)
    await world.start()
    for step in range(5):
        await world.hear(training(step, last_step_time=world.clock.now))
        world.clock.advance(500)
    assert await world.phase() == "Running"


@pytest.mark.proves("activeDeadlineSeconds")
async def test_active_deadline_counts_all_attempts(make_world: Callable[..., World]) -> None:
    world = make_world(activeDeadlineSeconds=1000)
    await world.train()
    world.clock.advance(600)
    await world.change(suspend=True)
    world.clock.advance(5000)
    world.change_spec(suspend=False)
    await world.start()
    assert world.status["phase"] != "Failed"
    await world.reconcile(after=401)
    assert world.condition("Failed")["reason"] == "ActiveDeadlineExceeded"


@pytest.mark.proves("maxSteps")
async def test_raised_max_steps_reach_the_config_and_restart_nothing(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    await world.change(maxSteps=20)
    assert world.config["spec"]["maxSteps"] == 20
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    assert after == before


async def test_a_running_attempt_gets_no_key_that_its_images_do_not_know(world: World) -> None:
    await world.start()
    known = world.config
    del known["spec"]["env"][0]["rolloutTimeoutSeconds"], known["spec"]["loss"]["sequenceTokenHigh"]
    world.write_config(json.dumps(known, indent=2))
    version = world.cluster.held("ConfigMap", "reverse-config")["metadata"]["resourceVersion"]
    await world.reconcile()
    unchanged = world.cluster.held("ConfigMap", "reverse-config")
    assert unchanged["metadata"]["resourceVersion"] == version, "there is nothing to tell the attempt"
    await world.change(maxSteps=20)
    known["spec"]["maxSteps"] = 20
    assert world.config == known


@pytest.mark.parametrize("damaged", ["", "{}", '{"spec": {}}'])
async def test_an_attempt_with_a_damaged_configuration_is_followed_by_another_one(world: World, damaged: str) -> None:
    """Its pods have the configuration of their start; one that is resolved today could be another."""
    await world.start()
    whole = world.config
    world.write_config(damaged)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert world.status["reason"] == "Restarting"
    assert "ConfigurationUnreadable" in world.status["message"]
    await world.reconcile(3, after=60)
    assert (world.status["attempt"], world.status["runRestartsTowardMax"]) == (2, 0)
    assert world.config == whole | {"run": whole["run"] | {"attempt": 2}}


OPENED: dict[str, Any] = {
    "spec.hostNetwork": {"podTemplate": {"spec": {"hostNetwork": True}}},
    "volumes[a].hostPath": {"podTemplate": {"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}},
    "labels must not": {"labels": {"rlrun.dev/role": "orchestrator"}},
}


@pytest.mark.parametrize("field", OPENED)
@pytest.mark.parametrize("role", ["trainer", "inference"])
async def test_no_pod_is_made_from_a_configuration_that_was_changed_to_open_it(
    world: World, role: str, field: str
) -> None:
    """Users may change ConfigMaps of their namespace without a right to create such pods."""
    await world.start()
    changed = world.config
    changed["model"][role] |= OPENED[field]
    world.write_config(changed)
    world.cluster.request_deletion(world.cluster.held("ReplicaSet", f"reverse-{role}"))
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert not lacks(world.status["message"], "ConfigurationUnreadable", f"model.{role}")
    assert field in world.status["message"]
    await world.reconcile(3, after=60)
    assert world.status["attempt"] == 2
    template = world.cluster.held("ReplicaSet", f"reverse-{role}")["spec"]["template"]
    assert "hostNetwork" not in template["spec"]
    assert not any("hostPath" in volume for volume in template["spec"]["volumes"])
    assert template["metadata"]["labels"]["rlrun.dev/role"] == role


async def test_a_damaged_configuration_without_pods_is_written_again(world: World) -> None:
    await world.start()
    whole = world.config
    world.write_config("{}")
    for obj in world.cluster.all("ReplicaSet", "Job"):
        world.cluster.request_deletion(obj)
    await world.reconcile()
    assert world.config == whole


async def test_a_run_completes_although_its_configuration_and_its_model_are_gone(world: World) -> None:
    await world.start()
    world.write_config("{}")
    world.cluster.request_deletion(world.cluster.all("RLModel")[0])
    end_orchestrator(world.cluster, 0, "")
    assert await world.phase(2, after=200) == "Completed"


async def test_an_attempt_outlives_a_rule_that_its_model_does_not_satisfy_any_more(world: World) -> None:
    await world.start()
    frozen = world.config
    frozen["model"]["inference"]["extraArgs"] = ["--max-loras=8"]
    world.write_config(frozen)
    for model in world.cluster.all("RLModel"):
        model["spec"].setdefault("inference", {})["extraArgs"] = ["--max-loras=8"]
    before = world.condition("Validated")
    await world.reconcile()
    assert world.condition("Validated") == before
    assert world.status["phase"] != "Failed"
    assert world.status.get("reason") != "ModelInvalid"


async def test_only_the_pod_that_reads_a_changed_config_is_annotated(world: World) -> None:
    await world.start()

    def nudged() -> dict[str, str]:
        pods = {p["metadata"]["name"]: p["metadata"].get("annotations") or {} for p in world.cluster.all("Pod")}
        return {name: notes[CONFIG_ANNOTATION] for name, notes in pods.items() if CONFIG_ANNOTATION in notes}

    assert not nudged(), "a fresh pod has mounted what there is"
    await world.change(maxSteps=20)
    first = nudged()
    assert len(first) == 1
    assert all("orchestrator" in name for name in first)
    await world.reconcile()
    assert nudged() == first
    await world.change(maxSteps=30)
    assert nudged().keys() == first.keys()
    assert nudged() != first


@pytest.mark.parametrize("status", [403, 404, 409, 503])
async def test_a_pod_that_cannot_be_annotated_does_not_stop_the_reconcile(
    world: World, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    await world.start()

    async def refuse(*_: object) -> NoReturn:
        raise ApiError(status, "Refused", "pods")

    monkeypatch.setattr(world.cluster, "patch", refuse)
    await world.change(maxSteps=20)
    assert world.config["spec"]["maxSteps"] == 20


async def test_operator_upgrade_and_model_change_restart_nothing(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    world.settings = world.settings.model_copy(
        update={"images": world.settings.images.model_copy(update={"trainer": world.settings.images.inference})}
    )
    await world.put(model_object(seqLen=512), 3)
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    assert after == before


async def test_lost_child_is_made_again_from_the_frozen_model(world: World) -> None:
    await world.start()
    world.cluster.put(model_object(seqLen=512))
    del world.cluster.objects[("ReplicaSet", "team", "reverse-inference")]
    await world.reconcile()
    args = world.cluster.held("ReplicaSet", "reverse-inference")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert args[args.index("--max-model-len") + 1] == "256"


async def test_credentials_of_the_platform_stay_in_its_namespace(world: World) -> None:
    await world.start()
    text = json.dumps([o for (_, namespace, _), o in world.cluster.objects.items() if namespace != "rlrun-system"])
    secret = source_secret()["data"]
    assert secret["AWS_ACCESS_KEY_ID"]
    for value in secret.values():
        assert value not in text
        assert base64.b64decode(value).decode() not in text
    assert "AWS_ACCESS_KEY_ID" not in text


async def test_missing_source_secret_is_reported(world: World) -> None:
    del world.cluster.objects[("Secret", "rlrun-system", "s3")]
    await world.reconcile()
    assert world.condition("Validated")["reason"] == "S3CredentialsMissing"


async def test_s3_problem_is_reported(world: World) -> None:
    world.artifacts.problem = Problem(reason="S3BucketMissing", message="create it")
    await world.reconcile()
    assert world.condition("Validated")["reason"] == "S3BucketMissing"


@pytest.mark.parametrize(
    ("kind", "labels", "label", "refused"),
    [
        (None, {}, "", None),
        ("Opaque", {}, "", None),
        ("kubernetes.io/service-account-token", {}, "", "kubernetes.io/service-account-token"),
        ("kubernetes.io/dockerconfigjson", {"use": "runs"}, "use=runs", "kubernetes.io/dockerconfigjson"),
        ("Opaque", {}, "use=runs", "label use=runs"),
        ("Opaque", {"use": "web"}, "use=runs", "label use=runs"),
        ("Opaque", {"use": "runs"}, "use=runs", None),
        ("Opaque", {"use": "web"}, "use", None),
        ("Opaque", {}, "use", "label use"),
    ],
)
async def test_secrets_of_other_types_and_without_the_label_reach_no_environment(
    make_world: Callable[..., World], kind: str | None, labels: dict[str, str], label: str, refused: str | None
) -> None:
    world = make_world(envFrom=[{"secretRef": {"name": "judge", "optional": True}}])
    world.settings = world.settings.model_copy(update={"secret_label": label})
    metadata = {"name": "judge", "namespace": "team", "uid": "secret-judge", "labels": labels}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"token": "eA=="}}
    await world.put(secret if kind is None else {**secret, "type": kind})
    condition = world.condition("Validated")
    assert condition["reason"] == ("SecretReserved" if refused else "Valid")
    if refused:
        assert "Secret judge" in condition["message"]
        assert refused in condition["message"]
        assert not world.cluster.all("ReplicaSet")


@pytest.mark.proves("envFrom.secretRef.name", "envFrom.secretRef.optional")
async def test_missing_environment_secret_is_reported(make_world: Callable[..., World]) -> None:
    world = make_world(envFrom=[{"secretRef": {"name": "judge"}}, {"secretRef": {"name": "opt", "optional": True}}])
    await world.reconcile()
    assert world.condition("Validated")["reason"] == "SecretsMissing"
    assert "judge" in world.condition("Validated")["message"]
    assert "opt" not in world.condition("Validated")["message"].replace("optional", "")


@pytest.mark.proves("checkpoints.keepCloud", "adapters.keepLast")
async def test_artifacts_appear_and_are_kept_by_the_rule(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoints={"keepCloud": 2}, adapters={"keepLast": 1})
    await world.start()
    for step in (1, 2, 3, 4):
        world.artifacts.folders[f"{ROOT}/checkpoints/step-{step:06d}"] = manifest(step, reward=step / 10)
        world.artifacts.folders[f"{ROOT}/adapters/step-{step:06d}"] = manifest(step)
        await world.reconcile()
        if step == 2:
            adapter = next(o for o in world.cluster.all("RLAdapter") if o["spec"]["step"] == 2)
            world.cluster.put({**adapter, "spec": {**adapter["spec"], "deployed": True}})
    await world.reconcile()
    steps = {kind: [o["spec"]["step"] for o in world.cluster.all(kind)] for kind in ("RLCheckpoint", "RLAdapter")}
    assert steps == {"RLCheckpoint": [3, 4], "RLAdapter": [2, 4]}
    assert f"{ROOT}/checkpoints/step-000001" not in world.artifacts.folders
    assert f"{ROOT}/adapters/step-000002" in world.artifacts.folders
    assert [c["step"] for c in world.status["checkpoints"]] == [4, 3]
    assert world.status["checkpoints"][0]["reward"] == 0.4
    assert world.status["lastCheckpoint"] == "reverse-step-000004-uid-1"
    assert all("ownerReferences" not in o["metadata"] for o in world.cluster.all("RLCheckpoint"))


async def test_a_checkpoint_that_retention_has_removed_stays_removed(make_world: Callable[..., World]) -> None:
    """Also while it is unknown who starts from what: the last listing of S3 has the files that were deleted."""
    world = make_world(checkpoints={"keepCloud": 1})
    await world.start()
    world.follow()
    for step in (1, 2):
        world.artifacts.folders[f"{ROOT}/checkpoints/step-{step:06d}"] = manifest(step)
        await world.hear(training(step))
    await world.reconcile()
    world.cluster.answers["list rlruns"] = [ApiError(429, "TooManyRequests", "later")] * 2
    for _ in range(2):
        assert [o["spec"]["step"] for o in world.cluster.all("RLCheckpoint")] == [2]
        await world.reconcile()


async def test_upload_in_progress_is_no_artifact_yet(world: World) -> None:
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = None
    await world.reconcile()
    assert world.cluster.all("RLCheckpoint") == []


@pytest.mark.proves("artifactPolicy")
async def test_artifact_policy_delete_removes_files(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    assert world.run["metadata"]["finalizers"] == ["rlrun.dev/artifacts"]
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    assert world.cluster.all("RLCheckpoint")[0]["metadata"]["ownerReferences"]
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert world.artifacts.folders, "files may go only after the pods"
    await world.reconcile()
    assert world.artifacts.folders == {}
    assert world.cluster.find("RLRun", "reverse") is None
    assert world.cluster.all("RLCheckpoint") == []


async def test_deletion_of_artifacts_ends_at_its_deadline(make_world: Callable[..., World]) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    world.artifacts.errors["purge"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await world.reconcile()
    assert world.cluster.find("RLRun", "reverse")
    await world.reconcile(after=301)
    assert world.cluster.find("RLRun", "reverse") is None
    assert any(e["reason"] == "ArtifactsNotDeleted" for e in world.cluster.events)


async def test_the_deletion_of_a_run_leaves_its_files_and_a_tombstone(world: World) -> None:
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job") == []
    assert world.artifacts.folders
    assert len(world.cluster.all("RLCheckpoint")) == 1
    assert world.cluster.find("RLRun", "reverse") is None
    (tombstone,) = [data for uri, data in world.artifacts.files.items() if "/rlrun.deleted/" in uri]
    assert RunTombstone.model_validate_json(tombstone) == RunTombstone(artifact_policy=ArtifactPolicy.retain)


async def test_a_run_is_deleted_without_its_tombstone_if_s3_does_not_answer_for_a_minute(world: World) -> None:
    await world.start()
    world.cluster.request_deletion(world.run)
    world.artifacts.errors["write_tombstone"] = Unreachable("no answer")
    with pytest.raises(Unreachable):
        await world.reconcile()
    with pytest.raises(Unreachable):
        await world.reconcile(after=10)
    assert "The operator stops trying after 60 s" in world.status["message"]
    await world.reconcile(after=51)
    assert world.cluster.find("RLRun", "reverse") is None
    (event,) = [e for e in world.cluster.events if e["reason"] == "ArtifactsNotDeleted"]
    assert "rlrun gc --mark-deleted team/" in event["message"]


async def test_earlier_run_of_the_same_name_is_cleared_first(world: World) -> None:
    await world.start()
    await world.put({**world.run, "metadata": {**world.run["metadata"], "uid": "uid-2", "generation": 1}, "status": {}})
    assert world.status["reason"] == "WaitingForPreviousPods"
    await world.reconcile(2)
    assert {d["metadata"]["labels"]["rlrun.dev/run-uid"] for d in world.cluster.all("ReplicaSet")} == {"uid-2"}


async def test_each_transition_creates_one_event(world: World) -> None:
    await world.start()
    await world.hear(training(), 5)
    reasons = [e["reason"] for e in world.cluster.events]
    assert reasons.count("Running") == 1
    assert reasons.count("Pending") == 1


async def test_invalid_spec_names_every_field(make_world: Callable[..., World]) -> None:
    world = make_world(maxSteps=0, learningRate=-1)
    await world.reconcile()
    message = world.condition("Validated")["message"]
    assert not lacks(message, "spec.maxSteps", "spec.learningRate")


async def test_lost_status_does_not_lose_a_running_run(world: World) -> None:
    await world.train()
    world.cluster.put({**world.run, "status": {}})
    before = len(world.cluster.all("Pod"))
    assert await world.phase(2) == "Running"
    assert len(world.cluster.all("Pod")) == before


async def test_a_configuration_that_became_too_large_is_named_with_its_size(world: World) -> None:
    await world.start()
    config = world.cluster.held("ConfigMap", "reverse-config")
    config["data"]["run.json"] += " " * MAX_CONFIG
    size = len(config["data"]["run.json"])
    await world.reconcile()
    running = world.condition("Running")
    assert (running["status"], running["reason"]) == ("False", "Restarting")
    for part in ("ConfigMap reverse-config", '`data["run.json"]`', f"{size} characters", str(MAX_CONFIG)):
        assert part in running["message"]
    await world.reconcile(3, after=60)
    assert world.status["attempt"] == 2


async def test_the_configuration_of_a_large_spec_can_be_read(world: World) -> None:
    # With a line for each number it would have 1.2 MB, which no ConfigMap can have.
    entries = [{"id": f"rlrun/e{number}", "args": {"rows": [1] * 30_000}} for number in range(4)]
    world.change_spec(env=entries)
    await world.start()
    assert len(world.cluster.held("ConfigMap", "reverse-config")["data"]["run.json"]) < MAX_CONFIG
    await world.change(2, maxSteps=20)
    changed = world.cluster.held("ConfigMap", "reverse-config")
    assert json.loads(changed["data"]["run.json"])["spec"]["maxSteps"] == 20
    assert len(changed["data"]["run.json"]) < MAX_CONFIG
    assert world.status["attempt"] == 1
