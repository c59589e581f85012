"""Admission of a run by Kueue: the queue's answer, and the writes to the run's Workload.

Both follow from the same decision (`rlrun_operator.kueue.transitions`). If the Workload cannot be read, a run is not
started, but an admitted run continues.
"""

from datetime import datetime

from rlrun.api.base.kubernetes_types import ConditionStatus
from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus, RunQueue
from rlrun.constants import ConditionType, Reason
from rlrun.kube.conditions import find_condition, parse_time
from rlrun.kube.objects import Obj, label
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.kueue.transitions import Action, Decision, Stage, decide
from rlrun_operator.kueue.workload import QUEUE_LABEL, workload
from rlrun_operator.kueue.workload_status import is_condition_true, workload_condition
from rlrun_operator.planning.actions import ConditionChange, PlanPart, StatusChange
from rlrun_operator.planning.beginning import awaits_weights, egress_access
from rlrun_operator.planning.observation import Admission, Admitted, Refused, RunObservation, Waiting
from rlrun_operator.planning.queue import may_have_pods
from rlrun_operator.planning.readiness import CONDITION_OF, has_ready_pods
from rlrun_operator.planning.resolution import resolve_run
from rlrun_operator.planning.running import remaining_wait
from rlrun_operator.planning.spec import parse_spec, readable_part
from rlrun_operator.resources.children import children

POLL_SECONDS = 10.0
"""Seconds between two reconciles while waiting for Kueue to change a Workload. A watch usually reports changes sooner.
"""


def kueue_answer(observation: RunObservation, settings: OperatorSettings, now: datetime) -> Admission | None:
    """Return Kueue's answer for a run with a LocalQueue (`observation.kueue`), or None if the run needs no quota."""
    kueue, status = observation.kueue, observation.new_status()
    if kueue is None:
        return None
    spec = _readable_spec(observation)
    stage = stage_of(observation, status, spec, now)
    if kueue.problem is not None:
        # An admitted run keeps its admission while its Workload cannot be read.
        if stage is not Stage.QUEUED and status.queue is not None and status.queue.admitted_time is not None:
            return Admitted(status.queue)
        return None if stage is Stage.ACTIVE else Refused(kueue.problem)
    decision = _decision(observation, status, spec, settings, now)
    if decision is None:
        return None
    if stage is Stage.QUEUED and decision.action is Action.WAIT and isinstance(kueue.priority, Problem):
        return Refused(kueue.priority)
    if decision.action is Action.START and decision.workload is not None:
        return Admitted(_place(decision.workload, status, now))
    if decision.problem is not None:
        return Waiting(decision.problem, _queue(decision.workload, status, now))
    held = decision.workload
    if stage in (Stage.QUEUED, Stage.PAUSED) or held is None:
        return None
    if is_condition_true(held, "QuotaReserved"):
        return Admitted(_place(held, status, now))
    ending = Problem(reason=Reason.RUN_FINISHED, message="The run no longer needs quota.")
    return Waiting(ending, _queue(held, status, now))


def update_workload(
    observation: RunObservation, status: RLRunStatus, settings: OperatorSettings, now: datetime
) -> PlanPart:
    """Return the writes to the run's Workload. `status` is the stored status with the queue's answer applied."""
    kueue, spec = observation.kueue, _readable_spec(observation)
    if kueue is None:
        return PlanPart()
    is_finished = status.phase is not None and status.phase.finished
    if kueue.problem is not None:
        change = StatusChange()
        if isinstance(observation.admission, Admitted):
            known = ConditionChange(ConditionType.ADMITTED, True, kueue.problem.reason, kueue.problem.message)
            change = StatusChange((known,))
        return PlanPart(status=change, requeue_after=None if is_finished else POLL_SECONDS)
    decision = _decision(observation, observation.new_status(), spec, settings, now)
    if decision is None:
        return PlanPart()
    create = None if isinstance(kueue.priority, Problem) else decision.create
    writes = bool(create or decision.deletes or decision.status)
    waits = isinstance(observation.admission, Waiting | Refused)
    queue = str(spec.queue_name)
    is_wanted = spec.queue_name is not None and (create is not None or decision.action is Action.START)
    return PlanPart(
        status=_clear_refusal(decision, status).then(_kept_place(observation, decision)),
        applies=(create,) if create is not None else (),
        deletes=decision.deletes,
        workload_status=decision.status,
        queue_label=queue if is_wanted and label(observation.run, QUEUE_LABEL) != queue else None,
        requeue_after=settings.poll_seconds if writes else POLL_SECONDS if waits else None,
    )


def stage_of(observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, now: datetime) -> Stage:
    """Return the stage of the run with regard to its quota."""
    if status.phase is not None and status.phase.finished:
        return Stage.COMPLETED if status.phase is Phase.completed else Stage.ENDED
    if spec.stop:
        return Stage.ENDED
    if spec.suspend or observation.run["metadata"].get("deletionTimestamp"):
        return Stage.SUSPENDED
    if status.attempt_start_time is None:
        return Stage.PAUSED if remaining_wait(status, now) > 0 else Stage.QUEUED
    return Stage.ACTIVE if observation.has_workloads(status.attempt) else Stage.QUEUED


def _readable_spec(observation: RunObservation) -> RLRunSpec:
    spec = parse_spec(observation.run)
    return readable_part(observation.run) if isinstance(spec, Problem) else spec


def _decision(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> Decision | None:
    """Return the decision about the run, or None if the run is not queued by Kueue."""
    stage, kueue = stage_of(observation, status, spec, now), observation.kueue
    if kueue is None:
        return None
    return decide(
        stage,
        kueue.workloads,
        _build_workload(observation, status, spec, settings, now) if stage is Stage.QUEUED else None,
        now,
        has_pods=may_have_pods(observation, now),
        is_ready=all(has_ready_pods(status, kind) for kind in CONDITION_OF.values()),
        outcome=status.message or "",
    )


def _build_workload(
    observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime
) -> Obj | None:
    """Return the Workload for the next attempt, or None while the spec or its references are invalid or the weights are
    not cached.
    """
    if isinstance(parse_spec(observation.run), Problem):
        return None
    begins = status.attempt_start_time is None and status.start_time is not None
    coming = status.model_copy(update={"attempt": status.attempt + begins})
    resolved = resolve_run(observation, coming, spec, settings)
    if isinstance(resolved, Problem) or observation.kueue is None:
        return None
    if awaits_weights(observation, coming.attempt, resolved):
        return None
    identity, access = observation.identity(coming.attempt), egress_access(observation, settings, now)
    made = children(identity, settings, resolved, observation.storage_key, egress=access)
    priority = observation.kueue.priority
    return workload(identity, str(spec.queue_name), made, None if isinstance(priority, Problem) else priority)


def _clear_refusal(decision: Decision, status: RLRunStatus) -> StatusChange:
    """Clear an earlier refusal of the Workload once the API server has accepted the Workload."""
    known = find_condition(status, ConditionType.CHILDREN_APPLIED)
    if decision.action is not Action.WAIT or decision.create is not None or decision.deletes or known is None:
        return StatusChange()
    if known.status is ConditionStatus.true:
        return StatusChange()
    return StatusChange((ConditionChange(ConditionType.CHILDREN_APPLIED, True, Reason.APPLIED),))


def _kept_place(observation: RunObservation, decision: Decision) -> StatusChange:
    """Return the condition of a run that waits for its references while its Workload stays in the queue.

    The reason NotQueued would be wrong: it means that the run has no Workload, so the Workload would outlive the run.
    """
    if observation.admission is not None or decision.workload is None:
        return StatusChange()
    message = f"The Workload {decision.workload['metadata']['name']} keeps the run's position in the queue."
    return StatusChange((ConditionChange(ConditionType.ADMITTED, False, Reason.WAITING_FOR_QUOTA, message),))


def _place(held: Obj, status: RLRunStatus, now: datetime) -> RunQueue:
    admission = workload_condition(held, "Admitted") or workload_condition(held, "QuotaReserved") or {}
    since = _queue(held, status, now)
    return since.model_copy(update={"admitted_time": parse_time(admission.get("lastTransitionTime")) or now})


def _queue(held: Obj | None, status: RLRunStatus, now: datetime) -> RunQueue:
    metadata = (held or {}).get("metadata") or {}
    evicted = workload_condition(held, "Evicted") if held is not None and is_condition_true(held, "Evicted") else None
    text = evicted.get("lastTransitionTime") if evicted else metadata.get("creationTimestamp")
    known = status.queue.since if status.queue is not None else None
    priority = int(((held or {}).get("spec") or {}).get("priority") or 0)
    return RunQueue(since=parse_time(text) or known or now, priority=priority)
