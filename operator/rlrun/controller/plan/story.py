"""The state of one reconcile while it is being planned, and the plan that it becomes."""

from collections.abc import Iterable
from datetime import datetime

from rlrun.controller.observed import LogCopy, Nudge, Observed, Plan
from rlrun.controller.plan.artifacts import ArtifactPlan
from rlrun.controller.plan.draft import Draft
from rlrun.controller.plan.events import transitions
from rlrun.controller.plan.logs import last_words, logs_of_pods
from rlrun.kube.events import EventRecord as Note
from rlrun.kube.objects import Obj, label
from rlrun.kube.objects import ObjectRef as Ref
from rlrun.resources.naming import RunIdentity
from rlrun.resources.platform import run_layout
from rlrun.resources.settings import Settings
from rlrun.schema.labels import FINALIZER, RUN_UID_LABEL
from rlrun.schema.retention import ArtifactPolicy
from rlrun.schema.run import RLRunSpec

DELETION_RETRY_SECONDS = 30.0
"""Between two tries to delete files of a run that is not looked at for anything else."""


class Story:
    """The state of one reconcile while it is being planned."""

    def __init__(self, seen: Observed, settings: Settings, now: datetime) -> None:
        metadata = seen.run["metadata"]
        self.seen = seen
        self.settings = settings
        self.generation = int(metadata.get("generation") or 0)
        self.draft = Draft(seen.run.get("status"), self.generation, now)
        self.deletes: list[Ref] = []
        self.applies: list[Obj] = []
        self.nudges: list[Nudge] = []
        self.logs: list[LogCopy] = []
        self.notes: list[Note] = []
        self.artifacts: ArtifactPlan | None = None
        self.requeue: float | None = settings.poll_seconds
        self.delete_run = False
        self.status_first = False
        self.layout = run_layout(settings, seen.namespace, seen.uid)
        self.pods = [p for p in seen.pods if label(p, RUN_UID_LABEL) == seen.uid]
        """Of all attempts."""

    def write_nothing(self) -> None:
        """The attempt is over: what it lacked is not needed any more."""
        self.applies.clear()
        self.nudges.clear()

    def remove(self, workloads: Iterable[Ref]) -> None:
        """Deletes what keeps pods alive; their logs are kept before."""
        refs = list(workloads)
        self.deletes += refs
        if refs:
            self.logs += logs_of_pods(self.layout, self.pods)

    @property
    def identity(self) -> RunIdentity:
        """Which attempt of which run the children belong to."""
        return RunIdentity(
            self.seen.namespace, self.seen.name, self.seen.uid, self.draft.status.attempt, self.generation
        )

    def result(self, spec: RLRunSpec | None) -> Plan:
        """The plan as it stands."""
        finalizers = self.seen.run["metadata"].get("finalizers") or []
        wants = spec is not None and spec.artifact_policy is ArtifactPolicy.delete
        found = self.artifacts or ArtifactPlan()
        status = self.draft.status
        logs = {copy.uri: copy for copy in (*last_words(self.layout, self.pods), *self.logs)}
        return Plan(
            add_finalizer=wants and FINALIZER not in finalizers,
            logs=tuple(logs.values()),
            status_first=self.status_first,
            deletes=(*found.deletes, *self.deletes),
            applies=(*found.applies, *self.applies),
            nudges=tuple(self.nudges),
            artifact_statuses=tuple(found.statuses),
            status=status,
            events=(*transitions(self.draft.old, status), *self.notes),
            removals=tuple(found.removals),
            remove_finalizer=spec is not None and not wants and FINALIZER in finalizers,
            delete_run=self.delete_run,
            requeue_after=self._next_look(found),
        )

    def _next_look(self, artifacts: ArtifactPlan) -> float | None:
        times = [self.requeue] if self.requeue is not None else []
        if artifacts.marked:
            times.append(self.settings.poll_seconds)
        if artifacts.removals:
            times.append(DELETION_RETRY_SECONDS)
        return min(times, default=None)
