"""Pools in a cluster in memory: sidecars that load what they are told, and adapters to deploy."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import AdapterReport, DesiredAdapters, LoadState, ServingReport
from rlrun.service.errors import ServiceUnavailable
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.observer import Observer
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.reconciler import PoolReconciler
from rlrun_operator.serving.sidecar_client import PoolSidecarClient

from tests.support.clocks import Clock
from tests.support.cluster_objects import STORAGE_KEY
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import SETTINGS

Obj = dict[str, Any]
KEY = PoolIdentity("team", "tiny/model")
TOKEN_KEY = b"k" * 32


def adapter_object(name: str = "one", *, deployed: bool = True, **more: Any) -> Obj:
    """An adapter of a run of its own."""
    return {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLAdapter",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}"},
        "spec": {
            "runName": "reverse",
            "runUid": f"run-{name}",
            "model": "tiny/model",
            "step": 10,
            "uri": f"s3://rlrun/team/run-{name}/adapters/step-000010",
            "deployed": deployed,
        },
        "status": {"phase": "Ready", "sizeBytes": 5, "deploymentState": "NotDeployed"},
        **more,
    }


class MemorySidecars(PoolSidecarClient):
    """A sidecar for every pod: it starts from the ConfigMap, and loads at once what is not said to fail."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.orders: dict[str, DesiredAdapters] = {}
        self.problems: dict[str, Problem] = {}
        self.slow: set[str] = set()
        self.stuck: set[str] = set()
        """Adapters that the engine does not let go of."""
        self.silent = False
        self.told: list[DesiredAdapters] = []
        self.left: dict[str, set[str]] = {}

    async def fetch_report(self, pod: Obj) -> ServingReport:
        if self.silent:
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))
        name = pod["metadata"]["name"]
        if name not in self.orders:
            (order,) = (o for o in self.cluster.all("ConfigMap") if o["metadata"]["name"].endswith("-order"))
            self.orders[name] = DesiredAdapters.model_validate_json(order["data"]["order.json"])
        order = self.orders[name]
        found = [self._one(a.name) for a in order.adapters]
        leaving = self.left.get(name, set()) & self.stuck
        problem = Problem(reason="AdapterUnloadRejected", message="no")
        found += [AdapterReport(name=n, state=LoadState.unloading, problem=problem) for n in sorted(leaving)]
        return ServingReport(order=order, adapters=found)

    async def push_desired(self, pod: Obj, order: DesiredAdapters) -> ServingReport:
        if self.silent:
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))
        self.told.append(order)
        name = pod["metadata"]["name"]
        self.left[name] = {a.name for a in self.orders[name].adapters} - {a.name for a in order.adapters}
        self.orders[name] = order
        return await self.fetch_report(pod)

    def _one(self, name: str) -> AdapterReport:
        if name in self.problems:
            return AdapterReport(name=name, state=LoadState.failed, problem=self.problems[name])
        return AdapterReport(name=name, state=LoadState.loading if name in self.slow else LoadState.loaded)


@dataclass
class Pools:
    """A cluster with a catalogue, credentials, and the operator's pools."""

    cluster: FakeCluster
    sidecars: MemorySidecars
    clock: Clock = field(default_factory=Clock)
    settings: OperatorSettings = field(default_factory=lambda: SETTINGS)
    tenancy_problem: TenancyProblem = no_problem
    feed: InformerFeed | None = None
    """Informers that are told of all changes before each reconcile. None: everything is read each time."""

    def follow(self) -> None:
        """Let operators follow the cluster with informers."""
        self.feed = InformerFeed(self.cluster)

    async def reconcile(self, times: int = 1, key: PoolIdentity = KEY) -> float | None:
        again = None
        for _ in range(times):
            # A new operator each time: nothing is remembered from one to the next.
            if self.feed is not None:
                self.feed.deliver()
            objects = RunObjects(self.cluster, None if self.feed is None else self.feed.informers)
            observer = Observer(objects, FakeArtifacts(), FakePoller(), self.settings, storage_key=STORAGE_KEY)
            pools = PoolReconciler(
                objects, observer, self.sidecars, self.settings, TOKEN_KEY, self.clock, self.tenancy_problem
            )
            again = await pools.reconcile(key)
        return again

    async def put(self, obj: Obj, times: int = 1) -> float | None:
        """Somebody else writes an object, and the operator reconciles."""
        self.cluster.put(obj)
        return await self.reconcile(times)

    async def reach(self, times: int = 1) -> str:
        """The state of the first adapter after so many reconciles."""
        await self.reconcile(times)
        return self.state()

    def start_pods(self, *, ready: bool = True) -> None:
        step_kubelet(self.cluster, ready=ready)
        for i, pod in enumerate(self.cluster.all("Pod")):
            pod["status"]["podIP"] = f"10.0.0.{i}"

    def status(self, name: str = "one") -> Mapping[str, Any]:
        return dict(self.cluster.held("RLAdapter", name)["status"])

    def state(self, name: str = "one") -> str:
        return str(self.status(name)["deploymentState"])

    def change(self, name: str = "one", **spec: Any) -> None:
        found = self.cluster.held("RLAdapter", name)
        self.cluster.put({**found, "spec": {**found["spec"], **spec}})

    @property
    def objects(self) -> list[str]:
        kinds = ("Deployment", "Service", "NetworkPolicy", "ConfigMap", "ServiceAccount", "Secret")
        return [o["kind"] for o in self.cluster.all(*kinds) if o["metadata"]["namespace"] == "team"]

    async def deploy(self, *adapters: Obj) -> None:
        """As far as all of them being served."""
        for adapter in adapters:
            self.cluster.put(adapter)
        await self.reconcile()
        self.start_pods()
        await self.reconcile()
