"""Operator with the built-in queue on a cluster in memory: several runs, several workers, restarts."""

import asyncio
import random
from typing import Any

from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun_operator.config.settings import QueueSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.observation import RunKey

from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.fake_cluster import Crash, FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.operator_world import SETTINGS, World

HOLD = "test/hold"
"""Finalizer of a pod that takes its time to end."""


class QueuedRuns:
    """Runs on one cluster, and the keys that the operator was asked to reconcile."""

    def __init__(self, *, model: Obj | None = None, token_key: bytes | None = None, **queue: Any) -> None:
        self.cluster = FakeCluster(model or model_object(), source_secret())
        self.world = World(self.cluster, token_key=token_key)
        self.clock = self.world.clock
        self.cluster.time = self.clock
        self.woken: list[RunKey] = []
        self.keys: set[RunKey] = set()
        self.restart(**queue)

    def restart(self, **queue: Any) -> None:
        """Another operator process, with these settings of the queue; it knows what a list of the runs tells."""
        settings = QueueSettings.model_validate(queue, by_alias=True, by_name=False)
        self.world.settings = SETTINGS.model_copy(update={"queue": settings, "priority_classes": ["*"]})
        self.woken = []
        is_needed = settings.is_limited or self.world.token_key is not None
        self.queue = AdmissionQueue(self.world.settings, self.woken.append) if is_needed else None
        if self.queue is not None:
            self.queue.load(self.cluster.all("RLRun"))
        self.world.queue = self.queue

    def add(self, *names: str, namespace: str = "team", **spec: Any) -> None:
        """Creates runs one second after the other."""
        for name in names:
            obj = run_object(name, namespace, f"uid-{namespace}-{name}", **spec)
            self.clock.advance(1)
            obj["metadata"]["creationTimestamp"] = self.clock.now.isoformat().replace("+00:00", "Z")
            self.cluster.put(obj)
            self.keys.add(RunKey(namespace, name))

    def reconciler(self) -> Reconciler:
        return self.world.reconciler()

    async def look(self, *names: str) -> float | None:
        """One reconcile of each run, one after the other."""
        again = None
        for name in names:
            again = await self.reconciler().reconcile(RunKey("team", name))
        return again

    async def look_at(self, *names: str) -> list[str]:
        """The phases after one reconcile of each run."""
        await self.look(*names)
        return self.phases(*names)

    async def arrive(self, *names: str, **spec: Any) -> None:
        """Runs are created, and everything settles."""
        self.add(*names, **spec)
        await self.settle()

    async def ask(self, name: str, **changes: Any) -> None:
        """The spec of a run is changed, and everything settles."""
        self.change(name, **changes)
        await self.settle()

    async def settle(self, rounds: int = 12, *, after: float = 0.0) -> None:
        """Reconciles all runs, then those that are woken, until nothing is written any more."""
        self.clock.advance(after)
        for _ in range(rounds):
            before = self.cluster.writes
            for key in sorted({*self.keys, *self.woken}):
                await self.reconciler().reconcile(key)
            self.woken.clear()
            if self.cluster.writes == before:
                return
        raise AssertionError("the operator writes for ever")

    async def wake_up(self) -> list[str]:
        """Reconciles the woken runs only, until none is woken any more. Returns their names in order."""
        names = []
        while self.woken:
            key = self.woken.pop(0)
            names.append(key.name)
            await self.reconciler().reconcile(key)
        return names

    def run(self, name: str, namespace: str = "team") -> Obj:
        return self.cluster.held("RLRun", name, namespace)

    def status(self, name: str, namespace: str = "team") -> Obj:
        return dict(self.run(name, namespace).get("status") or {})

    def place(self, name: str, namespace: str = "team") -> Obj:
        """The section of the status about the queue."""
        return dict(self.status(name, namespace).get("queue") or {})

    def phases(self, *names: str) -> list[str]:
        return [str(self.status(name).get("phase")) for name in names]

    def change(self, name: str, **changes: Any) -> None:
        run = self.run(name)
        metadata = {**run["metadata"], "generation": run["metadata"]["generation"] + 1}
        self.cluster.put({**run, "spec": {**run["spec"], **changes}, "metadata": metadata})

    def started(self) -> set[str]:
        """Names of the runs that have a workload or a pod."""
        found = self.cluster.all("ReplicaSet", "Job", "Pod")
        labels = (o["metadata"]["labels"] for o in found)
        return {str(names["rlrun.dev/run"]) for names in labels if "rlrun.dev/run" in names}

    def start_pods(self) -> None:
        step_kubelet(self.cluster)

    def hold_pods(self) -> None:
        """From now on existing pods take their time to end."""
        for pod in self.cluster.all("Pod"):
            pod["metadata"]["finalizers"] = [HOLD]
            self.cluster.put(pod)

    def end_pods(self) -> None:
        """The pods that were asked to end have ended."""
        for pod in self.cluster.all("Pod"):
            if pod["metadata"].get("deletionTimestamp"):
                del self.cluster.objects["Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]]


async def work_in_disorder(runs: QueuedRuns, chance: random.Random, *, workers: int, looks: int, faults: float) -> None:
    """Workers that reconcile runs at the same time, in an order of their own; requests fail with this probability."""
    send = runs.cluster.send

    async def slow(request: KubeRequest) -> Obj:
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        fault = chance.random()
        if fault < faults / 2:
            raise ApiError(500, "InternalError", "refused", action=str(request))
        answer = await send(request)
        if fault < faults:
            # The request has arrived, and its answer is lost.
            raise ApiError(0, "Timeout", "no answer", action=str(request))
        return answer

    busy: set[RunKey] = set()

    async def worker() -> None:
        for _ in range(looks):
            free = sorted({*runs.keys, *runs.woken} - busy)
            if not free:
                await asyncio.sleep(0)
                continue
            woken = [key for key in runs.woken if key not in busy]
            key = woken[0] if woken and chance.random() < 0.5 else chance.choice(free)
            runs.woken[:] = [other for other in runs.woken if other != key]
            busy.add(key)
            try:
                await runs.reconciler().reconcile(key)
            except (ApiError, Crash):
                pass
            finally:
                busy.discard(key)

    runs.cluster.send = slow  # type: ignore[method-assign]
    try:
        await asyncio.gather(*(worker() for _ in range(workers)))
    finally:
        runs.cluster.send = send  # type: ignore[method-assign]


def with_gpus(trainer: int, inference: int = 0, replicas: int = 1) -> Obj:
    """A model whose pods have these numbers of GPUs."""
    return model_object(trainer={"gpus": trainer}, inference={"gpus": inference, "replicas": replicas})
