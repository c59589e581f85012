"""Builder that merges the parts of the policies into one plan."""

from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import FINALIZER, ConditionType, Reason
from rlrun.kube.conditions import find_condition
from rlrun.kube.events import EventRecord

from rlrun_operator.planning.plan.actions import ArtifactPlan, ConditionChange, Plan, PlanPart, StatusChange
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change, new_status

APPLIED = ConditionType.CHILDREN_APPLIED


class PlanBuilder:
    """Merged parts of one plan, and the run's status with their changes applied."""

    def __init__(self, observation: RunObservation, now: datetime) -> None:
        self._observation = observation
        self._now = now
        self._part = PlanPart()
        self.status: RLRunStatus = new_status(observation.run.get("status"), observation.generation)

    def merge(self, part: PlanPart) -> None:
        """Add a part and apply its changes to `status`."""
        self.status = apply_change(self.status, part.status, self._now)
        self._part = self._part.then(part)

    def build(self, spec: RLRunSpec | None) -> Plan:
        """Return the plan. Without a valid `spec` it does not change the finalizer."""
        observation, part = self._observation, self._part
        finalizers = observation.run["metadata"].get("finalizers") or []
        deletes_files = spec is not None and spec.artifact_policy is ArtifactPolicy.delete
        artifacts = part.artifacts or ArtifactPlan()
        logs = {copy.uri: copy for copy in part.logs}
        applies = (*artifacts.applies, *part.applies)
        if not applies and observation.refusal is None and find_condition(self.status, APPLIED) is not None:
            change = StatusChange((ConditionChange(APPLIED, True, Reason.APPLIED),))
            self.status = apply_change(self.status, change, self._now)
        return Plan(
            add_finalizer=deletes_files and FINALIZER not in finalizers,
            logs=tuple(logs.values()),
            status_first=part.status_first,
            deletes=tuple(dict.fromkeys((*artifacts.deletes, *part.deletes))),
            applies=applies,
            refreshes=part.refreshes,
            artifact_statuses=tuple(artifacts.statuses),
            status=self.status,
            events=(*transitions(RLRunStatus.parse(observation.run.get("status")), self.status), *part.events),
            removals=tuple(artifacts.removals),
            remove_finalizer=spec is not None and not deletes_files and FINALIZER in finalizers,
            delete_run=part.delete_run,
            requeue_after=part.requeue_after,
        )


REPORTED_CONDITIONS = (
    ConditionType.VALIDATED,
    ConditionType.CHILDREN_APPLIED,
    ConditionType.TRAINER_READY,
    ConditionType.INFERENCE_READY,
    ConditionType.ENVIRONMENTS_READY,
    ConditionType.ORCHESTRATOR_READY,
)
QUIET_REASONS = frozenset(
    {Reason.STARTING, Reason.RUN_FINISHED, Reason.SUSPENDED, Reason.RESTARTING, Reason.NOT_STARTED, "WaitingForQuota"}
)


def transitions(old: RLRunStatus, new: RLRunStatus) -> tuple[EventRecord, ...]:
    """Return the Events for the differences between two statuses of a run."""
    events = []
    if new.phase is not None and new.phase is not old.phase:
        events.append(_phase_event(new.phase, new))
    for kind in REPORTED_CONDITIONS:
        before, after = find_condition(old, kind), find_condition(new, kind)
        if after is None or after.status.value == "True" or after.reason in QUIET_REASONS:
            continue
        if (before is None or before.reason != after.reason) and new.phase is not Phase.failed:
            events.append(EventRecord(after.reason, after.message, warning=True))
    if new.attempt > old.attempt:
        events.append(
            EventRecord(Reason.ATTEMPT_STARTED, f"Attempt {new.attempt} continues from the newest checkpoint.")
        )
    known = {c.step for c in old.checkpoints}
    events += [
        EventRecord(Reason.CHECKPOINT_READY, f"Checkpoint {c.name} of step {c.step} is ready.")
        for c in reversed(new.checkpoints)
        if c.step not in known
    ]
    return tuple(events)


def _phase_event(phase: Phase, status: RLRunStatus) -> EventRecord:
    if phase is Phase.failed:
        return EventRecord(
            status.reason or Reason.FAILED, f"The run failed: {status.message or 'unknown reason'}", warning=True
        )
    return EventRecord(phase.value, status.message or f"The run is {phase.value}.")
