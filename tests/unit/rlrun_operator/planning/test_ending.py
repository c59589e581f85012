"""When a run that has ended is reconciled again, and when it is deleted.

Logs of crashed containers.

When the runs of a list are looked at.

How a run ends or pauses: what its status says, what is deleted, and when it is looked at again.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import Progress, ResolvedValues, RLRunStatus
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.actions import ConditionChange, PlanPart
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog
from rlrun_operator.planning.ending import (
    ACTIVE_PAUSE_SECONDS,
    OLD_PAUSE_SECONDS,
    S3_RETRY_SECONDS,
    crash_logs,
    mark_finished,
    plan_finished,
    plan_outcome,
    plan_stopped,
    plan_suspended,
    requeue_after_finish,
    resync_schedule,
    time_to_live,
)
from rlrun_operator.planning.observation import RunKey, RunObservation
from rlrun_operator.planning.pod_failures import count_restarts
from rlrun_operator.planning.status import apply_change
from rlrun_operator.resources.platform import run_layout

from tests.support.clocks import START
from tests.support.cluster_objects import evict, pod, run_object, terminated
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import at, run_spec, started

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


LAYOUT = run_layout(SETTINGS, "team", "uid-1")


def test_log_of_an_evicted_pod_is_copied_where_the_end_of_its_container_is_known() -> None:
    known, unknown = evict(pod("environment", "env-0", uid="1")), evict(pod("environment", "env-1", uid="2"))
    unknown["status"]["containerStatuses"] = []
    crashes = count_restarts([], [Pod(known), Pod(unknown)]).crashes
    assert [crash.component for crash in crashes] == ["env-0", "env-1"]
    (copy,) = crash_logs(LAYOUT, 1, crashes)
    assert (copy.pod, copy.container, copy.previous) == ("reverse-env-0-1", "environment", False)


NOW = START + timedelta(days=10)


def run_in(phase: Phase | None, before: timedelta | None, name: str, **changes: Any) -> Obj:
    status = RLRunStatus(phase=phase, completion_time=None if before is None else NOW - before)
    return {**run_object(name, uid=f"uid-{name}", **changes), "status": status.to_json_dict()}


def ended_run(name: str, before: timedelta, **changes: Any) -> Obj:
    return run_in(Phase.completed, before, name, **changes)


def pauses(*runs: Obj) -> dict[str, float]:
    return {key.name: pause for key, pause in resync_schedule(runs, NOW)}


@pytest.mark.parametrize("phase", [None, *(phase for phase in Phase if not phase.finished)])
def test_a_run_that_has_not_ended_is_looked_at_now(phase: Phase | None) -> None:
    old = [ended_run(f"old-{index}", timedelta(days=1)) for index in range(5)]
    assert pauses(*old, run_in(phase, timedelta(days=2), "active"))["active"] == 0


def test_active_runs_follow_one_after_the_other_and_new_or_deleted_ones_wait_for_none() -> None:
    active = [run_in(Phase.running, None, f"active-{index}") for index in range(1000)]
    deleted = run_in(Phase.running, None, "deleted")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = pauses(*active, run_in(None, None, "new"), deleted)
    assert (found["new"], found["deleted"]) == (0, 0)
    assert [found[f"active-{index}"] for index in (0, 1, 999)] == [0, ACTIVE_PAUSE_SECONDS, 999 * ACTIVE_PAUSE_SECONDS]


def test_old_runs_follow_one_after_the_other_the_newest_first() -> None:
    found = pauses(*(ended_run(str(days), timedelta(days=days)) for days in (3, 1, 2)))
    assert found == {"1": 0, "2": OLD_PAUSE_SECONDS, "3": 2 * OLD_PAUSE_SECONDS}


def test_a_run_that_ended_lately_or_is_deleted_may_have_pods() -> None:
    deleted = ended_run("deleted", timedelta(days=3))
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    unknown = run_in(Phase.failed, None, "unknown")
    old = [ended_run(f"old-{index}", timedelta(days=2)) for index in range(5)]
    lately = [ended_run(f"lately-{minutes}", timedelta(minutes=minutes)) for minutes in (1, 59)]
    found = pauses(*old, *lately, deleted, unknown)
    assert [found[name] for name in ("lately-1", "lately-59", "deleted", "unknown")] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("ttl", "pause"),
    [
        (60, 0),
        (2 * 86400 + 1, 1),
        (10 * 86400, 50 * OLD_PAUSE_SECONDS),
        ("wrong", 50 * OLD_PAUSE_SECONDS),
    ],
)
def test_a_time_to_live_is_not_exceeded(ttl: object, pause: float) -> None:
    newer = [ended_run(f"newer-{index}", timedelta(days=1)) for index in range(50)]
    run = ended_run("short", timedelta(days=2))
    run["spec"]["ttlSecondsAfterFinished"] = ttl
    assert pauses(*newer, run)["short"] == pause


def test_the_namespace_belongs_to_the_key() -> None:
    assert [key for key, _ in resync_schedule([ended_run("one", timedelta(days=1))], NOW)] == [RunKey("team", "one")]


LISTED = ArtifactCatalog(is_listed=True)


def child(kind: str, role: str, conditions: list[Obj] | None = None, attempt: int = 1) -> Obj:
    labels = {"rlrun.dev/run-uid": "uid-1", "rlrun.dev/role": role, "rlrun.dev/attempt": str(attempt)}
    metadata = {"name": f"reverse-{role}", "namespace": "team", "uid": f"{role}-{attempt}", "labels": labels}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "status": {"conditions": conditions or []}}


def observed(*children: Obj, pods: tuple[Obj, ...] = (), catalog: ArtifactCatalog = LISTED) -> RunObservation:
    return RunObservation(run_object(), children=children, pods=(*map(Pod, pods),), catalog=catalog)


def conditions(status: RLRunStatus) -> dict[str, tuple[str, str | None, str | None]]:
    return {c.type: (c.status.value, c.reason, c.message) for c in status.conditions}


def running(**fields: Any) -> RLRunStatus:
    status = started(ConditionChange("Running", True, "Running"), ConditionChange("TrainerReady", True, "Ready"))
    return status.model_copy(update={"past_active_seconds": 50, "resolved": ResolvedValues(gpus=2), **fields})


FAILURE = Problem(reason="TrainerCrashed", message="exit code 1")


@pytest.mark.parametrize(
    ("phase", "failed", "completed", "why"),
    [
        (Phase.failed, ("True", "TrainerCrashed", "exit code 1"), "False", "exit code 1"),
        (Phase.stopped, ("False", "NotFailed", ""), "False", "exit code 1"),
        (Phase.completed, ("False", "NotFailed", ""), "True", ""),
    ],
)
def test_finished_run_says_how_it_ended(phase: Phase, failed: tuple[str, str, str], completed: str, why: str) -> None:
    part = mark_finished(observed(), running(), SETTINGS, at(30), phase, FAILURE)
    status = apply_change(running(), part.status, at(30))
    assert (status.phase, status.reason, status.message) == (phase, "TrainerCrashed", "exit code 1")
    found = conditions(status)
    assert (found["Failed"], found["Completed"]) == (failed, (completed, "TrainerCrashed", "exit code 1"))
    assert found["Running"] == ("False", phase.value, why)
    role = ("False", "TrainerCrashed", "exit code 1") if phase is Phase.failed else ("False", "RunFinished", "")
    assert found["TrainerReady"] == role
    assert (status.completion_time, status.past_active_seconds, status.attempt_start_time) == (at(30), 80, None)
    assert status.past_gpu_seconds == 60
    assert part.status_first is (phase is Phase.failed), "the reason of a failure is in pods that are deleted"
    assert part.final
    assert part.requeue_after == SETTINGS.poll_seconds


def test_end_of_a_run_that_had_ended_before_keeps_its_time() -> None:
    part = mark_finished(observed(), running(completion_time=START), SETTINGS, at(30), Phase.stopped, FAILURE)
    assert part.status.fields["completion_time"] == START


def test_only_workloads_are_deleted_and_their_logs_are_kept() -> None:
    children = (child("ReplicaSet", "trainer"), child("ConfigMap", "config"))
    part = mark_finished(
        observed(*children, pods=(pod("trainer"),)), running(), SETTINGS, at(30), Phase.failed, FAILURE
    )
    assert [(ref.kind, ref.name) for ref in part.deletes] == [("ReplicaSet", "reverse-trainer")]
    assert [log.pod for log in part.logs] == ["reverse-trainer-x"]
    bare = mark_finished(observed(pods=(pod("trainer"),)), running(), SETTINGS, at(30), Phase.failed, FAILURE)
    assert (bare.deletes, bare.logs) == ((), ())


@pytest.mark.parametrize(
    ("after", "writing", "requeue", "delete"),
    [
        (4, False, 6.0, False),
        (4, True, SETTINGS.poll_seconds, False),
        (10, False, None, True),
        (10, True, SETTINGS.poll_seconds, False),
        (129, True, SETTINGS.poll_seconds, False),
        (130, True, SETTINGS.poll_seconds, True),
    ],
)
def test_finished_run_is_deleted_after_its_time_to_live(
    after: float, writing: bool, requeue: float | None, delete: bool
) -> None:
    status = running(phase=Phase.completed, completion_time=START)
    pods = (pod("trainer"),) if writing else ()
    part = present(
        plan_finished(observed(pods=pods), status, run_spec(ttlSecondsAfterFinished=10), SETTINGS, at(after))
    )
    assert part.final
    assert (part.requeue_after, part.delete_run) == (requeue, delete)


def test_finished_run_without_a_time_to_live_stays() -> None:
    status = running(phase=Phase.completed, completion_time=START)
    part = present(plan_finished(observed(child("ReplicaSet", "trainer")), status, run_spec(), SETTINGS, at(1e6)))
    assert (part.delete_run, part.requeue_after) == (False, SETTINGS.poll_seconds), "other children follow"
    assert [ref.name for ref in part.deletes] == ["reverse-trainer"]


@pytest.mark.parametrize("policy", [plan_finished, plan_stopped, plan_suspended, plan_outcome])
def test_run_that_trains_is_not_ended(policy: Callable[..., PlanPart | None]) -> None:
    job = child("Job", "orchestrator")
    observation = observed(job, pods=(pod("orchestrator"),))
    assert policy(observation, running(phase=Phase.running), run_spec(), SETTINGS, at(1)) is None


def test_stopped_run_ends_and_keeps_its_artifacts() -> None:
    part = present(
        plan_stopped(observed(child("ReplicaSet", "trainer")), running(), run_spec(stop=True), SETTINGS, at(30))
    )
    assert (part.status.fields["phase"], part.status.fields["reason"]) == (Phase.stopped, "Stopped")
    assert [(ref.kind, ref.name) for ref in part.deletes] == [("ReplicaSet", "reverse-trainer")]


def test_suspended_run_has_no_workloads_and_no_active_attempt() -> None:
    observation = observed(child("ReplicaSet", "trainer"), pods=(pod("trainer"),))
    part = present(plan_suspended(observation, running(), run_spec(suspend=True), SETTINGS, at(30)))
    status = apply_change(running(), part.status, at(30))
    assert (status.phase, status.reason, status.completion_time) == (Phase.suspended, "Finishing", None)
    assert {kind: found[:2] for kind, found in conditions(status).items() if kind in ("Running", "TrainerReady")} == {
        "Running": ("False", "Suspended"),
        "TrainerReady": ("False", "Suspended"),
    }
    assert conditions(status)["Failed"][0] == conditions(status)["Completed"][0] == "False"
    assert (status.attempt_start_time, status.past_active_seconds) == (None, 80)
    assert [ref.name for ref in part.deletes] == ["reverse-trainer"]
    assert part.final
    assert part.requeue_after == SETTINGS.poll_seconds, "the pod may still write"
    part = present(plan_suspended(observed(), running(), run_spec(suspend=True), SETTINGS, at(60)))
    assert (part.status.fields["phase"], part.status.fields["reason"]) == (Phase.suspended, "Suspended")


@pytest.mark.parametrize("spec", [{"stop": True}, {"suspend": True}, {}], ids=["stopped", "suspended", "failed"])
def test_a_run_that_makes_no_steps_shows_no_estimate(spec: dict[str, Any]) -> None:
    failed = [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m"}]
    status = running(progress=Progress(step=7, max_steps=12, eta_seconds=90))
    policy = plan_stopped if "stop" in spec else plan_suspended if "suspend" in spec else plan_outcome
    job = child("Job", "orchestrator", None if spec else failed)
    part = present(policy(observed(job), status, run_spec(**spec), SETTINGS, at(1)))
    progress = apply_change(status, part.status, at(1)).progress
    assert progress is not None
    assert (progress.step, progress.eta_seconds) == (7, None)


def test_the_orchestrator_of_a_suspended_run_is_deleted_before_what_it_works_with() -> None:
    children = (child("ReplicaSet", "env-0"), child("ReplicaSet", "trainer"), child("Job", "orchestrator"))
    part = present(plan_suspended(observed(*children), running(), run_spec(suspend=True), SETTINGS, at(30)))
    assert [ref.name for ref in part.deletes] == ["reverse-orchestrator", "reverse-env-0", "reverse-trainer"]


def test_time_of_a_suspended_run_is_not_counted_twice() -> None:
    status = running(attempt_start_time=None, next_restart_time=at(5))
    part = present(plan_suspended(observed(), status, run_spec(suspend=True), SETTINGS, at(30)))
    after = apply_change(status, part.status, at(30))
    assert (after.past_active_seconds, after.next_restart_time, part.requeue_after) == (50, None, None)


def ended(*, catalog: ArtifactCatalog = LISTED, after: float = 0, message: str = "", **fields: Any) -> RLRunStatus:
    """The status `after` seconds after the operator first saw that the orchestrator had ended with exit code 0."""
    done = pod("orchestrator", phase="Succeeded", state=terminated(0, message=message))
    observation, status = observed(child("Job", "orchestrator"), pods=(done,), catalog=catalog), running(**fields)
    for now in (at(0), at(after)) if after else (at(0),):
        part = present(plan_outcome(observation, status, run_spec(maxSteps=10), SETTINGS, now))
        assert part.final
        status = apply_change(status, part.status, now)
    return status


def test_last_artifacts_are_waited_for_and_then_the_run_is_completed() -> None:
    unlisted = ArtifactCatalog()
    assert ended(catalog=unlisted, after=119).reason == "Finishing"
    for status in (ended(catalog=unlisted, after=120), ended()):
        assert (status.phase, status.message) == (Phase.completed, "All 10 steps are done.")


def test_completed_run_shows_the_steps_that_were_made() -> None:
    progress = Progress(step=7, max_steps=12, eta_seconds=90)
    status = ended(progress=progress)
    assert status.progress is not None
    assert (status.progress.step, status.progress.eta_seconds) == (12, 0.0), "exit code 0 means all"
    assert status.message == "All 12 steps are done."
    last = RunStatus(phase=RunPhase.completed, step=11, max_steps=12).model_dump_json(by_alias=True)
    status = ended(progress=progress, message=last)
    assert status.progress is not None
    assert (status.progress.step, status.message) == (11, "All 11 steps are done.")


def test_outcome_is_that_of_the_orchestrator_of_this_attempt() -> None:
    complete = [{"type": "Complete", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]

    def phase(*children: Obj) -> Phase | None:
        part = plan_outcome(observed(*children), running(), run_spec(), SETTINGS, at(1))
        return part.status.fields.get("phase") if part is not None else None

    assert phase(child("Job", "trainer", complete)) is None
    assert phase(child("Job", "orchestrator", complete, attempt=2)) is None
    assert phase(child("Job", "trainer"), child("Job", "orchestrator", complete)) is Phase.completed


def test_failed_orchestrator_fails_the_run() -> None:
    failed = [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "message": "m"}]
    part = present(plan_outcome(observed(child("Job", "orchestrator", failed)), running(), run_spec(), SETTINGS, at(1)))
    assert (part.status.fields["phase"], part.status.fields["reason"]) == (Phase.failed, "OrchestratorFailed")


COMPLETE = [{"type": "Complete", "status": "True"}]
ONLY_FOR_PODS = ("NetworkPolicy", "Service", "ConfigMap", "Secret", "ServiceAccount")
WITHOUT_WORK: dict[str, tuple[Callable[..., PlanPart | None], RLRunStatus, dict[str, Any]]] = {
    "Completed": (plan_finished, running(phase=Phase.completed, completion_time=START), {}),
    "Failed": (plan_finished, running(phase=Phase.failed, completion_time=START), {}),
    "Stopped": (plan_finished, running(phase=Phase.stopped, completion_time=START), {"stop": True}),
    "Suspended": (plan_suspended, running(), {"suspend": True}),
}


def planned(end: str, observation: RunObservation) -> tuple[list[str], float | None]:
    """Kinds that are deleted, in order, and the time of the next reconcile."""
    policy, status, spec = WITHOUT_WORK[end]
    part = present(policy(observation, status, run_spec(**spec), SETTINGS, at(1)))
    return [ref.kind for ref in part.deletes], part.requeue_after


@pytest.mark.parametrize("end", ["Completed", "Failed", "Stopped"])
def test_children_of_a_finished_run_are_deleted_once_its_pods_have_ended(end: str) -> None:
    job, rest = child("Job", "orchestrator", COMPLETE), [child(kind, "x") for kind in ONLY_FOR_PODS]
    pods = (pod("orchestrator", phase="Succeeded", state=terminated(0)), pod("env", phase="Failed"))
    workload = child("ReplicaSet", "trainer")
    assert planned(end, observed(workload, job, *rest, pods=pods)) == (["ReplicaSet", "Secret"], SETTINGS.poll_seconds)
    rest = [obj for obj in rest if obj["kind"] != "Secret"]
    assert planned(end, observed(job, *rest, pods=pods)) == (
        ["ServiceAccount", "ConfigMap", "Service", "NetworkPolicy"],
        None,
    )
    assert planned(end, observed(job, pods=pods)) == ([], None), "the Job has the last log and stays"


def test_children_of_a_suspended_run_are_deleted_once_its_pods_have_ended() -> None:
    job, rest = child("Job", "orchestrator"), [child(kind, "x") for kind in ONLY_FOR_PODS]
    assert planned("Suspended", observed(job, *rest)) == (["Job"], SETTINGS.poll_seconds)
    assert planned("Suspended", observed(*rest)) == (
        ["ServiceAccount", "Secret", "ConfigMap", "Service", "NetworkPolicy"],
        None,
    )
    assert planned("Suspended", observed()) == ([], None)


@pytest.mark.parametrize("end", WITHOUT_WORK)
@pytest.mark.parametrize("alive", [pod("trainer"), pod("trainer", phase="Pending"), pod("trainer", deleting=True)])
def test_pods_keep_what_they_need_until_they_end(end: str, alive: Obj) -> None:
    rest = [child(kind, "x") for kind in ONLY_FOR_PODS if kind != "Secret"]
    deleted, again = planned(end, observed(*rest, pods=(alive,)))
    assert deleted == [], "user code without its NetworkPolicy would reach the whole network"
    assert again == SETTINGS.poll_seconds


@pytest.mark.parametrize("end", WITHOUT_WORK)
def test_children_that_are_being_deleted_are_not_deleted_again(end: str) -> None:
    leaving = [child(kind, "x") for kind in ("ReplicaSet", "Secret", "Service")]
    for obj in leaving:
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert planned(end, observed(*leaving)) == ([], None)


@pytest.mark.parametrize("end", WITHOUT_WORK)
def test_objects_of_others_with_the_name_of_the_run_stay(end: str) -> None:
    foreign = child("Service", "trainer")
    foreign["metadata"]["labels"]["rlrun.dev/run-uid"] = "uid-2"
    assert planned(end, observed(foreign)) == ([], None)
