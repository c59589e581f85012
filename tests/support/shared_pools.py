"""Runs that share a pool, on a cluster in memory: the operator reconciles runs and pools, whose pods take orders."""

import base64
import json
from typing import Any

from rlrun.constants import ROLE_LABEL, SERVING_LABEL
from rlrun.kube.objects import Obj, label
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity, PoolOrder, TrainerOrder, TrainerSessions
from rlrun.service.errors import ServiceUnavailable
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.observer import Observer
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import pool_named
from rlrun_operator.serving.observation import PoolObservation
from rlrun_operator.serving.observer import PoolObserver
from rlrun_operator.serving.pool_usage import PoolUsageRecorder
from rlrun_operator.serving.reconciler import PoolReconciler, key_of
from rlrun_operator.serving.sidecar_client import PoolSidecarClient
from rlrun_operator.storage.usage_log import UsageLog
from typing_extensions import override

from tests.support.cluster_objects import STORAGE_KEY, model_object
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_poller import FakePoller
from tests.support.operator_world import USAGE_ROOT
from tests.support.queued_runs import QueuedRuns

TOKEN_KEY = b"k" * 32
SHARING: Obj = {"mode": "Namespace", "maxRuns": 2}
MODEL = "tiny/model"


def shared_model(model_id: str = MODEL, *, sharing: Obj | None = None, **spec: Any) -> Obj:
    return model_object(model_id, sharing={**SHARING, **(sharing or {})}, **spec)


class OrderedSidecars(PoolSidecarClient):
    """A sidecar or trainer for every pod, which takes each order."""

    def __init__(self) -> None:
        self.orders: dict[str, PoolOrder] = {}
        """Newest order by pod of an engine."""
        self.trainers: dict[str, TrainerOrder] = {}
        """Newest order by pod of a trainer."""
        self.sessions: list[str] = []
        """Uids of the runs whose sessions each trainer lists."""
        self.clients: list[ClientActivity] = []
        """Sessions of clients' programs. Each trainer lists those of the runs in its order."""
        self.is_silent = False

    @override
    async def push_order(self, pod: Obj, order: PoolOrder) -> None:
        self._answer()
        self.orders[pod["metadata"]["name"]] = PoolOrder.model_validate_json(order.model_dump_json(by_alias=True))

    @override
    async def push_trainer_order(self, pod: Obj, order: TrainerOrder) -> TrainerSessions:
        self._answer()
        self.trainers[pod["metadata"]["name"]] = TrainerOrder.model_validate_json(order.model_dump_json(by_alias=True))
        ordered = {run.uid for run in order.runs if run.client is not None}
        return TrainerSessions(
            sessions=self.sessions, clients=[session for session in self.clients if session.uid in ordered]
        )

    def _answer(self) -> None:
        if self.is_silent:
            raise ServiceUnavailable(Problem(reason="Unreachable", message="nobody answers"))


class SharedRuns(QueuedRuns):
    """Runs of one namespace whose RLModel shares engines, and the operator's pools."""

    def __init__(self, *, model: Obj | None = None, **queue: Any) -> None:
        super().__init__(model=model or shared_model(), token_key=TOKEN_KEY, **queue)
        self.sidecars = OrderedSidecars()
        self.artifacts = FakeArtifacts()
        self.awaited: dict[str, float] = {}
        """Seconds until the reconcile of each run whose session has changed, since the last look at a pool."""

    def pool_keys(self) -> set[PoolIdentity]:
        """The pools that runs name, or that have objects."""
        named = {
            pool_named("team", run["spec"]["model"], run["status"]["pool"]["name"])
            for run in self.cluster.all("RLRun")
            if (run.get("status") or {}).get("pool")
        }
        found = map(key_of, self.cluster.all("ServiceAccount", "Deployment"))
        return named | {key for key in found if key is not None}

    async def reconcile_pools(self) -> float | None:
        """One reconcile of each pool, by an operator that remembers nothing."""
        again = None
        self.awaited.clear()
        for key in sorted(self.pool_keys()):
            feed = self.world.feed
            objects = RunObjects(self.cluster, None if feed is None else feed.informers)
            settings = self.world.settings
            observer = Observer(objects, self.artifacts, FakePoller(), settings, storage_key=STORAGE_KEY)
            usage = PoolUsageRecorder(UsageLog(self.artifacts, USAGE_ROOT, "rlrun-system.rlrun"), observer.s3_variables)
            again = await PoolReconciler(
                objects,
                observer,
                self.sidecars,
                settings,
                TOKEN_KEY,
                self.clock,
                self.world.tenancy_problem,
                usage,
                problems=self.world.pool_problems,
                trainers=self.world.pool_trainers,
                wake=lambda run, seconds: self.awaited.update({run.name: seconds}),
            ).reconcile(key)
        return again

    async def observe_pool(self, *, is_fresh: bool = False) -> PoolObservation:
        """What the operator observes of the only pool."""
        feed, settings = self.world.feed, self.world.settings
        objects = RunObjects(self.cluster, None if feed is None else feed.informers)
        credentials = Observer(objects, self.artifacts, FakePoller(), settings, storage_key=STORAGE_KEY)
        (key,) = self.pool_keys()
        observer = PoolObserver(objects, credentials, self.sidecars, settings, TOKEN_KEY)
        return await observer.observe_shared(key, is_fresh=is_fresh)

    @override
    async def settle(self, rounds: int = 12, *, after: float = 0.0) -> None:
        """Reconciles runs and pools until nothing is written any more."""
        self.clock.advance(after)
        for _ in range(rounds):
            before = self.cluster.writes
            if self.world.feed is not None:
                self.world.feed.deliver()
            await super().settle(rounds)
            await self.reconcile_pools()
            if self.cluster.writes == before:
                return
        raise AssertionError("the operator writes for ever")

    async def start(self, *names: str, **spec: Any) -> None:
        """The runs are created, and all pods are ready."""
        await self.arrive(*names, **spec)
        for _ in range(2):
            # A run's pods follow those of its pool.
            self.start_pods()
            await self.settle()

    @override
    def start_pods(self, *, ready: bool = True) -> None:
        super().start_pods()
        for i, pod in enumerate(self.pool_pods()):
            pod["status"] |= {"podIP": f"10.0.0.{i}"}
            pod["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": str(ready)},
            ]
            self.cluster.put(pod)

    def pool_of(self, name: str) -> str | None:
        """Name of the run's pool."""
        pool = self.status(name).get("pool")
        return None if pool is None else str(pool["name"])

    def pool_pods(self, role: str = "") -> list[Obj]:
        """The pods of all pools, or those of a role."""
        pods = [pod for pod in self.cluster.all("Pod") if SERVING_LABEL in pod["metadata"]["labels"]]
        return [pod for pod in pods if role in ("", label(pod, ROLE_LABEL))]

    def engine(self) -> Obj:
        """The pod of the only engine."""
        (pod,) = self.pool_pods("inference")
        return pod

    def trainer(self) -> Obj:
        """The pod of the only trainer."""
        (pod,) = self.pool_pods("trainer")
        return pod

    def pool_objects(self, name: str) -> list[str]:
        """Kinds of the objects of a pool."""
        kinds = ("Deployment", "NetworkPolicy", "Secret", "Service", "ServiceAccount")
        owned = [o for o in self.cluster.all(*kinds) if o["metadata"].get("labels", {}).get(SERVING_LABEL) == name]
        return sorted(str(o["kind"]) for o in owned)

    def order(self, name: str) -> PoolOrder:
        """The order of the engines in the Secret of a pool."""
        data = self.cluster.held("Secret", f"{name}-rlrun-token")["data"]
        return PoolOrder.model_validate_json(base64.b64decode(data["pool-order.json"]))

    def trainer_order(self, name: str) -> TrainerOrder:
        """The order of the trainer in the Secret of a pool."""
        data = self.cluster.held("Secret", f"{name}-rlrun-token")["data"]
        return TrainerOrder.model_validate_json(base64.b64decode(data["trainer-order.json"]))

    def config(self, name: str) -> Obj:
        """The configuration of a run's attempt."""
        return dict(json.loads(self.cluster.held("ConfigMap", f"{name}-config")["data"]["run.json"]))

    def condition(self, name: str, kind: str) -> Obj:
        return next(dict(c) for c in self.status(name)["conditions"] if c["type"] == kind)

    def change_model(self, **spec: Any) -> None:
        """The platform team changes the RLModel."""
        model = self.cluster.held("RLModel", "tiny-model", "")
        self.cluster.put({**model, "spec": {**model["spec"], **spec}})
