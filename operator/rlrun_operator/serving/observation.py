"""Inputs and outputs of the pool planners, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.kube.pods import Pod
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import DesiredAdapters, ServingReport
from rlrun.protocol.trainer import SessionSpec

from rlrun_operator.resources.access.observed_secret import ObservedSecret
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import PoolOrders
from rlrun_operator.resources.weights_cache import ObservedWeights


@dataclass(frozen=True)
class PoolObservation:
    """State of a pool and related objects, read at the beginning of a reconcile."""

    key: PoolIdentity
    """Identity of the pool, which may not exist."""
    adapters: tuple[Obj, ...] = ()
    """RLAdapters of the namespace that were trained from the model. Empty for a shared pool."""
    runs: tuple[Obj, ...] = ()
    """Runs whose status names the shared pool and that are unfinished or have a slot."""
    token_key: bytes = field(default=b"", repr=False)
    """Key from which the tokens of runs are derived."""
    warm_starts: Mapping[str, str] = field(default_factory=dict)
    """URI of the checkpoint from which a run's attempt starts, by the run's uid. From configurations that the operator
    signed.
    """
    clients: Mapping[str, SessionSpec] = field(default_factory=dict)
    """Specification of the session of each run with `driver: Client`, by the run's uid. From configurations that the
    operator signed.
    """
    models: tuple[Obj, ...] = ()
    """All RLModels."""
    children: tuple[Obj, ...] = ()
    """Deployment, Service, NetworkPolicy, ConfigMap, Secret and ServiceAccount with the pool's label."""
    pods: tuple[Pod, ...] = ()
    reports: Mapping[str, ServingReport] = field(default_factory=dict)
    """Reports of the sidecars by pod name. Sidecars that did not respond are missing."""
    token: str = field(default="", repr=False)
    """Token of the pool, which its sidecars and the operator have."""
    api_key: str = field(default="", repr=False)
    """Key of the pool's users, from its Secret or newly generated."""
    s3_problem: Problem | None = None
    """Reason why S3 cannot be used, or None."""
    storage_key: bytes = field(default=b"", repr=False)
    """Key that signs the grants for rlrun-server."""
    model_secrets: Mapping[str, ObservedSecret] = field(default_factory=dict)
    """Existing Secrets that the variables of the pool's RLModel refer to."""
    weights: ObservedWeights = field(default_factory=ObservedWeights)
    """Weights cache of the base model in the pool's namespace."""


@dataclass(frozen=True)
class PoolPlan:
    """Actions of one reconcile, in order. Every step is idempotent; the next reconcile continues after a crash."""

    deletes: tuple[ObjectRef, ...] = ()
    applies: tuple[Obj, ...] = ()
    new: frozenset[tuple[str, str]] = frozenset()
    """Kinds and names of objects in `applies` that do not exist yet."""
    desired: DesiredAdapters | None = None
    orders: PoolOrders | None = None
    """Lists of runs for a shared pool's processes."""
    recipients: tuple[Obj, ...] = ()
    """Pods to which the desired adapters or the lists of runs are sent."""
    problem: Problem | None = None
    """Reason why the objects of a shared pool cannot be created, or None."""
    statuses: tuple[Obj, ...] = ()
    """RLAdapters to write, each with the deployment fields of its status."""
    events: tuple[tuple[Obj, EventRecord], ...] = ()
    """Events to write, each with its RLAdapter."""
    requeue_after: float | None = None
    """Seconds until the next reconcile, or None to wait for an event."""
