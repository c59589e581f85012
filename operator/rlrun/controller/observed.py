"""What a reconcile looks at and what it decides, as plain values: the two ends of the pure plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlrun.artifacts.manifest import Manifest
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef, attempt_of, label
from rlrun.schema.labels import RUN_UID_LABEL
from rlrun.schema.run_status import RLRunStatus
from rlrun.schema.wire import Problem, RunStatus

ArtifactObjectKind = Literal["RLCheckpoint", "RLAdapter"]


@dataclass(frozen=True)
class SeenArtifact:
    """One folder of a checkpoint or an adapter in S3."""

    kind: ArtifactObjectKind
    step: int
    uri: str
    manifest: Manifest | None = None
    """None while the upload goes on, and where the artifact's object is Ready already (so nobody had to read it)."""
    problem: str | None = None
    """Why the folder is not whole although it should be, for people."""


@dataclass(frozen=True)
class Observed:
    """One look at everything that concerns a run."""

    run: Obj
    children: tuple[Obj, ...] = ()
    """Deployments, Jobs, Services, NetworkPolicies, ConfigMap, Secret and ServiceAccount with the run's name."""
    pods: tuple[Obj, ...] = ()
    artifact_objects: tuple[Obj, ...] = ()
    """RLCheckpoints and RLAdapters of this run (by uid)."""
    artifacts: tuple[SeenArtifact, ...] | None = None
    """Folders in S3; None when nobody looked, or S3 did not answer."""
    artifacts_problem: Problem | None = None

    models: tuple[Obj, ...] = ()
    """The catalogue; looked at only until the attempt has its configuration."""
    warm_start: Obj | None = None
    """The RLCheckpoint that spec.checkpointId names, if it exists."""
    missing_secrets: tuple[str, ...] = ()
    """Secrets of spec.envFrom that are not there and not optional."""
    s3_variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The AWS_* variables for the run's pods; empty when the platform's Secret is missing."""
    s3_problem: Problem | None = None
    """Why runs cannot use S3 now."""
    warm_start_problem: str | None = None
    """What S3 lacks of the checkpoint that spec.checkpointId names."""
    claims: tuple[Obj, ...] | None = None
    """All RLRuns of all namespaces; looked at only where artifacts may have to go. None: not known."""

    poll: RunStatus | None = None
    """The orchestrator's answer; None when it was not asked or did not answer."""
    poll_error: str | None = None

    @property
    def name(self) -> str:
        """The run's name."""
        return str(self.run["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """The run's namespace."""
        return str(self.run["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """The run's uid."""
        return str(self.run["metadata"]["uid"])

    def own(self, *kinds: str) -> list[Obj]:
        """Children of this run, not of an earlier one of the same name; only of these kinds, if any are given."""
        return [c for c in self.children if label(c, RUN_UID_LABEL) == self.uid and (not kinds or c["kind"] in kinds)]

    def pods_of(self, attempt: int) -> list[Obj]:
        """The pods of one attempt of this run."""
        return [p for p in self.pods if label(p, RUN_UID_LABEL) == self.uid and attempt_of(p) == attempt]


@dataclass(frozen=True)
class Nudge:
    """An annotation on a pod. It says little to people, but makes the kubelet look at the pod's ConfigMap at once
    instead of within a minute or so.
    """

    pod: str
    uid: str
    digest: str
    """Of what the ConfigMap says now."""


@dataclass(frozen=True)
class Removal:
    """An artifact that retention removes: the files first, then the object that remembers them."""

    obj: Obj
    """The RLCheckpoint or RLAdapter, in phase Deleting."""
    uri: str


@dataclass(frozen=True)
class LogCopy:
    """A container's log to be kept in S3."""

    pod: str
    container: str
    uri: str
    previous: bool = False
    """Of the container before its newest restart."""


@dataclass(frozen=True)
class Purge:
    """All files of a run in S3, without some folders."""

    root: str
    keep: tuple[str, ...] = ()
    """Uris of folders that stay: deployed adapters."""


@dataclass(frozen=True)
class Plan:
    """What to do, in this order. Every step may be repeated, and the next reconcile mends what a crash left undone."""

    add_finalizer: bool = False
    logs: tuple[LogCopy, ...] = ()
    """Kept as far as it takes no long time; pods go next."""
    status_first: bool = False
    """Whether the status comes before the deletions: it says what nobody can find out again once the pods are gone."""
    deletes: tuple[ObjectRef, ...] = ()
    applies: tuple[Obj, ...] = ()
    nudges: tuple[Nudge, ...] = ()
    artifact_statuses: tuple[Obj, ...] = ()
    status: RLRunStatus | None = None
    """The whole new status; None leaves it as it is."""
    events: tuple[EventRecord, ...] = ()
    removals: tuple[Removal, ...] = ()
    purge: Purge | None = None
    remove_finalizer: bool = False
    delete_run: bool = False
    requeue_after: float | None = None
    """Seconds until somebody should look again even if nothing happens."""
