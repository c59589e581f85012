"""Decisions about crashed, lost and refused pods: the failure policy, and what Kubernetes does not replace.

Replacement of orchestrators: a Job waits 10 s, 20 s, 40 s, ... before it replaces a failed or deleted pod, and during
this time the run does not train. The operator therefore deletes a waiting Job, and the next reconcile recreates it. The
Job's back-off still applies to orchestrators that end repeatedly or soon after they start, and while the operator is
down. It also applies after an upgrade of the operator, because new pods might not be compatible with the attempt.

Pods on lost nodes: Kubernetes evicts the pods of a node that does not report, but only the node's kubelet completes
their deletion. (A taint can also evict pods from a healthy node. Its kubelet ends them, however long that takes.) Until
the deletion is complete, the orchestrator's Job creates no new pod, Services that publish unready pods route to the
lost pod, and the next attempt waits for it. The operator therefore deletes the pod object itself some time after the
grace period. On a node that is only disconnected, the process may still run, but it cannot change the run: the trainer
obeys only the orchestrator that opened a session last, a new orchestrator ignores all later writes of its predecessor,
and the token of a deleted pod is no longer valid for S3 and the API server.

Pods in which an injected container outlives the run's process: a pod ends only when all its containers have ended. An
injected proxy that keeps running would prevent the replacement of a crashed orchestrator until the run's stall
deadline. The operator therefore deletes such pods. If the orchestrator has ended with a final status, no deletion is
needed, because the run and its pods end anyway.

Refused pods: an attempt ends if the API server refuses its pods, so that its other pods do not occupy unused GPUs. The
run retries with the back-off of restarts, and fails after `startDeadlineSeconds` of refusals. These attempts do not
count toward `maxRestarts`, because quota may become available when another run ends.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from rlrun.api.base.patterns import occurs
from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.failure_policy import FailureAction, FailureRule
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import FIELD_MANAGER, HASH_ANNOTATION, MANAGED_BY_LABEL, Reason, Role
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.events import EventRecord
from rlrun.kube.kinds import POD
from rlrun.kube.objects import Obj, ObjectRef, annotation, attempt_of, label, true_condition
from rlrun.kube.pods import Pod, is_leaving
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.service.containers.gpu_check import needs_change

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import PlanPart, StatusChange
from rlrun_operator.planning.ending import crash_logs, mark_finished, orchestrator_job, unheld_logs
from rlrun_operator.planning.observation import RunObservation
from rlrun_operator.planning.pod_failures import Crash, CrashCount, count_restarts, record_startup_failures
from rlrun_operator.planning.pod_problems import (
    PodProblem,
    explain_refused_pod,
    pod_problems,
    refused_pods,
    repeated_end,
)
from rlrun_operator.planning.readiness import expected_pods
from rlrun_operator.planning.resolution import resolve_run
from rlrun_operator.planning.running import plan_restart
from rlrun_operator.planning.status import apply_change, is_true
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.orchestrator import orchestrator
from rlrun_operator.resources.platform import run_layout

ROLE_ACTIONS = (FailureAction.restart_role, FailureAction.restart_role_ignore_max)


@dataclass(frozen=True)
class FailureDecision:
    """Decision to end the run or to start a new attempt."""

    action: Literal["fail", "restart"]
    problem: Problem
    counts_toward_max: bool = True
    """True if the new attempt counts toward maxRestarts."""


def apply_failure_policy(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Count restarts and crashes, and end the run or the attempt if the failure policy requires it."""
    pods = observation.pods_of(status.attempt)
    counted = discount_ignored_crashes(spec, count_restarts(status.components, pods))
    change = StatusChange(
        fields={
            "components": record_startup_failures(counted.components, pods, now, observation.pod_events),
            "restarts": status.restarts + counted.restarts,
            "pool_evicted": status.pool_evicted or any(map(is_eviction, counted.crashes)),
        }
    )
    layout = run_layout(settings, observation.namespace, observation.uid)
    part = PlanPart(status=change, logs=tuple(crash_logs(layout, status.attempt, counted.crashes)))
    problems = pod_problems(pods, observation.pod_events)
    has_trained = status.progress is not None and status.progress.step > 0
    resolved = resolve_run(observation, status, spec, settings)
    repeated = None if isinstance(resolved, Problem) else repeated_end(pods, expected_pods(resolved), now)
    restarts = status.run_restarts_toward_max
    decision = decide(spec, restarts, counted, problems, has_trained=has_trained, repeated=repeated)
    if decision is None:
        return part
    status = apply_change(status, change, now)
    if decision.action == "fail":
        failed = mark_finished(observation, status, settings, now, Phase.failed, decision.problem)
        return part.then(replace(failed, discard_writes=True))
    return part.then(
        plan_restart(observation, status, settings, now, decision.problem, counts_toward_max=decision.counts_toward_max)
    )


def discount_ignored_crashes(spec: RLRunSpec, counted: CrashCount) -> CrashCount:
    """Subtract from the count the new crashes that the policy does not count toward maxRestarts."""
    ignored = Counter(
        crash.component
        for crash in counted.crashes
        if (rule := rule_for(spec, crash)) and rule.action is FailureAction.restart_role_ignore_max
    )
    components = [c.model_copy(update={"crashes": c.crashes - ignored[c.name]}) for c in counted.components]
    return replace(counted, components=components)


def decide(
    spec: RLRunSpec,
    run_restarts: int,
    counted: CrashCount,
    problems: Sequence[PodProblem],
    *,
    has_trained: bool = False,
    repeated: Problem | None = None,
) -> FailureDecision | None:
    """Decide whether to end the run or to start a new attempt. Returns None to leave restarts to Kubernetes.

    `run_restarts` is the number of restarts of the whole run so far that count toward maxRestarts. `counted.crashes`
    contains only new crashes, so that no rule applies to the same crash twice. `has_trained` means that the run has
    completed a step.
    """
    for crash in counted.crashes:
        rule = rule_for(spec, crash)
        if rule is not None and rule.action is FailureAction.fail:
            return FailureDecision("fail", crash.problem)
        if is_eviction(crash):
            # All later attempts have a trainer of their own, so this happens once.
            return FailureDecision("restart", crash.problem, counts_toward_max=False)
        if rule is None or rule.action in ROLE_ACTIONS:
            continue
        if rule.action is FailureAction.restart_run_ignore_max:
            return FailureDecision("restart", crash.problem, counts_toward_max=False)
        return _restart_or_fail(spec, run_restarts, crash.problem)
    final = next((p for p in problems if p.final), None)
    if final and run_restarts < spec.max_restarts and _may_pass(final.problem, has_trained=has_trained):
        return FailureDecision("restart", final.problem)
    if final:
        return FailureDecision("fail", final.problem)
    for component in counted.components:
        if component.crashes > spec.max_restarts:
            problem = next((c.problem for c in counted.crashes if c.component == component.name), None)
            problem = problem or next((p.problem for p in problems if p.component == component.name), None)
            problem = problem or Problem(
                reason=Reason.TOO_MANY_RESTARTS,
                message=f"{component.name} crashed too often. See the logs of its pods.",
            )
            count = "1 crash" if component.crashes == 1 else f"{component.crashes} crashes"
            return FailureDecision(
                "fail", _final_problem(problem, f"after {count} (`spec.maxRestarts` {spec.max_restarts})")
            )
    return None if repeated is None else _restart_or_fail(spec, run_restarts, repeated)


def is_eviction(crash: Crash) -> bool:
    """Return whether the orchestrator ended because the trainer of its shared pool has permanently rejected the run."""
    return crash.role == Role.orchestrator and crash.problem.reason == Reason.POOL_EVICTED


def rule_for(spec: RLRunSpec, crash: Crash) -> FailureRule | None:
    """Return the first rule that matches the crash, or None."""
    return next((r for r in spec.failure_policy.rules if matches(r, crash)), None)


def matches(rule: FailureRule, crash: Crash) -> bool:
    """Return whether the rule matches the crash. A field that is not set matches everything."""
    return (
        (not rule.roles or crash.role in [r.value for r in rule.roles])
        and (not rule.exit_codes or crash.exit_code in rule.exit_codes)
        and (not rule.reasons or crash.reason in rule.reasons or crash.problem.reason in rule.reasons)
        and (
            rule.message_pattern is None
            or occurs(rule.message_pattern, crash.message)
            or occurs(rule.message_pattern, crash.problem.message)
        )
    )


def _restart_or_fail(spec: RLRunSpec, run_restarts: int, problem: Problem) -> FailureDecision:
    """Return a restart of the run that counts toward maxRestarts, or the run's failure if no restart is left."""
    if run_restarts < spec.max_restarts:
        return FailureDecision("restart", problem)
    count = "1 restart" if run_restarts == 1 else f"{run_restarts} restarts"
    when = f"after {count} of the run (`spec.maxRestarts` {spec.max_restarts})"
    return FailureDecision("fail", _final_problem(problem, when))


def _may_pass(problem: Problem, *, has_trained: bool) -> bool:
    """Return whether missing GPUs may be available to new pods.

    A run that has trained has had its GPUs before, so a GPU has failed, or the pod has moved to another node.
    """
    return problem.reason == Reason.DEVICE_MISSING and (has_trained or not needs_change(problem.message))


def _final_problem(problem: Problem, when: str) -> Problem:
    return Problem(reason=problem.reason, message=f"Failed {when}: {problem.message}")


STABLE_SECONDS = 60.0
"""Minimum age of a Job, and minimum running time of its process, in seconds. A later termination is not part of a crash
loop.
"""
ENDING_CONDITIONS = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")


def replace_orchestrator(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete the Job of an orchestrator that ended, if the Job only waits before it creates the next pod."""
    job = orchestrator_job(observation, status.attempt)
    if job is None or not is_true(status, "Running") or not _only_waits(job):
        return None
    created = parse_time(job["metadata"].get("creationTimestamp"))
    refused = explain_refused_pod(job, observation.pod_events.get(job["metadata"]["uid"]))
    if created is None or seconds(created, now) < STABLE_SECONDS or refused is not None:
        return None
    pods = [p for p in observation.pods_of(status.attempt) if p.role == Role.orchestrator]
    newest = max(pods, key=lambda pod: pod.created, default=None)
    if any(p.is_alive for p in pods) or (newest is not None and not _was_stable(newest)):
        return None
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem) or not builds_same(observation, status, settings, resolved, job):
        return None
    # If the Job has changed since it was read, it may have a new pod.
    ref = replace(ObjectRef.of(job), resource_version=job["metadata"].get("resourceVersion"))
    message = "The orchestrator exited. Its Job is recreated, because the old Job would delay the next pod."
    layout = run_layout(settings, observation.namespace, observation.uid)
    return PlanPart(
        deletes=(ref,),
        logs=tuple(unheld_logs(layout, [newest] if newest else [])),
        events=(EventRecord(Reason.ORCHESTRATOR_REPLACED, message),),
        # Kubernetes deletes the pods with their Job; their crashes must be counted before.
        status_first=True,
    )


def _only_waits(job: Obj) -> bool:
    """Return whether the Job has no pod, has not ended, and has no uncounted pods."""
    status = job.get("status") or {}
    uncounted = status.get("uncountedTerminatedPods") or {}
    return not (
        is_leaving(job)
        or job["spec"].get("suspend")
        or status.get("active")
        or status.get("succeeded")
        or any(uncounted.values())
        or true_condition(job, *ENDING_CONDITIONS) is not None
    )


def builds_same(
    observation: RunObservation, status: RLRunStatus, settings: OperatorSettings, resolved: ResolvedRun, job: Obj
) -> bool:
    """Return whether the operator would now build a Job equal to `job`. New versions and settings apply from the next
    attempt.
    """
    identity = observation.identity(status.attempt)
    storage = StorageAccess.of_run(identity, settings, resolved, observation.storage_key)
    built = orchestrator(identity, settings, resolved, storage)[0]
    return annotation(built, HASH_ANNOTATION) == annotation(job, HASH_ANNOTATION)


def _was_stable(pod: Pod) -> bool:
    """Return whether the cluster ended the pod, or its process ran for at least STABLE_SECONDS.

    Returns False for a pod that its node evicted or rejected. Such a pod is kept with its Job, because `repeated_end`
    counts it.
    """
    end = pod.termination_of(Role.orchestrator)
    ran = 0.0 if end is None or end.finished_at is None else seconds(end.started_at, end.finished_at)
    return not pod.is_refused_by_node and (pod.is_disrupted or ran >= STABLE_SECONDS)


LOST_AFTER = timedelta(seconds=30)
"""Time after a pod's grace period in which its kubelet may still report its termination."""


def delete_lost_pods(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete pods whose nodes have not confirmed their termination in time, and the Job of a lost orchestrator.

    The Job is deleted because it keeps a finalizer on its pod until the kubelet reports the termination. The next
    reconcile that finds no pod of the Job recreates it. Pods of an earlier run of the same name are deleted too,
    because the run waits for them.
    """
    pods = [pod for pod in observation.pods if label(pod.obj, MANAGED_BY_LABEL) == FIELD_MANAGER]
    ends = [(pod, end) for pod in pods if (end := lost_at(pod, observation.lost_nodes)) is not None]
    if not ends:
        return None
    lost = [pod for pod, end in ends if end <= now]
    own = [pod for pod in lost if pod.run_uid == observation.uid]
    # A pod without a grace period only waits for its finalizer.
    kept = [pod for pod in lost if pod.obj["metadata"].get("deletionGracePeriodSeconds") != 0]
    attempts = {pod.attempt for pod in own if pod.role == Role.orchestrator}
    jobs = [job for attempt in attempts if (job := orchestrator_job(observation, attempt)) is not None]
    part = PlanPart(
        deletes=(
            *(ObjectRef.of(job) for job in jobs if not is_leaving(job)),
            *(ObjectRef(POD.kind, p.name, p.uid, grace_seconds=0) for p in kept),
        ),
        events=tuple(EventRecord(Reason.LOST_POD_DELETED, _lost_message(pod), warning=True) for pod in kept),
        requeue_after=min((seconds(now, end) for _, end in ends if end > now), default=settings.poll_seconds),
    )
    resolved = resolve_run(observation, status, spec, settings)
    current = [job for job in jobs if attempt_of(job) == status.attempt]
    if isinstance(resolved, Problem) or all(builds_same(observation, status, settings, resolved, j) for j in current):
        return part
    # This operator is newer than the attempt, whose processes may not be compatible with a new orchestrator.
    problem = Problem(reason=Reason.NODE_UNREACHABLE, message=_lost_message(own[0]))
    return part.then(plan_restart(observation, status, settings, now, problem, counts_toward_max=False))


def lost_at(pod: Pod, lost_nodes: Collection[str]) -> datetime | None:
    """Return the time at which the pod is considered lost, or None if it is not terminating or its node reports."""
    # Kubernetes sets deletionTimestamp to the time of the request plus the grace period.
    ends = pod.deletion_time
    if ends is None or not pod.is_alive:
        return None
    if not pod.is_node_silent and not (pod.is_evicted_by_taint and pod.node in lost_nodes):
        return None
    return ends + LOST_AFTER


def _lost_message(pod: Pod) -> str:
    return (
        f"Pod {pod.name} had not terminated {LOST_AFTER.total_seconds():.0f} s after the end of its grace period, "
        f"because node {pod.node} does not report to Kubernetes. The operator deleted the pod."
    )


def delete_outlived_pods(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """Delete pods of the attempt in which only injected containers still run. Their controllers replace the pods."""
    pods = [p for p in observation.pods_of(status.attempt) if p.has_only_injected_running and not p.is_leaving]
    if not pods:
        return None
    return PlanPart(
        deletes=tuple(ObjectRef(POD.kind, p.name, p.uid) for p in pods),
        logs=tuple(unheld_logs(run_layout(settings, observation.namespace, observation.uid), pods)),
        events=tuple(EventRecord(Reason.OUTLIVED_POD_DELETED, _outlived_message(pod)) for pod in pods),
        # Crashes in a terminating pod are not counted, so count the crash before the deletion.
        status_first=True,
    )


def _outlived_message(pod: Pod) -> str:
    running = [s["name"] for s in pod.injected_statuses if "running" in (s.get("state") or {})]
    return (
        f"The run's process in pod {pod.name} has ended, but the injected container{'s' if len(running) > 1 else ''} "
        f"{', '.join(running)} kept the pod running. The operator deleted the pod."
    )


HELD_SECONDS = 120.0
"""Maximum seconds for which an attempt with refused pods keeps its other pods. A webhook that refuses pods while it
restarts is available again sooner.
"""


def end_refused_attempt(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> PlanPart | None:
    """End an attempt if a component has no ready pod and its pods have been refused for HELD_SECONDS. Fails the run
    after `startDeadlineSeconds` of refusals.
    """
    ready = {pod.component for pod in observation.pods_of(status.attempt) if pod.is_ready}
    found = next((p for p in refused_pods(observation, status.attempt) if p.component not in ready), None)
    active = seconds(status.attempt_start_time, now)
    if found is None:
        # The pods of a new attempt may not have been refused yet.
        is_over = status.refused_since is not None and active >= HELD_SECONDS
        return PlanPart(status=StatusChange(fields={"refused_since": None})) if is_over else None
    since = status.refused_since or now
    begun = PlanPart(status=StatusChange(fields={"refused_since": since}))
    refused = seconds(since, now)
    if refused >= spec.start_deadline_seconds:
        problem = Problem(
            reason=found.problem.reason,
            message=f"The API server refused pods for {spec.start_deadline_seconds} s (`spec.startDeadlineSeconds`): "
            f"{found.problem.message}",
        )
        failed = mark_finished(observation, status, settings, now, Phase.failed, problem)
        return replace(begun.then(failed), discard_writes=True)
    if min(refused, active) < HELD_SECONDS:
        return begun
    return begun.then(plan_restart(observation, status, settings, now, found.problem, counts_toward_max=False))
