"""Merges the parts of a plan, and builds the plan from them."""

from datetime import datetime

from rlrun.controller.plan.actions import ArtifactPlan, Plan, PlanPart
from rlrun.controller.plan.draft import apply_change, new_status
from rlrun.controller.plan.events import transitions
from rlrun.controller.plan.observation import RunObservation
from rlrun.schema.labels import FINALIZER
from rlrun.schema.retention import ArtifactPolicy
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import RLRunStatus


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
