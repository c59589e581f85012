"""Decisions about a run in a Kueue queue, based on the run's observed Workload, its stage and its pods.

Kueue expects from the owner of a Workload: no pods before the admission, no pods after an eviction, and quota released
only after the last pod has ended. Decisions depend only on observed state, so an operator that restarts at any
point makes the same decisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rlrun.constants import HASH_ANNOTATION, Reason
from rlrun.kube.objects import Obj, ObjectRef, annotation
from rlrun.kube.pods import is_leaving
from rlrun.protocol.problem import Problem

from rlrun_operator.kueue.workload_status import (
    WorkloadStatus,
    finish_workload,
    is_condition_true,
    pods_ready,
    release_quota,
    workload_condition,
)

MISCONFIGURED = ("Misconfigured", "Inadmissible")
"""Kueue's reasons for a Workload that cannot be admitted until its missing or inactive queue is fixed."""


STOPPED = ("ClusterQueueStopped", "LocalQueueStopped")
"""Kueue's reasons for an eviction because a queue was stopped. The condition Requeued keeps this reason until the queue
is started again.
"""


class Stage(StrEnum):
    """Stage of a run with regard to its quota."""

    QUEUED = "queued"
    """The run has no attempt and needs quota to start one."""
    ACTIVE = "active"
    """The run has an attempt."""
    PAUSED = "paused"
    """The next attempt starts after a pause, and the run keeps its quota."""
    SUSPENDED = "suspended"
    """The run needs no quota: it is suspended or being deleted."""
    COMPLETED = "completed"
    ENDED = "ended"
    """The run has failed or was stopped."""


class Action(StrEnum):
    """Next action for a run."""

    WAIT = "wait"
    """Create no pods. Earlier pods may still be terminating."""
    START = "start"
    """All pods are admitted: start an attempt, or continue the active one."""
    STOP = "stop"
    """Delete the pods and end the attempt: the run lost its quota."""
    NOTHING = "nothing"
    """Neither start nor stop pods: the run needs no quota now. The decision may still finish or delete its Workload."""


@dataclass(frozen=True)
class Decision:
    """Next action for a run, and the writes to its Workload."""

    action: Action
    workload: Obj | None = None
    """The Workload that the action concerns, or None."""
    problem: Problem | None = None
    """Reason why the run waits or lost its quota."""
    create: Obj | None = None
    deletes: tuple[ObjectRef, ...] = ()
    status: WorkloadStatus | None = None


def decide(
    stage: Stage,
    workloads: Sequence[Obj],
    wanted: Obj | None,
    now: datetime,
    *,
    has_pods: bool,
    is_ready: bool = False,
    outcome: str = "",
) -> Decision:
    """Decide the next action for a run, and the writes to its Workload.

    Args:
        stage: Stage of the run.
        workloads: All Workloads of the run.
        wanted: The Workload as it would be created now, or None while the run cannot start. Used in stage QUEUED only.
        now: The current time.
        has_pods: True if a pod of the run may still run, or if a ReplicaSet or Job of the run could create one.
        is_ready: True if all pods of the attempt are ready.
        outcome: Message about the run's end, for the condition Finished.
    """
    known = sorted(workloads, key=lambda w: str(w["metadata"].get("creationTimestamp") or ""))
    usable = [w for w in known if not is_leaving(w) and not is_condition_true(w, "Finished")]
    current = usable[-1] if usable else None
    if stage is Stage.SUSPENDED:
        return Decision(Action.NOTHING, current, deletes=() if has_pods else _refs(known))
    if stage in (Stage.COMPLETED, Stage.ENDED):
        if current is None or has_pods:
            return Decision(Action.NOTHING, current)
        succeeded = stage is Stage.COMPLETED
        return Decision(
            Action.NOTHING, current, status=finish_workload(current, now, succeeded=succeeded, message=outcome)
        )
    if stage is Stage.ACTIVE:
        return _active(current, now, is_ready=is_ready)
    if current is not None and is_condition_true(current, "Evicted") and is_condition_true(current, "QuotaReserved"):
        return Decision(
            Action.WAIT, current, _admission_problem(current), status=None if has_pods else release_quota(current, now)
        )
    if stage is Stage.PAUSED:
        is_admitted = current is not None and is_condition_true(current, "Admitted")
        return Decision(Action.START if is_admitted else Action.NOTHING, current)
    return _plan_queued(known, current, wanted, has_pods=has_pods)


def _active(current: Obj | None, now: datetime, *, is_ready: bool) -> Decision:
    if current is None:
        problem = Problem(
            reason=Reason.WORKLOAD_EVICTED,
            message=(
                "The run's Workload was deleted, so the run has lost its quota. The run stops, queues again, and "
                "continues from its newest checkpoint."
            ),
        )
        return Decision(Action.STOP, problem=problem)
    lost = _admission_problem(current)
    if lost is not None:
        return Decision(Action.STOP, current, lost)
    return Decision(Action.START, current, status=pods_ready(current, is_ready, now))


def _plan_queued(known: Sequence[Obj], current: Obj | None, wanted: Obj | None, *, has_pods: bool) -> Decision:
    if wanted is None:
        # The references in the spec are invalid, so the shape of the run is unknown, or its weights are being
        # downloaded. An existing Workload keeps its position in the queue.
        is_admitted = current is not None and is_condition_true(current, "Admitted")
        return Decision(Action.START if is_admitted else Action.NOTHING, current)
    if current is None:
        old = [w for w in known if not is_leaving(w)]
        if has_pods or len(old) < len(known):
            return Decision(Action.WAIT, problem=_waiting_for_end(wanted))
        if old:
            # Finished by another writer, for example by Kueue for an owner that it could not read.
            return Decision(Action.WAIT, problem=_waiting_for_end(wanted), deletes=_refs(old))
        return Decision(Action.WAIT, wanted, _just_queued(wanted), create=wanted)
    if annotation(current, HASH_ANNOTATION) != annotation(wanted, HASH_ANNOTATION):
        # Request quota for the pods that the run would have now. The requests of an existing Workload are immutable.
        if has_pods and is_condition_true(current, "QuotaReserved"):
            return Decision(Action.WAIT, current, _waiting_for_end(wanted))
        return Decision(Action.WAIT, current, _just_queued(wanted), deletes=_refs([current]))
    if not is_condition_true(current, "QuotaReserved"):
        return Decision(Action.WAIT, current, _without_quota(current))
    if not is_condition_true(current, "Admitted"):
        return Decision(Action.WAIT, current, _without_checks(current))
    return Decision(Action.START, current)


def _admission_problem(workload: Obj) -> Problem | None:
    """Return why an attempt must stop, or None if its Workload is admitted."""
    evicted = workload_condition(workload, "Evicted")
    if evicted is not None and evicted.get("status") == "True":
        why = _said(evicted)
    elif not is_condition_true(workload, "QuotaReserved"):
        why = _said(workload_condition(workload, "QuotaReserved"))
    elif not is_condition_true(workload, "Admitted"):
        why = _said(workload_condition(workload, "Admitted"))
    else:
        return None
    return Problem(
        reason=Reason.WORKLOAD_EVICTED,
        message=f"Kueue took the run's quota back ({why}). The run queues again, and continues from its newest "
        "checkpoint when it is admitted. The restart does not count toward `spec.maxRestarts`.",
    )


def _without_quota(workload: Obj) -> Problem:
    condition = workload_condition(workload, "QuotaReserved")
    queue, name = workload["spec"].get("queueName"), workload["metadata"]["name"]
    if workload["spec"].get("active") is False:
        return Problem(
            reason=Reason.QUEUE_MISCONFIGURED,
            message=f"The run's Workload {name} is deactivated (`spec.active` is false), so Kueue does not admit it. "
            "Ask the platform team why, or suspend and resume the run to queue again.",
        )
    if condition is None:
        return _just_queued(workload)
    requeued = workload_condition(workload, "Requeued")
    if requeued is not None and requeued.get("status") == "False" and requeued.get("reason") in STOPPED:
        # Kueue reports a stopped queue as inactive too, with the same reason as a misconfigured queue.
        return Problem(
            reason=Reason.WAITING_FOR_QUOTA,
            message=f"The LocalQueue {queue} or its ClusterQueue was stopped while the run was active "
            f"({_said(requeued)}). The run waits until the platform team starts the queue again, and then continues "
            f"from its newest checkpoint. Current state in Kueue: {_said(condition)}.",
        )
    if condition.get("reason") in MISCONFIGURED:
        return Problem(
            reason=Reason.QUEUE_MISCONFIGURED,
            message=f"Kueue cannot admit the run from the LocalQueue {queue}: {_said(condition)}. Ask the platform "
            "team to correct the queue, or start the run with a different `spec.queueName`.",
        )
    return Problem(
        reason=Reason.WAITING_FOR_QUOTA,
        message=f"The run waits in the LocalQueue {queue} until Kueue admits all of its pods: {_said(condition)}. See "
        f"`kubectl describe workload {name} -n {workload['metadata']['namespace']}`.",
    )


def _without_checks(workload: Obj) -> Problem:
    checks = (workload.get("status") or {}).get("admissionChecks") or []
    pending = [c for c in checks if c.get("state") != "Ready"]
    listed = "; ".join(f"{c['name']}: {str(c.get('message') or c.get('state')).rstrip('.')}" for c in pending)
    return Problem(
        reason=Reason.WAITING_FOR_ADMISSION_CHECKS,
        message="Kueue has reserved quota for the run. The run waits for its admission checks: "
        f"{listed or 'none is listed'}.",
    )


def _just_queued(workload: Obj) -> Problem:
    return Problem(
        reason=Reason.WAITING_FOR_QUOTA,
        message=f"The run waits in the LocalQueue {workload['spec'].get('queueName')} until Kueue admits all of its "
        "pods. If this message stays, Kueue may not be running: ask the platform team.",
    )


def _waiting_for_end(wanted: Obj) -> Problem:
    return Problem(
        reason=Reason.WAITING_FOR_PREVIOUS_PODS,
        message=(
            f"The run queues in the LocalQueue {wanted['spec'].get('queueName')} once its previous pods and Workload "
            f"are deleted. No action needed."
        ),
    )


def _said(condition: Obj | None) -> str:
    if condition is None:
        return "no quota is reserved"
    return f"{condition.get('reason')}: {str(condition.get('message') or 'no message').rstrip('.')}"


def _refs(workloads: Sequence[Obj]) -> tuple[ObjectRef, ...]:
    return tuple(ObjectRef.of(w) for w in workloads if not is_leaving(w))
