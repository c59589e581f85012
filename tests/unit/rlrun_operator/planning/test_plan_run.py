"""Tables for the small pure policies."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import ComponentStatus, Phase, RLRunStatus
from rlrun.kube.conditions import find_condition, shorten
from rlrun.kube.events import EventRecord
from rlrun.kube.pods import relevant_pods
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.diagnosis.crash_counter import Crash, CrashCount, count_restarts
from rlrun_operator.planning.diagnosis.pod_diagnostics import diagnose_pod
from rlrun_operator.planning.diagnosis.readiness import readiness_conditions, role_blamed
from rlrun_operator.planning.diagnosis.run_outcome import find_outcome
from rlrun_operator.planning.plan.actions import ConditionChange, StatusChange
from rlrun_operator.planning.plan.artifact_catalog import expired_steps
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.plan_builder import transitions
from rlrun_operator.planning.plan.status_builder import apply_change, new_status, transition_time
from rlrun_operator.planning.policies.deadlines import expired_deadline
from rlrun_operator.planning.policies.failure_policy import decide
from rlrun_operator.planning.policies.requeue import time_to_live
from rlrun_operator.planning.policies.validation import parse_spec, resolve_references

from tests.support.operator_world import START, model_object, pod, run_object, terminated

Obj = dict[str, Any]


def spec(**more: Any) -> RLRunSpec:
    found = parse_spec(run_object(**more))
    assert isinstance(found, RLRunSpec)
    return found


@pytest.mark.proves("checkpoints.keepCloud", "adapters.keepLast")
@pytest.mark.parametrize(
    ("ready", "keep", "protected", "expected"),
    [
        ([], 3, [], []),
        ([1, 2, 3], 3, [], []),
        ([4, 1, 3, 2], 2, [], [1, 2]),
        ([1, 2, 3], 1, [], [1, 2]),
        ([1, 2, 3], -1, [], []),
        ([1, 2, 3, 4], 1, [2], [1, 3]),
        ([1, 2, 3], 1, [3], [1]),
        ([1, 2], 1, [1, 2], []),
    ],
)
def test_retention(ready: list[int], keep: int, protected: list[int], expected: list[int]) -> None:
    assert expired_steps(ready, keep, protected) == expected


@pytest.mark.proves("ttlSecondsAfterFinished")
@pytest.mark.parametrize(("ttl", "after", "expected"), [(None, 5, None), (10, 4, 6.0), (10, 10, 0.0), (0, 1, -1.0)])
def test_ttl(ttl: int | None, after: int, expected: float | None) -> None:
    assert time_to_live(ttl, START, START + timedelta(seconds=after)) == expected


def test_ttl_of_an_unfinished_run_does_not_run() -> None:
    assert time_to_live(10, None, START) is None


TROUBLES: list[tuple[str, Obj, str | None, str]] = [
    ("ready", pod("trainer", ready=True, last=terminated(1)), None, ""),
    ("just starting", pod("trainer"), None, ""),
    ("leaving", pod("trainer", deleting=True, state=terminated(1)), None, ""),
    ("succeeded", pod("orchestrator", phase="Succeeded", state=terminated(0)), None, ""),
    (
        "back-off of a pull",
        pod("trainer", state={"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}),
        "ImagePullFailed",
        "img:1",
    ),
    ("no such image here", pod("trainer", state={"waiting": {"reason": "ErrImageNeverPull"}}), "ImagePullFailed", ""),
    (
        "secret missing",
        pod("environment", state={"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "x"'}}),
        "CreateContainerConfigError",
        'secret "x"',
    ),
    (
        "trainer out of memory",
        pod("trainer", state={"waiting": {"reason": "CrashLoopBackOff"}}, last=terminated(137, "OOMKilled")),
        "TrainerOutOfMemory",
        "256Mi",
    ),
    (
        "inference out of memory",
        pod("inference", state={"waiting": {"reason": "CrashLoopBackOff"}}, last=terminated(137, "OOMKilled")),
        "InferenceOutOfMemory",
        "inference.resources",
    ),
    (
        "environment out of memory",
        pod("environment", "env-1", state=terminated(137, "OOMKilled")),
        "EnvironmentOutOfMemory",
        "computeSize",
    ),
    (
        "crash with a log",
        pod("trainer", state=terminated(1, message="Traceback\n  File\nValueError: bad shape")),
        "TrainerCrashed",
        "ValueError: bad shape",
    ),
    (
        "restarted, not ready yet",
        pod("inference", restarts=1, last=terminated(1, message="CUDA error")),
        "InferenceCrashed",
        "CUDA error",
    ),
    (
        "told problem",
        pod("environment", state=terminated(64, message='{"reason": "EnvironmentLoadFailed", "message": "fix it"}')),
        "EnvironmentLoadFailed",
        "fix it",
    ),
    (
        "unschedulable",
        pod(
            "trainer",
            phase="Pending",
            conditions=[
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes, no gpu"}
            ],
        ),
        "Unschedulable",
        "no gpu",
    ),
]


@pytest.mark.parametrize(("what", "obj", "reason", "hint"), TROUBLES, ids=[t[0] for t in TROUBLES])
def test_pod_trouble(what: str, obj: Obj, reason: str | None, hint: str) -> None:
    found = diagnose_pod(obj)
    assert (found.problem.reason if found else None) == reason
    if found:
        assert hint in found.problem.message
        assert found.final == (what == "told problem")


def test_init_container_that_gives_up_is_final() -> None:
    obj = pod("trainer", phase="Pending", state={"waiting": {"reason": "PodInitializing"}})
    message = '{"reason": "ModelNotFound", "message": "no complete model at s3://x/y"}'
    obj["status"]["initContainerStatuses"] = [
        {
            "name": "fetch-model",
            "restartCount": 1,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": terminated(64, message=message),
        }
    ]
    found = diagnose_pod(obj)
    assert found
    assert found.final
    assert found.problem == Problem(reason="ModelNotFound", message="no complete model at s3://x/y")


def test_dead_orchestrators_do_not_speak_while_a_living_one_does() -> None:
    dead = pod("orchestrator", uid="1", phase="Failed", state=terminated(1))
    alive = pod("orchestrator", uid="2")
    assert relevant_pods([dead, alive]) == [alive]
    older = pod("orchestrator", uid="0", phase="Failed", created="2025-12-31T00:00:00Z")
    assert relevant_pods([dead, older]) == [dead]


class TestRestarts:
    def test_each_kind_of_restart_is_counted_once(self) -> None:
        first = count_restarts([], [pod("trainer", restarts=2, last=terminated(1))])
        assert (first.restarts, len(first.crashes)) == (2, 2)
        again = count_restarts(first.components, [pod("trainer", restarts=2, last=terminated(1))])
        assert (again.restarts, again.crashes) == (0, [])
        gone = count_restarts(again.components, [])
        assert (gone.restarts, gone.components[0].crashes) == (1, 2)
        assert count_restarts(gone.components, []).restarts == 0

    def test_deleted_pod_is_a_replacement_and_no_crash(self) -> None:
        known = count_restarts([], [pod("trainer")])
        leaving = count_restarts(known.components, [pod("trainer", deleting=True, state=terminated(143))])
        assert (leaving.restarts, leaving.crashes) == (1, [])
        assert count_restarts(leaving.components, [pod("trainer", uid="new")]).restarts == 0

    def test_evicted_pod_is_no_crash(self) -> None:
        evicted = pod("trainer", phase="Failed", state=terminated(137))
        evicted["status"]["reason"] = "Evicted"
        found = count_restarts([], [evicted])
        assert (found.restarts, found.crashes) == (1, [])

    def test_disrupted_orchestrator_is_no_crash(self) -> None:
        disrupted = [{"type": "DisruptionTarget", "status": "True"}]
        found = count_restarts([], [pod("orchestrator", phase="Failed", state=terminated(143), conditions=disrupted)])
        assert (found.restarts, found.crashes) == (1, [])

    def test_failed_pods_of_a_job_are_crashes(self) -> None:
        pods = [pod("orchestrator", uid=str(i), phase="Failed", state=terminated(1)) for i in range(3)]
        found = count_restarts([], pods)
        assert (found.restarts, found.components[0].crashes) == (3, 3)

    def test_components_are_kept_apart(self) -> None:
        pods = [
            pod("environment", "env-0", restarts=1, last=terminated(1)),
            pod("environment", "env-1", ready=True),
        ]
        found = {c.name: (c.ready, c.crashes) for c in count_restarts([], pods).components}
        assert found == {"env-0": (0, 1), "env-1": (1, 0)}


def crash(role: str = "trainer", code: int = 1, reason: str = "Error") -> Crash:
    return Crash(role, role, code, reason, Problem(reason="TrainerCrashed", message="m"))


@pytest.mark.proves(
    "failurePolicy.rules.action",
    "failurePolicy.rules.roles",
    "failurePolicy.rules.exitCodes",
    "failurePolicy.rules.reasons",
    "maxRestarts",
)
@pytest.mark.parametrize(
    ("rules", "crashes", "run_restarts", "expected"),
    [
        ([], 1, 0, None),
        ([], 3, 0, None),
        ([], 4, 0, "fail"),
        ([{"action": "Fail"}], 1, 1, "fail"),
        ([{"action": "Fail", "roles": ["inference"]}], 1, 1, None),
        ([{"action": "Fail", "roles": ["trainer"]}], 1, 1, "fail"),
        ([{"action": "Fail", "exitCodes": [2]}], 1, 1, None),
        ([{"action": "Fail", "exitCodes": [1, 2]}], 1, 1, "fail"),
        ([{"action": "Fail", "reasons": ["Error"]}], 1, 1, "fail"),
        ([{"action": "Fail", "reasons": ["TrainerCrashed"]}], 1, 1, "fail"),
        ([{"action": "RestartRole"}, {"action": "Fail"}], 1, 1, None),
        ([{"action": "RestartRun"}], 1, 1, "restart"),
        ([{"action": "RestartRun"}], 1, 3, "fail"),
        ([{"action": "RestartRunIgnoreMax"}], 1, 99, "restart"),
    ],
)
def test_failure_policy(rules: list[Obj], crashes: int, run_restarts: int, expected: str | None) -> None:
    counted = CrashCount([ComponentStatus(name="trainer", crashes=crashes)], 1, [crash()])
    verdict = decide(spec(failurePolicy={"rules": rules}), run_restarts, counted, [])
    assert (verdict.action if verdict else None) == expected


@pytest.mark.proves("maxRestarts")
def test_max_restarts_zero_fails_at_the_first_crash() -> None:
    counted = CrashCount([ComponentStatus(name="trainer", crashes=1)], 1, [crash()])
    verdict = decide(spec(maxRestarts=0), 0, counted, [])
    assert verdict
    assert verdict.problem.reason == "TrainerCrashed"
    assert "maxRestarts 0" in verdict.problem.message


def status_json(phase: RunPhase, problem: Problem | None = None) -> str:
    return RunStatus(phase=phase, step=4, max_steps=10, problem=problem).model_dump_json(by_alias=True)


def job(kind: str) -> Obj:
    return {"status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}


class TestOutcome:
    def test_nothing_while_it_runs(self) -> None:
        assert find_outcome(job("SuccessCriteriaMet"), [pod("orchestrator")]) is None

    def test_crash_is_no_end(self) -> None:
        assert find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(1))]) is None

    def test_completed_with_its_last_word(self) -> None:
        message = status_json(RunPhase.completed)
        found = find_outcome({}, [pod("orchestrator", phase="Succeeded", state=terminated(0, message=message))])
        assert found
        assert found.problem is None
        assert found.last
        assert found.last.step == 4

    def test_completed_though_the_pod_is_gone(self) -> None:
        found = find_outcome(job("Complete"), [])
        assert found
        assert found.problem is None

    def test_mistake_of_the_user(self) -> None:
        message = status_json(RunPhase.failed, Problem(reason="WandbKeyMissing", message="m"))
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message=message))])
        assert found
        assert found.problem
        assert found.problem.reason == "WandbKeyMissing"

    def test_mistake_without_a_message(self) -> None:
        found = find_outcome({}, [pod("orchestrator", phase="Failed", state=terminated(64, message="boom"))])
        assert found
        assert found.problem
        assert "boom" in found.problem.message

    def test_job_gave_up(self) -> None:
        found = find_outcome(job("Failed"), [])
        assert found
        assert found.problem
        assert found.problem.reason == "OrchestratorFailed"


def at(seconds_after_start: float) -> datetime:
    return START + timedelta(seconds=seconds_after_start)


def started(*conditions: ConditionChange, when: float = 0) -> RLRunStatus:
    status = RLRunStatus(attempt_start_time=START, observed_generation=1)
    return apply_change(status, StatusChange(conditions), at(when))


@pytest.mark.proves("startDeadlineSeconds", "stallDeadlineSeconds", "activeDeadlineSeconds")
@pytest.mark.parametrize(
    ("after", "running_since", "limits", "expected"),
    [
        (59, None, {"startDeadlineSeconds": 60}, None),
        (60, None, {"startDeadlineSeconds": 60}, "StartDeadlineExceeded"),
        (600, 30, {"startDeadlineSeconds": 60}, None),
        (629, 30, {"stallDeadlineSeconds": 600}, None),
        (630, 30, {"stallDeadlineSeconds": 600}, "StallDeadlineExceeded"),
        (99, 30, {"activeDeadlineSeconds": 100}, None),
        (100, 30, {"activeDeadlineSeconds": 100}, "ActiveDeadlineExceeded"),
    ],
)
def test_deadlines(after: float, running_since: float | None, limits: Obj, expected: str | None) -> None:
    status = started()
    if running_since is not None:
        status = started(ConditionChange("Running", True, "Running"), when=running_since)
    expired = expired_deadline(status, spec(**limits), at(after), None)
    assert (expired.reason if expired else None) == expected


def test_start_deadline_takes_over_the_reason_of_what_blocks() -> None:
    blocking = Problem(reason="ImagePullFailed", message="image x")
    expired = expired_deadline(started(), spec(startDeadlineSeconds=60), at(60), blocking)
    assert expired
    assert expired.reason == "ImagePullFailed"
    assert "image x" in expired.message


class TestConditions:
    def test_transition_time_moves_with_the_status_only(self) -> None:
        first = started(ConditionChange("Validated", False, "ModelNotFound", "a"))
        second = new_status(first.to_json_dict(), 2)
        invalid = StatusChange((ConditionChange("Validated", False, "SecretsMissing", "b"),))
        second = apply_change(second, invalid, at(10))
        assert transition_time(second, "Validated") == START
        valid = StatusChange((ConditionChange("Validated", True, "Valid"),))
        second = apply_change(second, valid, at(10))
        assert transition_time(second, "Validated") == at(10)
        found = find_condition(second, "Validated")
        assert found
        assert found.observed_generation == 2

    def test_order_does_not_depend_on_who_was_first(self) -> None:
        status = started(*(ConditionChange(kind, False, "X") for kind in ("Failed", "Running", "Validated")))
        assert [c.type for c in status.conditions] == ["Validated", "Running", "Failed"]

    def test_broken_status_is_begun_anew(self) -> None:
        assert new_status({"attempt": "many"}, 1).attempt == 1

    def test_long_messages_are_cut(self) -> None:
        assert len(shorten("x" * 5000)) == 2000


@pytest.mark.parametrize(
    ("reason", "role"),
    [
        ("WaitingForTrainer", "trainer"),
        ("WaitingForInference", "inference"),
        ("EnvironmentPackageMissing", "environment"),
        ("S3AccessDenied", "orchestrator"),
    ],
)
def test_blame(reason: str, role: str) -> None:
    assert role_blamed(Problem(reason=reason, message="")) == role


def test_readiness_names_what_is_missing() -> None:
    wanted = {"inference": {"inference": 3}, "environment": {"env-0": 1, "env-1": 1}}
    pods = [pod("inference", uid="a", ready=True), pod("environment", "env-1", ready=True)]
    messages = {c.type: c.message for c in readiness_conditions(wanted, pods, [], None)}
    assert "inference (2)" in messages["InferenceReady"]
    assert messages["EnvironmentsReady"].endswith("env-0")


def checkpoint_object(**more: Any) -> Obj:
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {"name": "old", "namespace": "team"},
        "spec": {
            "runName": "old-run",
            "runUid": "u",
            "model": "tiny/model",
            "step": 5,
            "uri": "s3://rlrun/team/u/checkpoints/step-000005",
            **more.pop("spec", {}),
        },
        "status": {"phase": "Ready", **more},
    }


VALIDATIONS: list[tuple[str, Obj, Obj, str | None]] = [
    ("all is there", {}, {}, None),
    ("no models at all", {}, {"models": ()}, "ModelNotFound"),
    ("another model", {"model": "x/y"}, {}, "ModelNotFound"),
    ("too many tokens", {"sampling": {"maxTokens": 256}}, {}, "MaxTokensTooLarge"),
    ("just enough tokens", {"sampling": {"maxTokens": 255}}, {}, None),
    ("several nodes", {}, {"models": (model_object(trainer={"gpus": 8, "nodes": 2}),)}, None),
    ("all weights", {"lora": {"enabled": False}}, {}, "FullFineTuningNotAllowed"),
    (
        "all weights, allowed",
        {"lora": {"enabled": False}},
        {"models": (model_object(trainer={"fullFineTuning": True}),)},
        None,
    ),
    ("rank above the engine's", {"lora": {"rank": 17}}, {}, "LoraRankTooHigh"),
    ("rank of the engine", {"lora": {"rank": 16}}, {}, None),
    ("unknown targets", {"lora": {"targetModules": ["q_proj", "lm_head"]}}, {}, "LoraTargetsUnknown"),
    ("some of the targets", {"lora": {"targetModules": ["q_proj"]}}, {}, None),
    (
        "any target",
        {"lora": {"targetModules": ["lm_head"]}},
        {"models": (model_object(lora={"targetModules": ["all-linear"]}),)},
        None,
    ),
    ("broken model", {}, {"models": (model_object(seqLen="long"),)}, "ModelInvalid"),
    ("no checkpoint", {"checkpointId": "old"}, {}, "CheckpointNotFound"),
    ("checkpoint", {"checkpointId": "old"}, {"warm_start": checkpoint_object()}, None),
    (
        "uploading",
        {"checkpointId": "old"},
        {"warm_start": checkpoint_object(phase="Uploading")},
        "CheckpointNotReady",
    ),
    (
        "other model",
        {"checkpointId": "old"},
        {"warm_start": checkpoint_object(spec={"model": "x/y"})},
        "CheckpointModelMismatch",
    ),
    ("not shared", {"checkpointId": "other/old"}, {"warm_start": checkpoint_object()}, "CheckpointNotShared"),
    (
        "shared",
        {"checkpointId": "other/old"},
        {"warm_start": checkpoint_object(spec={"sharedWith": ["team"]})},
        None,
    ),
    ("secrets", {}, {"missing_secrets": ("judge",)}, "SecretsMissing"),
    ("S3", {}, {"s3_problem": Problem(reason="S3Unreachable", message="m")}, "S3Unreachable"),
]


@pytest.mark.proves("model", "checkpointId", "lora.enabled", "lora.rank", "lora.targetModules", "sampling.maxTokens")
@pytest.mark.parametrize(("what", "run", "seen", "reason"), VALIDATIONS, ids=[v[0] for v in VALIDATIONS])
def test_validation(what: str, run: Obj, seen: Obj, reason: str | None) -> None:
    obj = run_object(**run)
    found = resolve_references(spec(**run), RunObservation(**{"run": obj, "models": (model_object(),), **seen}))
    assert (found.reason if isinstance(found, Problem) else None) == reason
    if isinstance(found, Problem) and what != "S3":
        assert len(found.message) > 40, "the message has to say what to do"


class TestEvents:
    def test_same_status_says_nothing(self) -> None:
        status = RLRunStatus(phase=Phase.running)
        assert transitions(status, status.model_copy(deep=True)) == ()

    def test_failure_is_a_warning_with_its_reason(self) -> None:
        new = RLRunStatus(phase=Phase.failed, reason="TrainerOutOfMemory", message="more memory")
        assert transitions(RLRunStatus(phase=Phase.running), new) == (
            EventRecord("TrainerOutOfMemory", "The run failed: more memory", warning=True),
        )

    def test_trouble_is_told_once(self) -> None:
        status = started(ConditionChange("TrainerReady", False, "ImagePullFailed", "x"))
        assert [n.reason for n in transitions(started(), status)] == ["ImagePullFailed"]
        assert transitions(status, status) == ()
