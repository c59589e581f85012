"""Decisions of the planner as plain values: a part from each policy, and the plan that combines the parts."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypedDict

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import (
    ArtifactEntry,
    ComponentStatus,
    EndedAttempt,
    EnvironmentPackage,
    Groups,
    Progress,
    ResolvedValues,
    RLRunStatus,
    RunPool,
    RunQueue,
)
from rlrun.garbage_collection.tombstones import RunTombstone
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.protocol.problem import Problem

from rlrun_operator.kueue.workload_status import WorkloadStatus


@dataclass(frozen=True)
class ConfigRefresh:
    """Annotation on a pod that makes the kubelet update the pod's mounted ConfigMap immediately."""

    pod: str
    uid: str
    digest: str
    """Digest of the ConfigMap's new content."""


@dataclass(frozen=True)
class ArtifactDeletion:
    """Deletion of an artifact: first its files, then its object, which records the unfinished deletion."""

    obj: Obj
    """The RLCheckpoint or RLAdapter, in phase Deleting."""
    uri: str


@dataclass(frozen=True)
class LogCopy:
    """A container's log to copy to S3."""

    pod: str
    container: str
    uri: str
    previous: bool = False
    """True for the log of the container instance before its newest restart."""


@dataclass(frozen=True)
class RunFilesDeletion:
    """Deletion of all files of a run in S3, except for some folders."""

    root: str
    keep: tuple[str, ...] = ()
    """URIs of the folders to keep."""


@dataclass(frozen=True)
class TombstoneWrite:
    """Tombstone of a deleted run, which is written to the bucket."""

    uri: str
    content: RunTombstone


@dataclass
class ArtifactPlan:
    """Changes to the artifacts' objects and files, and the artifacts that the run's status lists."""

    removals: list[ArtifactDeletion] = field(default_factory=list)
    deletes: list[ObjectRef] = field(default_factory=list)
    applies: list[Obj] = field(default_factory=list)
    statuses: list[Obj] = field(default_factory=list)
    checkpoints: list[ArtifactEntry] = field(default_factory=list)
    adapters: list[ArtifactEntry] = field(default_factory=list)
    marked: bool = False
    """True if an object enters phase Deleting. The next reconcile, which deletes the files, should follow soon."""
    deletion_problem: Problem | None = None
    """S3 error that prevents retention from deleting files, or None."""


class StatusFields(TypedDict, total=False):
    """Fields of a run's status that policies set, in addition to conditions."""

    phase: Phase | None
    reason: str | None
    message: str | None
    progress: Progress | None
    groups: Groups | None
    attempt: int
    attempt_start_time: datetime | None
    past_active_seconds: int
    past_gpu_seconds: int
    ended_attempts: list[EndedAttempt]
    restarts: int
    run_restarts: int
    run_restarts_toward_max: int
    restart_backoff_seconds: int
    next_restart_time: datetime | None
    refused_since: datetime | None
    queue: RunQueue | None
    pool: RunPool | None
    pool_evicted: bool
    components: list[ComponentStatus]
    resolved: ResolvedValues | None
    environments: list[EnvironmentPackage]
    start_time: datetime | None
    completion_time: datetime | None
    checkpoints: list[ArtifactEntry]
    adapters: list[ArtifactEntry]
    last_checkpoint: str | None


@dataclass(frozen=True)
class ConditionChange:
    """New content of one condition."""

    type: str
    value: bool | None
    """Status of the condition. None means Unknown."""
    reason: str
    message: str = ""


@dataclass(frozen=True)
class StatusChange:
    """Conditions and fields of a run's status to set. The last change of a field takes precedence."""

    conditions: tuple[ConditionChange, ...] = ()
    fields: StatusFields = field(default_factory=StatusFields)

    def then(self, later: "StatusChange") -> "StatusChange":
        """Return the combination of this change and a later change."""
        return StatusChange((*self.conditions, *later.conditions), {**self.fields, **later.fields})


@dataclass(frozen=True)
class Actions:
    """Actions that policies request and that a plan contains."""

    logs: tuple[LogCopy, ...] = ()
    """Logs to copy, within a limited time, before `deletes` are executed."""
    status_first: bool = False
    """True if the status must be written before children are written or deleted, for example because it is derived from
    pods that the plan deletes.
    """
    deletes: tuple[ObjectRef, ...] = ()
    queue_label: str | None = None
    """Value of the run's label for Kueue, written before `applies`. None leaves it unchanged."""
    workload_status: WorkloadStatus | None = None
    """Status of the run's Workload."""
    applies: tuple[Obj, ...] = ()
    """Children to write, in order. If one is refused, the following ones are not written."""
    writes_children: bool = False
    """True if `applies` contains all missing children of the attempt."""
    refreshes: tuple[ConfigRefresh, ...] = ()
    events: tuple[EventRecord, ...] = ()
    """Events to write in addition to the Events for changes of the status."""
    delete_run: bool = False
    suspend: bool = False
    """True if `spec.suspend` must be set, after the status with the reason is written."""
    requeue_after: float | None = None
    """Seconds until the next reconcile, the minimum of all parts. If None, the run is reconciled after the next event.
    """


@dataclass(frozen=True)
class PlanPart(Actions):
    """Contribution of a policy to the plan."""

    status: StatusChange = field(default_factory=StatusChange)
    artifacts: ArtifactPlan | None = None
    discard_writes: bool = False
    """True if the attempt ends, so that `applies` and `refreshes` of earlier parts are dropped."""
    final: bool = False
    """True if the policies after this one are skipped."""

    def then(self, later: "PlanPart") -> "PlanPart":
        """Return the combination of this part and a later part."""
        first = replace(self, applies=(), refreshes=(), writes_children=False) if later.discard_writes else self
        times = [t for t in (self.requeue_after, later.requeue_after) if t is not None]
        return PlanPart(
            status=first.status.then(later.status),
            deletes=(*first.deletes, *later.deletes),
            applies=(*first.applies, *later.applies),
            refreshes=(*first.refreshes, *later.refreshes),
            logs=(*first.logs, *later.logs),
            events=(*first.events, *later.events),
            artifacts=later.artifacts or first.artifacts,
            requeue_after=min(times, default=None),
            workload_status=later.workload_status or first.workload_status,
            queue_label=later.queue_label or first.queue_label,
            status_first=first.status_first or later.status_first,
            writes_children=first.writes_children or later.writes_children,
            discard_writes=first.discard_writes or later.discard_writes,
            delete_run=first.delete_run or later.delete_run,
            suspend=first.suspend or later.suspend,
            final=first.final or later.final,
        )


@dataclass(frozen=True)
class Plan(Actions):
    """All actions of one reconcile. Every step is idempotent; the next reconcile continues after a crash."""

    add_finalizer: bool = False
    records_artifacts: bool = False
    """True if `artifact_applies` contains all missing objects of checkpoints and adapters."""
    artifact_applies: tuple[Obj, ...] = ()
    artifact_statuses: tuple[Obj, ...] = ()
    status: RLRunStatus | None = None
    """Complete new status. None if it is unchanged."""
    removals: tuple[ArtifactDeletion, ...] = ()
    tombstone: TombstoneWrite | None = None
    """Tombstone of the run, written after `purge` and before the finalizer is removed."""
    purge: RunFilesDeletion | None = None
    remove_finalizer: bool = False
