"""Input of the planner: everything that a reconcile has read about a run, and the answer from the run's queue.

In every reconcile the run's queue (built-in or Kueue) gives one of three answers: admitted, waiting or refused. The
answer is in `RunObservation.admission`, and `planning/beginning.py` converts it to status and actions.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from rlrun.api.run_status import RLRunStatus, RunQueue
from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.kinds import POD_CONTROLLERS
from rlrun.kube.objects import Obj, attempt_of, label
from rlrun.kube.pods import Pod
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity

from rlrun_operator.kueue.workload import KueueObservation
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog
from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.weights_cache import ObservedWeights


@dataclass(frozen=True)
class PodEvent:
    """Kubernetes Event about a pod or Job."""

    reason: str
    message: str
    warning: bool


def newest_event(events: Iterable[Obj]) -> PodEvent | None:
    """Return the newest of the Events, or None if there are none."""
    newest = max(events, key=_last_seen, default=None)
    if newest is None:
        return None
    return PodEvent(
        str(newest.get("reason") or ""), str(newest.get("message") or "").strip(), newest.get("type") == "Warning"
    )


def _last_seen(event: Obj) -> datetime:
    series = event.get("series") or {}
    stamps = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return max(time for stamp in stamps if (time := parse_time(stamp)) is not None)


@dataclass(frozen=True)
class Admitted:
    """The run has a slot and may have pods. The admission is written to the status before any child is created."""

    queue: RunQueue
    """Value for `status.queue`, with `admitted_time`."""


@dataclass(frozen=True)
class Waiting:
    """The run has no slot yet, or has lost it, and must not have pods. An active run becomes Queued."""

    problem: Problem
    """Reason for the wait. Must change rarely, because each change causes a write of the status."""
    queue: RunQueue
    """Value for `status.queue`, without `admitted_time`. `runs_ahead` is None if it is unknown."""


@dataclass(frozen=True)
class Refused:
    """The run cannot get a slot unless something is changed. The run is Pending until its start deadline."""

    problem: Problem
    """Reason for the refusal, and what to change."""


class SlotUnconfirmed(Exception):
    """Raised if the run would lose its slot because of cached objects, which may be stale. The caller must read the
    objects again before it decides.
    """


Admission = Admitted | Waiting | Refused

SESSION_SECONDS = 120.0
"""Seconds after which the newest response of a pool's trainer is too old to use. Orders are sent at least every 15 s,
so a trainer that has not responded for longer is dead or unreachable.
"""
SILENCE_SECONDS = 60.0
"""Seconds after which a trainer's response no longer proves that a client is silent. Four orders are sent in
this time.
"""


@dataclass(frozen=True)
class TrainerReport:
    """Runs to whose folders the trainer of a shared pool may write, according to its newest response."""

    uids: frozenset[str] | None
    """Uids of runs in the `TrainerOrder`, which may open a session at any time, and of runs that the response lists.
    None before the first response: the trainer may then write for any run.
    """
    time: datetime
    """Time of the newest response. Before the first response, the time at which the operator began to wait for it."""
    left_since: datetime | None = None
    """Time at which responses began to list runs that are not in the `TrainerOrder`, or None if the newest response
    lists none.
    """
    clients: Mapping[str, ClientActivity] = field(default_factory=dict)
    """State of the sessions of runs with `driver: Client`, by uid."""

    def may_write(self, uid: str, now: datetime) -> bool:
        """Return whether the trainer may write to the folder of the run with this uid."""
        return seconds(self.time, now) < SESSION_SECONDS and (self.uids is None or uid in self.uids)

    def activity_of(self, uid: str, now: datetime) -> ClientActivity | None:
        """Return the state of the session of a run with `driver: Client`, or None if it is unknown.

        In a response older than SILENCE_SECONDS, the client counts as active, because it may have made a call since.
        """
        age, session = seconds(self.time, now), self.clients.get(uid)
        if session is None or age >= SESSION_SECONDS:
            return None
        return session if age < SILENCE_SECONDS else session.model_copy(update={"silent_seconds": 0.0})


@dataclass(frozen=True)
class ObservedPool:
    """State of the shared pool of a run."""

    deployments: tuple[Obj, ...] = ()
    """Existing Deployments: one for the engines and, if the pool has a trainer, one for the trainer."""
    pods: tuple[Pod, ...] = ()
    problem: Problem | None = None
    """Reason why the operator cannot create the pool's objects."""


@dataclass(frozen=True)
class RunObservation:
    """State of a run and of related objects, read at the beginning of a reconcile."""

    run: Obj
    tenancy_problem: Problem | None = None
    """Reason why the operator does nothing in the run's namespace. If set, only the run has been read."""
    children: tuple[Obj, ...] = ()
    """ReplicaSets, Jobs, Services, NetworkPolicies, ConfigMap, Secret and ServiceAccount with the run's name."""
    pods: tuple[Pod, ...] = ()
    pod_events: Mapping[str, PodEvent] = field(default_factory=dict)
    """Newest Event of each pod that has a node but no container, and of each Job that lacks pods, by uid."""
    lost_nodes: frozenset[str] = frozenset()
    """Names of lost nodes, which cannot terminate the run's pods that are evicted from them."""
    catalog: ArtifactCatalog = field(default_factory=ArtifactCatalog)
    """Checkpoints and adapters of this run (matched by uid)."""
    artifacts_problem: Problem | None = None
    """Error of the S3 listing."""

    pool: ObservedPool | None = None
    """Shared pool of the attempt, or None if the status names none or the run has ended."""
    is_trainer_writing: bool = False
    """True if the trainer of the pool in the status may still write to the run's folder."""
    client: ClientActivity | None = None
    """State of the session of a run with `driver: Client`. None if it is unknown, or the run has no session."""
    models: tuple[Obj, ...] = ()
    """All RLModels. Read only until the attempt has its configuration, and while its shared pool lacks a Deployment."""
    warm_start: Obj | None = None
    """The RLCheckpoint that spec.checkpointId names, if it exists."""
    secrets: Mapping[str, ObservedSecret] = field(default_factory=dict)
    """Existing Secrets that spec.envFrom or variables of the RLModel refer to, by name."""
    weights: ObservedWeights = field(default_factory=ObservedWeights)
    """Weights cache of the model in the run's namespace. Observed only until the attempt has its configuration."""
    s3_variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """AWS_* variables of the operator's S3 client, empty if the platform's Secret is missing."""
    token_key: bytes | None = field(default=None, repr=False)
    """Key from which the tokens of runs are derived. If None, the processes of runs require no tokens."""
    storage_key: bytes = field(default=b"", repr=False)
    """Key that signs the grants for rlrun-server."""
    s3_problem: Problem | None = None
    """Reason why runs currently cannot use S3."""
    egress_key: bytes | None = field(default=None, repr=False)
    """Key that signs grants for the egress proxy. Read only for runs whose environments list hosts."""
    egress_problem: Problem | None = None
    """Reason why `egress_key` is None for a run whose environments list hosts."""
    egress_hosts: tuple[str, ...] = ()
    """Hosts that the annotation of the run's namespace allows."""
    warm_start_digest: str | Problem | None = None
    """Digest of the manifest of the checkpoint in spec.checkpointId, or the reason why the checkpoint's files cannot be
    used. None if the manifest was not read.
    """

    priority: int = 0
    """Value of the run's PriorityClass, or 0 if no queue needs the value."""
    admission: Admission | None = None
    """Answer from the queue. None if no queue applies to the run or it needs no slot."""

    kueue: KueueObservation | None = None
    """State of the run's Workloads. None if the run is not queued by Kueue or has released its quota."""

    poll: RunStatus | None = None
    """Status from the orchestrator. None if it was not requested or the request failed."""
    poll_error: Problem | None = None
    """Reason why the latest status request to the orchestrator failed."""
    silent_seconds: float = 0.0
    """Seconds for which no request to the orchestrator has succeeded."""
    is_watched: bool = False
    """True if every change of the orchestrator's status, including the first response, causes a reconcile or a progress
    update. For a run with `driver: Client`, changes of its session cause a reconcile.
    """
    is_cached: bool = False
    """True if a part of the observation was not read in this reconcile and may be stale."""

    @cached_property
    def status(self) -> RLRunStatus:
        """Stored status of the run."""
        return RLRunStatus.parse(self.run.get("status"))

    def new_status(self) -> RLRunStatus:
        """Return the stored status with `observed_generation` set to the generation of the spec."""
        return self.status.model_copy(update={"observed_generation": self.generation})

    @property
    def generation(self) -> int:
        """Generation of the spec."""
        return int(self.run["metadata"].get("generation") or 0)

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.run["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the run."""
        return str(self.run["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        """UID of the run."""
        return str(self.run["metadata"]["uid"])

    def owned_children(self, *kinds: str, attempt: int | None = None) -> list[Obj]:
        """Return the children with this run's uid. If `kinds` or `attempt` is omitted, children of all kinds or
        attempts are returned.
        """
        owned = [c for c in self.children if label(c, RUN_UID_LABEL) == self.uid and (not kinds or c["kind"] in kinds)]
        return owned if attempt is None else [c for c in owned if attempt_of(c) == attempt]

    def pod_controllers(self, attempt: int | None = None) -> list[Obj]:
        """Return the children of this run, or of one attempt, that create pods."""
        return self.owned_children(*POD_CONTROLLERS, attempt=attempt)

    def has_workloads(self, attempt: int) -> bool:
        """Return whether the attempt has a pod, or a child that creates pods."""
        return bool(self.pod_controllers(attempt) or self.pods_of(attempt))

    def has_object(self, kind: str, name: str) -> bool:
        """Return whether the run already has this child or artifact."""
        owned = (*self.owned_children(kind), *self.catalog.objects)
        return any(o["kind"] == kind and o["metadata"]["name"] == name for o in owned)

    def identity(self, attempt: int) -> RunIdentity:
        """Return the identity of the children of one attempt."""
        return RunIdentity(self.namespace, self.name, self.uid, attempt, self.generation)

    @cached_property
    def own_pods(self) -> list[Pod]:
        """Pods of all attempts of this run."""
        return [p for p in self.pods if p.run_uid == self.uid]

    def pods_of(self, attempt: int) -> list[Pod]:
        """Return the pods of one attempt of this run."""
        return [p for p in self.own_pods if p.attempt == attempt]


@dataclass(frozen=True, order=True)
class RunKey:
    """Namespace and name of a run."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"run {self.namespace}/{self.name}"
