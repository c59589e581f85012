"""Merges the parts of a plan, and builds the plan from them."""

from datetime import datetime

from rlrun.api.run import RLRunSpec
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.api.run_status import Phase, RLRunStatus
from rlrun.constants import FINALIZER, ConditionType, Reason
from rlrun.kube.conditions import find_condition
from rlrun.kube.events import EventRecord as Note

from rlrun_operator.planning.plan.actions import ArtifactPlan, Plan, PlanPart
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.status_builder import apply_change, new_status


class PlanBuilder:
    """The parts of one reconcile's plan and the run's status with their changes."""

    def __init__(self, observation: RunObservation, now: datetime) -> None:
        self._observation = observation
        self._now = now
        self._part = PlanPart()
        self.status: RLRunStatus = new_status(observation.run.get("status"), observation.generation)

    def merge(self, part: PlanPart) -> None:
        """Add a part; `status` has its changes from then on."""
        self.status = apply_change(self.status, part.status, self._now)
        self._part = self._part.then(part)

    def build(self, spec: RLRunSpec | None) -> Plan:
        """Return the plan; without a valid `spec` the finalizer stays as it is."""
        observation, part = self._observation, self._part
        finalizers = observation.run["metadata"].get("finalizers") or []
        deletes_files = spec is not None and spec.artifact_policy is ArtifactPolicy.delete
        artifacts = part.artifacts or ArtifactPlan()
        logs = {copy.uri: copy for copy in part.logs}
        return Plan(
            add_finalizer=deletes_files and FINALIZER not in finalizers,
            logs=tuple(logs.values()),
            status_first=part.status_first,
            deletes=(*artifacts.deletes, *part.deletes),
            applies=(*artifacts.applies, *part.applies),
            refreshes=part.refreshes,
            artifact_statuses=tuple(artifacts.statuses),
            status=self.status,
            events=(*transitions(RLRunStatus.parse(observation.run.get("status")), self.status), *part.events),
            removals=tuple(artifacts.removals),
            remove_finalizer=spec is not None and not deletes_files and FINALIZER in finalizers,
            delete_run=part.delete_run,
            requeue_after=part.requeue_after,
        )


WATCHED = (
    ConditionType.VALIDATED,
    ConditionType.TRAINER_READY,
    ConditionType.INFERENCE_READY,
    ConditionType.ENVIRONMENTS_READY,
    ConditionType.ORCHESTRATOR_READY,
)
QUIET_REASONS = frozenset(
    {Reason.STARTING, Reason.RUN_FINISHED, Reason.SUSPENDED, Reason.RESTARTING, Reason.NOT_STARTED, "WaitingForQuota"}
)


def transitions(old: RLRunStatus, new: RLRunStatus) -> tuple[Note, ...]:
    """The Events between two statuses of the same run."""
    notes = []
    if new.phase is not None and new.phase is not old.phase:
        notes.append(_phase_note(new.phase, new))
    for kind in WATCHED:
        before, after = find_condition(old, kind), find_condition(new, kind)
        if after is None or after.status.value == "True" or after.reason in QUIET_REASONS:
            continue
        if (before is None or before.reason != after.reason) and new.phase is not Phase.failed:
            notes.append(Note(after.reason, after.message, warning=True))
    if new.attempt > old.attempt:
        notes.append(Note(Reason.ATTEMPT_STARTED, f"Attempt {new.attempt} continues from the newest checkpoint."))
    known = {c.step for c in old.checkpoints}
    notes += [
        Note(Reason.CHECKPOINT_READY, f"Checkpoint {c.name} of step {c.step} is ready.")
        for c in reversed(new.checkpoints)
        if c.step not in known
    ]
    return tuple(notes)


def _phase_note(phase: Phase, status: RLRunStatus) -> Note:
    if phase is Phase.failed:
        return Note(status.reason or "Failed", f"The run failed: {status.message or 'no reason known'}", warning=True)
    return Note(phase.value, status.message or f"The run is {phase.value}.")
