"""Crashes, startup failures and the outcome of an attempt, derived from its pods.

Counts of restarts and crashes survive deletions of pods and restarts of the operator. Because Kubernetes deletes a
pod's restart count with the pod, the run's status records each existing pod with its counted restarts, and a reconcile
counts only the difference. Counts and records are written together, so that nothing is counted twice.

The failure policy limits the duration of startup failures. Kubernetes has no timestamp for the first failed image pull,
so the run's status records the start of each pod's failure. The time restarts when a pod is replaced or its failure
disappears.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rlrun.api.run_sections.failure_policy import FailurePolicy
from rlrun.api.run_status import ComponentStatus, PodRecord, StartupFailureKind
from rlrun.constants import ExitCode, Reason
from rlrun.kube.objects import Obj, true_condition
from rlrun.kube.pods import EVICTED, UNKNOWN_ENDS, Pod, Termination
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem

from rlrun_operator.planning.observation import PodEvent
from rlrun_operator.planning.pod_problems import (
    NO_EVENTS,
    diagnose_pod,
    explain_termination,
    parse_final_status,
    parse_problem,
    refused_fetch,
)

MAX_RECORDS = 256
KILLED = 137
"""Exit code of a process that was ended by SIGKILL."""


@dataclass(frozen=True)
class Crash:
    """New crash of a container, not caused by the cluster."""

    role: str
    component: str
    exit_code: int
    reason: str
    """Reason in the pod's status: OOMKilled, Error, Evicted, ..."""
    problem: Problem
    message: str = ""
    """Termination message of the container."""
    pod: str = ""
    container: str = ""
    restarted: bool = False
    """True if the container restarts. The log of the crash is then the log of the previous instance."""


@dataclass(frozen=True)
class CrashCount:
    """Updated component records, and the new restarts and crashes that they count."""

    components: list[ComponentStatus]
    restarts: int
    """New restarts of containers and replacements of pods."""
    crashes: list[Crash]


def count_restarts(old: Sequence[ComponentStatus], pods: Sequence[Pod]) -> CrashCount:
    """Count new restarts and crashes of the attempt's `pods` since the records in `old`."""
    by_component: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        by_component[pod.component].append(pod)
    previous = {c.name: c for c in old}
    components, crashes, restarts = [], [], 0
    for name in sorted({*by_component, *previous}):
        before = previous.get(name, ComponentStatus(name=name))
        records = {r.uid: r for r in before.pods}
        kept: list[PodRecord] = []
        crash_count = before.crashes
        for pod in by_component[name]:
            record = records.pop(pod.uid, PodRecord(uid=pod.uid))
            updated, found = _inspect(pod, record)
            restarts += updated.restarts - record.restarts + (updated.ended and not record.ended)
            crash_count += len(found)
            crashes += found
            kept.append(updated)
        restarts += sum(not r.ended for r in records.values())
        ready = sum(p.is_ready for p in by_component[name])
        components.append(ComponentStatus(name=name, ready=ready, crashes=crash_count, pods=kept[-MAX_RECORDS:]))
    return CrashCount(components, restarts, crashes)


def _inspect(pod: Pod, record: PodRecord) -> tuple[PodRecord, list[Crash]]:
    total = sum(int(s.get("restartCount", 0)) for s in pod.statuses)
    fresh = max(0, total - record.restarts)
    failed = pod.has_failed
    ended = record.ended or failed or pod.is_leaving or pod.is_stopped
    updated = record.model_copy(update={"restarts": max(total, record.restarts), "ended": ended})
    if pod.is_leaving or pod.is_disrupted:
        return updated, []
    ends = sorted(pod.terminations, key=lambda e: str(e.finished_at or ""))
    if pod.is_out_of_disk and (not ends or ends[-1].reason in UNKNOWN_ENDS):
        # The kubelet may remove the containers of an evicted pod before it reports their termination, and then counts a
        # restart that did not happen.
        ends, fresh = [Termination(container="", exit_code=KILLED, reason=EVICTED, message="", finished_at=None)], 0
    if not ends or ends[-1].reason in UNKNOWN_ENDS or ends[-1] == refused_fetch(pod):
        return updated, []
    crashed = fresh + (failed and not record.ended)
    return updated, [_crash(pod, ends[-1])] * crashed


def _crash(pod: Pod, end: Termination) -> Crash:
    return Crash(
        role=pod.role,
        component=pod.component,
        exit_code=end.exit_code,
        reason=EVICTED if pod.is_out_of_disk else end.reason,
        problem=explain_termination(pod, end),
        message=end.message,
        pod=pod.name,
        container=end.container,
        restarted=pod.termination_of(end.container) is None,
    )


ACCESS_SECONDS = 900
"""Seconds for which refused access to the weights is tolerated. The kubelet's back-off grows to 5 minutes, and a
rotated key takes effect within a few minutes.
"""
FIELDS = {
    StartupFailureKind.image_pull: "imagePullDeadlineSeconds",
    StartupFailureKind.config_error: "configErrorDeadlineSeconds",
    StartupFailureKind.unschedulable: "unschedulableDeadlineSeconds",
}


def record_startup_failures(
    components: Sequence[ComponentStatus],
    pods: Sequence[Pod],
    now: datetime,
    events: Mapping[str, PodEvent] = NO_EVENTS,
) -> list[ComponentStatus]:
    """Return the components with the current startup failure of each pod. `events` contains the newest Event of each
    pod, by uid.
    """
    uids = [(pod, pod.uid) for pod in pods]
    failures = {uid: found.startup_failure for pod, uid in uids if (found := diagnose_pod(pod, events.get(uid)))}
    return [
        c.model_copy(update={"pods": [_with_failure(r, failures.get(r.uid), now) for r in c.pods]}) for c in components
    ]


def expired_startup_failure(
    policy: FailurePolicy,
    components: Sequence[ComponentStatus],
    pods: Sequence[Pod],
    now: datetime,
    events: Mapping[str, PodEvent] = NO_EVENTS,
) -> Problem | None:
    """Return the first startup failure that exceeds the policy's limit, or None."""
    limits = {
        StartupFailureKind.image_pull: policy.image_pull_deadline_seconds,
        StartupFailureKind.config_error: policy.config_error_deadline_seconds,
        StartupFailureKind.unschedulable: policy.unschedulable_deadline_seconds,
        StartupFailureKind.access: ACCESS_SECONDS,
    }
    records = {record.uid: record for component in components for record in component.pods}
    for pod in pods:
        uid = pod.uid
        problem, record = diagnose_pod(pod, events.get(uid)), records.get(uid)
        if problem is None or problem.startup_failure is None or record is None or record.obstacle_since is None:
            continue
        limit = limits[problem.startup_failure]
        if limit is not None and (now - record.obstacle_since).total_seconds() >= limit:
            field = FIELDS.get(problem.startup_failure)
            which = f" (`spec.failurePolicy.{field}`)" if field else ""
            message = f"The problem was not resolved within {limit} s{which}: {problem.problem.message}"
            return Problem(reason=problem.problem.reason, message=message)
    return None


def _with_failure(record: PodRecord, obstacle: StartupFailureKind | None, now: datetime) -> PodRecord:
    if obstacle is record.obstacle:
        return record
    since = now if obstacle is not None else None
    return record.model_copy(update={"obstacle": obstacle, "obstacle_since": since})


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run, reported by its orchestrator."""

    last: RunStatus | None = None
    problem: Problem | None = None
    """Reason of the failure. None if the run completed."""


def find_outcome(job: Obj | None, pods: Sequence[Pod]) -> RunOutcome | None:
    """Return the outcome from the attempt's Job and pods, or None while the orchestrator runs or will restart."""
    newest_first = sorted(
        (p for p in pods if p.role == "orchestrator"),
        key=lambda p: p.created,
        reverse=True,
    )
    ends = [end for end in (p.termination_of("orchestrator") for p in newest_first) if end is not None]
    for end in ends:
        if end.exit_code == 0:
            return RunOutcome(parse_final_status(end.message))
        if end.exit_code == ExitCode.CONFIGURATION:
            problem = parse_problem(end.message) or Problem(
                reason=Reason.INVALID_CONFIGURATION,
                message="The orchestrator reported a configuration error; restarting would not help: "
                f"{end.message.strip()[-500:]}",
            )
            return RunOutcome(parse_final_status(end.message), problem)
    condition = true_condition(job, "Complete", "Failed")
    if condition is None:
        return None
    if condition["type"] == "Complete":
        return RunOutcome()
    problem = next((p for p in (parse_problem(e.message) for e in ends) if p), None) or Problem(
        reason=Reason.ORCHESTRATOR_FAILED,
        message=f"The orchestrator's Job failed: {condition.get('message') or condition.get('reason')}",
    )
    return RunOutcome(next((s for s in (parse_final_status(e.message) for e in ends) if s), None), problem)
