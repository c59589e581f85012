"""Runs, pools and namespaces that are gone take no memory of the operator, which runs for months."""

from collections import deque
from typing import Any

from rlrun.constants import Reason
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.config.settings import EgressSettings, SecretRef
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.observation import RunKey, TrainerReport
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.pool_usage import PoolUsageRecorder
from rlrun_operator.serving.reconciler import PoolReconciler
from rlrun_operator.storage.usage_log import UsageLog

from tests.support.cluster_objects import STORAGE_KEY, model_object, run_object, source_secret
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_kubelet import step_kubelet
from tests.support.fake_poller import FakePoller
from tests.support.operator_world import SETTINGS, USAGE_ROOT, World
from tests.support.serving_pools import TOKEN_KEY, MemorySidecars, Pools, adapter_object

EGRESS = EgressSettings(host="proxy", allowed=["a.org"], key_secret=SecretRef(namespace="rlrun-system", name="egress"))
NO_TENANT = Problem(reason=Reason.NAMESPACE_NOT_TENANT, message="the namespace is gone")


def entries(*roots: object) -> dict[str, int]:
    """Return the number of entries of each container in the objects of the operator that are reachable from `roots`,
    except empty ones.
    """
    found: dict[str, int] = {}
    seen, waiting = set[int](), [*roots]
    while waiting:
        obj = waiting.pop()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        for name, value in vars(obj).items():
            if isinstance(value, dict | set | list | deque):
                found[f"{type(obj).__name__}.{name}"] = len(value)
            elif type(value).__module__.startswith(("rlrun_operator.", "rlrun.kube.")) and hasattr(value, "__dict__"):
                waiting.append(value)
    return {name: count for name, count in found.items() if count}


def remove(cluster: FakeCluster, namespace: str) -> None:
    """Somebody deletes a namespace with all its objects."""
    for key in [key for key in cluster.objects if key[1] == namespace or key[0::2] == ("Namespace", namespace)]:
        del cluster.objects[key]


async def live(world: World, number: int) -> None:
    """A run starts in a namespace of its own, which is then deleted. Hours pass."""
    namespace, name = f"team-{number}", f"run-{number}"
    env = [{"id": "rlrun/reverse-text", "egress": ["a.org"]}]
    world.cluster.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    world.cluster.put(run_object(name, namespace, f"uid-{number}", env=env, priorityClassName=f"class-{number}"))
    for _ in range(3):
        await reconcile(world, namespace, name)
        step_kubelet(world.cluster)
    assert [job for job in world.cluster.all("Job") if job["metadata"]["namespace"] == namespace]
    remove(world.cluster, namespace)
    await reconcile(world, namespace, name)
    world.clock.advance(7200)
    world.looks += 3600


async def reconcile(world: World, namespace: str, name: str) -> None:
    assert world.feed is not None
    world.feed.deliver()
    world.looks += 1
    await world.reconciler().reconcile(RunKey(namespace, name))
    world.feed.deliver()


async def test_deleted_runs_and_namespaces_are_forgotten() -> None:
    metadata, data = {"name": "egress", "namespace": "rlrun-system"}, {"key": "a2V5" * 16}
    key: Obj = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}
    cluster = FakeCluster(model_object(), source_secret(), key)
    world = World(cluster, token_key=b"k" * 32)
    queue = SETTINGS.queue.model_copy(update={"capacity": {"nvidia.com/gpu": "8"}})
    world.settings = SETTINGS.model_copy(update={"egress": EGRESS, "priority_classes": ["*"], "queue": queue})
    world.follow()
    sizes = []
    for number in range(4):
        await live(world, number)
        sizes.append(entries(world.reconciler()))
    assert sizes[3] == sizes[1]


class Operator:
    """Serving pools and shared pools of one operator."""

    def __init__(self) -> None:
        cluster = FakeCluster(model_object(inference={"gpus": 2}), source_secret())
        self.pools = Pools(cluster, MemorySidecars(cluster))
        self.problem: Problem | None = None
        self.problems: dict[PoolIdentity, Problem] = {}
        self.trainers: dict[PoolIdentity, TrainerReport] = {}
        objects, artifacts = RunObjects(cluster, clock=lambda: self.pools.clock().timestamp()), FakeArtifacts()
        observer = Observer(objects, artifacts, FakePoller(), SETTINGS, storage_key=STORAGE_KEY)
        self.usage = PoolUsageRecorder(UsageLog(artifacts, USAGE_ROOT, "operator"), observer.s3_variables)
        given: dict[str, Any] = {"usage": self.usage, "problems": self.problems, "trainers": self.trainers}
        self.reconciler = PoolReconciler(
            objects,
            observer,
            self.pools.sidecars,
            SETTINGS,
            TOKEN_KEY,
            self.pools.clock,
            lambda _: self.problem,
            **given,
        )


async def test_pools_of_deleted_namespaces_are_forgotten() -> None:
    operator = Operator()
    cluster, clock = operator.pools.cluster, operator.pools.clock
    sizes = []
    for number in range(4):
        operator.problem, namespace = None, f"team-{number}"
        adapter = adapter_object()
        uri = f"s3://rlrun/{namespace}/run-one/adapters/step-000010"
        metadata = {**adapter["metadata"], "namespace": namespace}
        cluster.put({**adapter, "metadata": metadata, "spec": {**adapter["spec"], "uri": uri}})
        serving, shared = PoolIdentity(namespace, "tiny/model"), PoolIdentity(namespace, "tiny/model", "0123abcd")
        await operator.reconciler.reconcile(serving)
        await operator.reconciler.reconcile(serving)
        assert operator.usage.gpus[serving] == 2
        operator.problems[shared], operator.trainers[shared] = NO_TENANT, TrainerReport(None, clock())
        operator.problem = NO_TENANT
        remove(cluster, namespace)
        clock.advance(7200)
        for key in (serving, shared):
            await operator.reconciler.reconcile(key)
        sizes.append(entries(operator.reconciler))
    assert operator.usage.gpus == {}
    assert sizes[3] == sizes[1]
