"""What a pool's reconcile looks at and what it decides, as plain values: the two ends of its pure plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rlrun.kube.events import EventRecord
from rlrun.kube.objects import Obj, ObjectRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import DesiredAdapters, ServingReport

from rlrun_operator.resources.serving_pool import PoolIdentity


@dataclass(frozen=True, order=True)
class PoolKey:
    """A pool by namespace and id of its base model; it may be a pool that does not exist, and should not."""

    namespace: str
    model: str

    def __str__(self) -> str:
        return f"pool {self.namespace}/{self.identity.name}"

    @property
    def identity(self) -> PoolIdentity:
        """Names and labels of its objects."""
        return PoolIdentity(self.namespace, self.model)


@dataclass(frozen=True)
class SeenPool:
    """One look at everything that concerns a pool."""

    key: PoolKey
    adapters: tuple[Obj, ...] = ()
    """All RLAdapters of the namespace that were trained from the model."""
    models: tuple[Obj, ...] = ()
    """The catalogue."""
    children: tuple[Obj, ...] = ()
    """Deployment, Service, NetworkPolicy, ConfigMap, Secret and ServiceAccount with the pool's label."""
    pods: tuple[Obj, ...] = ()
    reports: Mapping[str, ServingReport] = field(default_factory=dict)
    """What the sidecars say, by name of their pod; those that did not answer are missing."""
    s3_variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The AWS_* variables for the pods; empty when the platform's Secret is missing."""
    s3_problem: Problem | None = None
    """Why there are none."""


@dataclass(frozen=True)
class PoolPlan:
    """What to do, in this order. Every step may be repeated, and the next reconcile mends what a crash left undone."""

    deletes: tuple[ObjectRef, ...] = ()
    applies: tuple[Obj, ...] = ()
    order: DesiredAdapters | None = None
    recipients: tuple[Obj, ...] = ()
    """Pods whose sidecars have not had that order yet."""
    statuses: tuple[Obj, ...] = ()
    """RLAdapters with the deployment's part of their status."""
    events: tuple[tuple[Obj, EventRecord], ...] = ()
    """Events to be, each with its RLAdapter."""
    requeue_after: float | None = None
    """Seconds until somebody should look again even if nothing happens."""
