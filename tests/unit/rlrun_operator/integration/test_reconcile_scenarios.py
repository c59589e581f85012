"""Whole stories of a run, against a cluster in memory.

Each is told twice: every reconcile is a freshly started operator, or all are one that keeps what it has read.
"""

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn

import pytest
from rlrun.constants import CONFIG_ANNOTATION, RUN_UID_LABEL
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import label
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.policies.artifacts.artifact_objects import FOLDER_KINDS
from rlrun_operator.planning.policies.spec.resolution import MAX_CONFIG

from tests.support.clocks import START
from tests.support.cluster_objects import NODE_FULL, OUT_OF_DISK, evict, model_object, pod, source_secret
from tests.support.fake_artifacts import manifest
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
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


def running(step: int = 3, **more: Any) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=10, reward=0.5, started_at=START, **more)


def left_of_the_run(world: World) -> list[str]:
    """Its objects besides checkpoints and adapters."""
    labelled = [o for o in world.cluster.objects.values() if label(o, RUN_UID_LABEL) == "uid-1"]
    names = [f"{o['kind']} {o['metadata']['name']}" for o in labelled if o["kind"] not in FOLDER_KINDS.values()]
    return sorted(names)


async def test_run_becomes_pending_and_gets_all_its_children(world: World) -> None:
    await world.reconcile(2)
    assert world.status["phase"] == "Pending"
    assert world.condition("Validated")["status"] == "True"
    assert world.condition("Validated")["reason"] == "Valid"
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
    await world.start()
    world.poller.answer = running(eta_seconds=10.0)
    await world.reconcile()
    before = world.cluster.writes
    for eta in (9.0, 8.0, 7.0):
        world.poller.answer = running(eta_seconds=eta)
        world.clock.advance(2)
        assert await world.reconcile() == world.settings.poll_seconds
    assert world.cluster.writes == before


async def test_an_orchestrator_that_does_not_answer_is_shown_and_ends_nothing(world: World) -> None:
    await world.start()
    world.poller.answer, world.poller.watches = running(), True
    await world.reconcile()
    world.poller.answer, world.poller.silent = None, 29.0
    await world.reconcile()
    assert world.condition("OrchestratorReady")["status"] == "True"
    world.poller.silent = 30.0
    await world.reconcile()
    assert world.condition("OrchestratorReady")["reason"] == "OrchestratorUnreachable"
    assert (world.status["phase"], world.status["reason"]) == ("Running", "OrchestratorUnreachable")
    assert "NetworkPolicies" in world.status["message"]
    assert "(Unreachable)" in world.status["message"], "the reason: the text may change with each request"
    before = world.cluster.writes
    for silent in (60.0, 600.0):
        world.poller.silent = silent
        world.clock.advance(30)
        assert await world.reconcile() > 30, "it is looked at no more often than a run in which nothing happens"
    assert world.cluster.writes == before
    # After a restart the operator measures the silence from 0 again, and keeps the condition for any error.
    world.poller.silent, world.poller.reason = 0.0, "HTTP503"
    await world.reconcile()
    assert world.cluster.writes == before
    world.poller.answer = running()
    await world.reconcile()
    assert world.condition("OrchestratorReady")["status"] == "True"
    assert world.status.get("reason") is None


async def test_what_a_run_waits_for_stays_shown_while_its_orchestrator_is_not_silent_for_long(world: World) -> None:
    await world.start()
    waits = Problem(reason="WaitingForTrainer", message="the trainer does not respond")
    world.poller.answer = running(waiting_for=waits)
    await world.reconcile()
    assert world.status["reason"] == waits.reason
    before = world.cluster.writes
    world.poller.answer = None
    for world.poller.silent in (0.0, 29.0):
        await world.reconcile()
    assert (world.condition("TrainerReady")["message"], world.cluster.writes) == (waits.message, before)
    world.poller.silent = 30.0
    await world.reconcile()
    assert world.condition("TrainerReady")["status"] == "True"
    assert world.status["reason"] == "OrchestratorUnreachable"


@pytest.mark.parametrize("how", ["stop", "suspend"])
async def test_the_silence_of_an_orchestrator_is_over_when_its_run_is(world: World, how: str) -> None:
    await world.start()
    world.poller.silent = 60.0
    await world.reconcile()
    assert world.condition("OrchestratorReady")["reason"] == "OrchestratorUnreachable"
    world.change_spec(**{how: True})
    await world.reconcile(4)
    assert world.condition("OrchestratorReady")["reason"] != "OrchestratorUnreachable"


async def test_silence_of_a_pod_that_is_not_ready_says_nothing(world: World) -> None:
    await world.start()
    world.poller.silent = 60.0
    orchestrator = next(p for p in world.cluster.all("Pod") if label(p, "rlrun.dev/role") == "orchestrator")
    ready = next(c for c in orchestrator["status"]["conditions"] if c["type"] == "Ready")

    async def reason(status: str, since: datetime) -> str:
        ready.update(status=status, lastTransitionTime=since.isoformat())
        world.cluster.put(orchestrator)
        await world.reconcile()
        return str(world.condition("OrchestratorReady")["reason"])

    assert await reason("False", world.clock.now) == "Starting"
    assert await reason("True", world.clock.now - timedelta(seconds=29)) == "Ready"
    assert await reason("True", world.clock.now - timedelta(seconds=30)) == "OrchestratorUnreachable"


async def test_run_runs_completes_and_is_cleaned_up(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
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
    await world.reconcile()
    assert world.status["phase"] == "Completed"
    world.change_spec(maxSteps=0)
    await world.reconcile(2)
    assert left_of_the_run(world) == ["Job reverse-orchestrator-a1", "Pod reverse-orchestrator-a1-0"]
    assert world.status["phase"] == "Completed"
    assert world.condition("Validated")["reason"] == "InvalidSpec"


async def test_last_artifacts_are_waited_for_until_a_limit(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
    end_orchestrator(world.cluster, 0, "")

    async def fail(*_: object) -> list[object]:
        from rlrun.storage.store import Unreachable

        raise Unreachable("no answer")

    world.artifacts.list = fail  # type: ignore[method-assign, assignment]
    await world.reconcile()
    assert world.status["phase"] == "Running"
    assert world.condition("ArtifactsListed")["reason"] == "S3Unreachable"
    world.clock.advance(121)
    await world.reconcile()
    assert world.status["phase"] == "Completed"


async def test_run_starts_once_its_model_exists(world: World) -> None:
    del world.cluster.objects[("RLModel", "", "tiny-model")]
    world.cluster.put(model_object("other/one"))
    assert await world.reconcile(2) is not None
    found = world.condition("Validated")
    assert found["reason"] == "ModelNotFound"
    assert "other/one" in found["message"]
    assert world.cluster.all("ReplicaSet") == []
    world.cluster.put(model_object())
    await world.reconcile()
    assert len(world.cluster.all("ReplicaSet")) == 3


@pytest.mark.proves("startDeadlineSeconds")
async def test_start_deadline_fails_with_the_reason_that_held_it_up(make_world: Callable[..., World]) -> None:
    world = make_world(model="no/such", startDeadlineSeconds=60)
    await world.reconcile()
    world.clock.advance(61)
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.condition("Failed")["reason"] == "ModelNotFound"
    assert "60 s" in world.condition("Failed")["message"]


@pytest.mark.proves("suspend")
async def test_suspend_and_resume_is_a_new_attempt(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
    world.change_spec(suspend=True)
    await world.reconcile()
    assert world.status["phase"] == "Suspended"
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    world.clock.advance(1000)
    assert await world.reconcile() is None
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
    world.poller.answer = running(5)
    await world.reconcile()
    assert world.status["phase"] == "Running"
    assert world.status.get("restarts", 0) == 0


async def test_new_attempt_waits_for_the_old_pods(world: World) -> None:
    await world.start()
    world.change_spec(suspend=True)
    await world.reconcile()
    stuck = pod("trainer", uid="stuck", deleting=True)
    world.cluster.put(stuck)
    world.change_spec(suspend=False)
    await world.reconcile(2)
    assert world.status["reason"] == "WaitingForPreviousPods"
    assert world.cluster.all("ReplicaSet") == []
    del world.cluster.objects[("Pod", "team", stuck["metadata"]["name"])]
    await world.reconcile()
    assert len(world.cluster.all("ReplicaSet")) == 3


@pytest.mark.proves("stop")
async def test_stop_ends_pods_and_keeps_artifacts(world: World) -> None:
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000005"] = manifest(5)
    await world.start()
    world.change_spec(stop=True)
    await world.reconcile()
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
    world.clock.advance(101)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None


async def test_deleted_pods_count_as_restarts(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
    del world.cluster.objects[("Pod", "team", "reverse-trainer-0")]
    await world.reconcile()
    assert world.status["restarts"] == 1
    step_kubelet(world.cluster)
    await world.reconcile(3)
    assert world.status["restarts"] == 1
    assert world.status["phase"] == "Running"


@pytest.mark.proves("maxRestarts")
async def test_crash_loop_fails_the_run_after_max_restarts(world: World) -> None:
    await world.start()
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    for crashes in range(1, 5):
        trainer["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        trainer["status"]["containerStatuses"][0] |= {
            "restartCount": crashes,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }
        world.cluster.put(trainer)
        await world.reconcile()
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


async def test_environments_evicted_for_a_full_node_fail_no_run(world: World) -> None:
    await world.start()
    for _ in range(5):
        await replace_evicted(world, "reverse-env-0-0", NODE_FULL)
    assert world.status["phase"] == "Pending"
    assert world.condition("EnvironmentsReady")["reason"] == "Starting"


@pytest.mark.parametrize("reason", ["Evicted", "EnvironmentOutOfDisk"])
async def test_a_failure_rule_applies_to_a_full_disk(make_world: Callable[..., World], reason: str) -> None:
    world = make_world(failurePolicy={"rules": [{"action": "Fail", "roles": ["environment"], "reasons": [reason]}]})
    await world.start()
    await replace_evicted(world, "reverse-env-0-0", OUT_OF_DISK[0])
    assert world.condition("Failed")["reason"] == "EnvironmentOutOfDisk"


async def test_a_missing_volume_that_is_there_now_fails_no_run(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"configErrorDeadlineSeconds": 600})
    await world.start()
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": START.isoformat()}
    waiting = {"name": "trainer", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
    trainer["status"] = {"phase": "Pending", "conditions": [scheduled], "containerStatuses": [waiting]}
    world.cluster.put(trainer)

    def tell(kind: str, reason: str) -> None:
        metadata = {"name": reason, "namespace": "team"}
        at, about = world.clock().isoformat(), {"uid": trainer["metadata"]["uid"]}
        event = {"kind": "Event", "metadata": metadata, "involvedObject": about, "type": kind, "reason": reason}
        world.cluster.put({**event, "message": f"{reason} x", "lastTimestamp": at})

    tell("Warning", "FailedMount")
    for seconds in (20, 480):
        world.clock.advance(seconds)
        await world.reconcile()
        assert world.status["reason"] == "VolumeMountFailed"
    world.clock.advance(20)
    tell("Normal", "Pulling")
    world.clock.advance(101)
    await world.reconcile()
    assert world.status["phase"] == "Pending"
    assert world.condition("TrainerReady")["reason"] == "Starting"


async def test_configuration_error_of_the_orchestrator_fails_at_once(world: World) -> None:
    await world.start()
    problem = Problem(reason="EnvironmentLoadFailed", message="questions.jsonl is missing")
    last = RunStatus(phase=RunPhase.failed, max_steps=10, problem=problem)
    end_orchestrator(world.cluster, 64, last.model_dump_json(by_alias=True))
    await world.reconcile()
    assert world.status["phase"] == "Failed"
    assert world.condition("Failed")["reason"] == "EnvironmentLoadFailed"
    assert world.condition("EnvironmentsReady")["reason"] == "EnvironmentLoadFailed"


@pytest.mark.proves("failurePolicy.rules.action")
async def test_failure_policy_restart_run(make_world: Callable[..., World]) -> None:
    world = make_world(failurePolicy={"rules": [{"action": "RestartRun", "roles": ["trainer"]}]})
    await world.start()
    trainer = world.cluster.find("Pod", "reverse-trainer-0")
    assert trainer
    trainer["status"]["containerStatuses"][0] |= {"restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}
    world.cluster.put(trainer)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet") == []
    world.clock.advance(10)
    await world.start()
    assert world.status["attempt"] == 2
    assert world.cluster.find("Job", "reverse-orchestrator-a2")


async def test_waiting_for_is_shown_at_the_role_it_is_about(world: World) -> None:
    await world.start()
    waiting = Problem(reason="EnvironmentPackageMissing", message="rlrun env push")
    world.poller.answer = RunStatus(phase=RunPhase.starting, max_steps=10, waiting_for=waiting)
    await world.reconcile()
    assert world.condition("EnvironmentsReady")["reason"] == "EnvironmentPackageMissing"
    assert world.status["reason"] == "EnvironmentPackageMissing"


async def test_reward_errors_are_visible(world: World) -> None:
    await world.start()
    warning = Problem(reason="RewardFunctionErrors", message="ZeroDivisionError in 3 of 8")
    world.poller.answer = running(reward_errors=3, warnings=[warning])
    await world.reconcile()
    found = world.condition("RewardFunctionsHealthy")
    assert found["status"] == "False"
    assert "ZeroDivisionError" in found["message"]


@pytest.mark.proves("stallDeadlineSeconds")
async def test_stalled_run_fails(make_world: Callable[..., World]) -> None:
    world = make_world(stallDeadlineSeconds=600)
    await world.start()
    world.poller.answer = running(last_step_time=START)
    await world.reconcile()
    world.clock.advance(599)
    await world.reconcile()
    assert world.status["phase"] == "Running"
    world.clock.advance(2)
    await world.reconcile()
    assert world.condition("Failed")["reason"] == "StallDeadlineExceeded"


async def test_progress_keeps_a_run_from_stalling(make_world: Callable[..., World]) -> None:
    world = make_world(stallDeadlineSeconds=600)
    await world.start()
    for step in range(5):
        world.poller.answer = running(step, last_step_time=world.clock.now)
        await world.reconcile()
        world.clock.advance(500)
    await world.reconcile()
    assert world.status["phase"] == "Running"


@pytest.mark.proves("activeDeadlineSeconds")
async def test_active_deadline_counts_all_attempts(make_world: Callable[..., World]) -> None:
    world = make_world(activeDeadlineSeconds=1000)
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
    world.clock.advance(600)
    world.change_spec(suspend=True)
    await world.reconcile()
    world.clock.advance(5000)
    world.change_spec(suspend=False)
    await world.start()
    assert world.status["phase"] != "Failed"
    world.clock.advance(401)
    await world.reconcile()
    assert world.condition("Failed")["reason"] == "ActiveDeadlineExceeded"


@pytest.mark.proves("maxSteps")
async def test_raised_max_steps_reach_the_config_and_restart_nothing(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    world.change_spec(maxSteps=20)
    await world.reconcile()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    assert '"maxSteps": 20' in config["data"]["run.json"]
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    assert after == before


async def test_a_running_attempt_gets_no_key_that_its_images_do_not_know(world: World) -> None:
    await world.start()
    stored = world.cluster.find("ConfigMap", "reverse-config")
    assert stored
    known = json.loads(stored["data"]["run.json"])
    del known["spec"]["env"][0]["rolloutTimeoutSeconds"], known["spec"]["loss"]["sequenceTokenHigh"]
    world.cluster.put({**stored, "data": {**stored["data"], "run.json": json.dumps(known, indent=2)}})
    stored = world.cluster.find("ConfigMap", "reverse-config")
    assert stored
    version = stored["metadata"]["resourceVersion"]

    await world.reconcile()
    unchanged = world.cluster.find("ConfigMap", "reverse-config")
    assert unchanged
    assert unchanged["metadata"]["resourceVersion"] == version, "there is nothing to tell the attempt"

    world.change_spec(maxSteps=20)
    await world.reconcile()
    changed = world.cluster.find("ConfigMap", "reverse-config")
    assert changed
    known["spec"]["maxSteps"] = 20
    assert json.loads(changed["data"]["run.json"]) == known


@pytest.mark.parametrize("damaged", ["", "{}", '{"spec": {}}'])
async def test_an_attempt_with_a_damaged_configuration_is_followed_by_another_one(world: World, damaged: str) -> None:
    """Its pods have the configuration of their start; one that is resolved today could be another."""
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    whole = json.loads(config["data"]["run.json"])
    config["data"]["run.json"] = damaged
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert world.status["reason"] == "Restarting"
    assert "ConfigurationUnreadable" in world.status["message"]
    world.clock.advance(60)
    await world.reconcile(3)
    assert world.status["attempt"] == 2
    assert world.status["runRestartsTowardMax"] == 0
    mended = world.cluster.find("ConfigMap", "reverse-config")
    assert mended
    assert json.loads(mended["data"]["run.json"]) == whole | {"run": whole["run"] | {"attempt": 2}}


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
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    changed = json.loads(config["data"]["run.json"])
    changed["model"][role] |= OPENED[field]
    config["data"]["run.json"] = json.dumps(changed)
    lost = world.cluster.find("ReplicaSet", f"reverse-{role}")
    assert lost
    world.cluster.request_deletion(lost)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job", "Pod") == []
    assert "ConfigurationUnreadable" in world.status["message"]
    assert f"model.{role}" in world.status["message"]
    assert field in world.status["message"]
    world.clock.advance(60)
    await world.reconcile(3)
    assert world.status["attempt"] == 2
    made = world.cluster.find("ReplicaSet", f"reverse-{role}")
    assert made
    template = made["spec"]["template"]
    assert "hostNetwork" not in template["spec"]
    assert not any("hostPath" in volume for volume in template["spec"]["volumes"])
    assert template["metadata"]["labels"]["rlrun.dev/role"] == role


async def test_a_damaged_configuration_without_pods_is_written_again(world: World) -> None:
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    whole, config["data"]["run.json"] = config["data"]["run.json"], "{}"
    for obj in world.cluster.all("ReplicaSet", "Job"):
        world.cluster.request_deletion(obj)
    await world.reconcile()
    mended = world.cluster.find("ConfigMap", "reverse-config")
    assert mended
    assert mended["data"]["run.json"] == whole


async def test_a_run_completes_although_its_configuration_and_its_model_are_gone(world: World) -> None:
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    config["data"]["run.json"] = "{}"
    world.cluster.request_deletion(world.cluster.all("RLModel")[0])
    end_orchestrator(world.cluster, 0, "")
    world.clock.advance(200)
    await world.reconcile(2)
    assert world.status["phase"] == "Completed"


async def test_an_attempt_outlives_a_rule_that_its_model_does_not_satisfy_any_more(world: World) -> None:
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    frozen = json.loads(config["data"]["run.json"])
    frozen["model"]["inference"]["extraArgs"] = ["--max-loras=8"]
    config["data"]["run.json"] = json.dumps(frozen)
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
    world.change_spec(maxSteps=20)
    await world.reconcile()
    first = nudged()
    assert len(first) == 1
    assert all("orchestrator" in name for name in first)
    await world.reconcile()
    assert nudged() == first
    world.change_spec(maxSteps=30)
    await world.reconcile()
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
    world.change_spec(maxSteps=20)
    await world.reconcile()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    assert '"maxSteps": 20' in config["data"]["run.json"]


async def test_operator_upgrade_and_model_change_restart_nothing(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    world.settings = world.settings.model_copy(
        update={"images": world.settings.images.model_copy(update={"trainer": world.settings.images.inference})}
    )
    world.cluster.put(model_object(seqLen=512))
    await world.reconcile(3)
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("ReplicaSet", "Job")}
    assert after == before


async def test_lost_child_is_made_again_from_the_frozen_model(world: World) -> None:
    await world.start()
    world.cluster.put(model_object(seqLen=512))
    del world.cluster.objects[("ReplicaSet", "team", "reverse-inference")]
    await world.reconcile()
    made = world.cluster.find("ReplicaSet", "reverse-inference")
    assert made
    args = made["spec"]["template"]["spec"]["containers"][0]["args"]
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
    world.cluster.put(secret if kind is None else {**secret, "type": kind})
    await world.reconcile()
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

    async def fail(*_: object) -> None:
        from rlrun.storage.store import Unreachable

        raise Unreachable("no answer")

    world.artifacts.purge = fail  # type: ignore[method-assign, assignment]
    from rlrun.storage.store import Unreachable

    with pytest.raises(Unreachable):
        await world.reconcile()
    assert world.cluster.find("RLRun", "reverse")
    world.clock.advance(301)
    await world.reconcile()
    assert world.cluster.find("RLRun", "reverse") is None
    assert any(e["reason"] == "ArtifactsNotDeleted" for e in world.cluster.events)


async def test_retained_run_needs_no_finalizer(world: World) -> None:
    await world.start()
    assert not world.run["metadata"].get("finalizers")
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    world.cluster.request_deletion(world.run)
    await world.reconcile()
    assert world.cluster.all("ReplicaSet", "Job") == []
    assert world.artifacts.folders
    assert len(world.cluster.all("RLCheckpoint")) == 1


async def test_earlier_run_of_the_same_name_is_cleared_first(world: World) -> None:
    await world.start()
    world.cluster.put(
        {**world.run, "metadata": {**world.run["metadata"], "uid": "uid-2", "generation": 1}, "status": {}}
    )
    await world.reconcile()
    assert world.status["reason"] == "WaitingForPreviousPods"
    await world.reconcile(2)
    assert {d["metadata"]["labels"]["rlrun.dev/run-uid"] for d in world.cluster.all("ReplicaSet")} == {"uid-2"}


async def test_each_transition_creates_one_event(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile(5)
    reasons = [e["reason"] for e in world.cluster.events]
    assert reasons.count("Running") == 1
    assert reasons.count("Pending") == 1


async def test_invalid_spec_names_every_field(make_world: Callable[..., World]) -> None:
    world = make_world(maxSteps=0, learningRate=-1)
    await world.reconcile()
    message = world.condition("Validated")["message"]
    assert "spec.maxSteps" in message
    assert "spec.learningRate" in message


async def test_lost_status_does_not_lose_a_running_run(world: World) -> None:
    await world.start()
    world.poller.answer = running()
    await world.reconcile()
    world.cluster.put({**world.run, "status": {}})
    before = len(world.cluster.all("Pod"))
    await world.reconcile(2)
    assert world.status["phase"] == "Running"
    assert len(world.cluster.all("Pod")) == before


async def test_a_configuration_that_became_too_large_is_named_with_its_size(world: World) -> None:
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    config["data"]["run.json"] += " " * MAX_CONFIG
    size = len(config["data"]["run.json"])
    await world.reconcile()
    running = world.condition("Running")
    assert (running["status"], running["reason"]) == ("False", "Restarting")
    for part in ("ConfigMap reverse-config", '`data["run.json"]`', f"{size} characters", str(MAX_CONFIG)):
        assert part in running["message"]
    world.clock.advance(60)
    await world.reconcile(3)
    assert world.status["attempt"] == 2


async def test_the_configuration_of_a_large_spec_can_be_read(world: World) -> None:
    # With a line for each number it would have 1.2 MB, which no ConfigMap can have.
    entries = [{"id": f"rlrun/e{number}", "args": {"rows": [1] * 30_000}} for number in range(4)]
    world.change_spec(env=entries)
    await world.start()
    config = world.cluster.find("ConfigMap", "reverse-config")
    assert config
    assert len(config["data"]["run.json"]) < MAX_CONFIG
    world.change_spec(maxSteps=20)
    await world.reconcile(2)
    changed = world.cluster.find("ConfigMap", "reverse-config")
    assert changed
    assert json.loads(changed["data"]["run.json"])["spec"]["maxSteps"] == 20
    assert len(changed["data"]["run.json"]) < MAX_CONFIG
    assert world.status["attempt"] == 1
