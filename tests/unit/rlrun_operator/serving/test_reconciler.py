"""Which shared pools the controller reconciles."""

import asyncio
from typing import Any

import pytest
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj
from rlrun_operator.cluster.informers import CachedRun, convert
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.observer import Observer
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.serving.reconciler import ServingController, key_of

from tests.support.clocks import Clock
from tests.support.cluster_objects import run_object
from tests.support.fake_artifacts import FakeArtifacts
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_poller import FakePoller
from tests.support.informer_feed import InformerFeed
from tests.support.operator_world import SETTINGS

KEY = b"k" * 32
POOL = PoolIdentity("team", "tiny/model", "0123abcd")
OTHER = PoolIdentity("team", "tiny/model", "11111111")


def run(name: str = "a", phase: str = "Running", pool: PoolIdentity | None = POOL, **status: Any) -> Obj:
    status |= {"phase": phase} | ({"pool": {"name": pool.name}} if pool else {})
    return run_object(name, uid=f"uid-{name}") | {"status": status}


def cached(obj: Obj) -> CachedRun:
    found = convert(RLRUN, obj)
    assert isinstance(found, CachedRun)
    return found


def controller(objects: RunObjects) -> ServingController:
    observer = Observer(objects, FakeArtifacts(), FakePoller(), SETTINGS)
    return ServingController(objects, observer, SETTINGS, KEY, Clock())


def taken(pools: ServingController) -> list[PoolIdentity]:
    """The queued pools."""
    found: list[PoolIdentity] = []
    while (key := pools._queue._take()) is not None:
        pools._queue.finish(key)
        found.append(key)
    return sorted(found)


async def test_a_pool_is_reconciled_when_a_run_joins_or_leaves_it_and_not_with_each_step() -> None:
    pools = controller(RunObjects(FakeCluster()))
    pools.on_run(cached(run(phase="Pending")))
    assert taken(pools) == [POOL]
    pools.on_run(cached(run(phase="Pending")))
    assert taken(pools) == []
    admitted = {"admittedTime": "2026-01-01T00:00:00Z"}
    pools.on_run(cached(run(phase="Pending", queue=admitted)))
    assert taken(pools) == [POOL], "its slot is new"
    pools.on_run(cached(run(phase="Pending", pool=OTHER, queue=admitted)))
    assert taken(pools) == [POOL, OTHER], "the old one as well"
    pools.on_run(cached(run(phase="Completed", pool=OTHER, queue=admitted)))
    pools.on_run(cached(run(phase="Completed", pool=OTHER, queue=admitted)))
    assert taken(pools) == [OTHER]
    pools.on_run(cached(run(phase="Completed", pool=OTHER)))
    assert taken(pools) == [OTHER], "its pods have ended"
    pools.on_run(cached(run(phase="Completed", pool=OTHER)))
    assert taken(pools) == []
    pools.on_run(cached(run("b")))
    pools.on_run(cached(run("b")), is_deleted=True)
    assert taken(pools) == [POOL]
    pools.on_run(cached(run("c", pool=None)))
    assert taken(pools) == []
    await pools.close()


async def test_the_pool_of_an_unfinished_run_is_reconciled_on_request() -> None:
    pools = controller(RunObjects(FakeCluster()))
    for obj in (run(), run("b", "Completed", OTHER), run("c", pool=None)):
        pools.queue_pool_of(cached(obj))
    assert taken(pools) == [POOL]
    await pools.close()


@pytest.mark.parametrize("has_informers", [False, True])
async def test_pools_are_found_from_runs_and_from_their_objects(has_informers: bool) -> None:
    account: Obj = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {
            "name": OTHER.name,
            "namespace": "team",
            "uid": "account",
            "labels": OTHER.labels(),
            "annotations": {"rlrun.dev/model": "tiny/model"},
        },
    }
    assert key_of(account) == OTHER
    third = PoolIdentity("team", "tiny/model", "33333333")
    ending = run("ending", "Failed", third, queue={"admittedTime": "2026-01-01T00:00:00Z"})
    cluster = FakeCluster(run(), run("done", "Failed", PoolIdentity("team", "tiny/model", "22222222")), ending, account)
    objects = RunObjects(cluster, InformerFeed(cluster).informers if has_informers else None)
    assert [r["metadata"]["name"] for r in await objects.runs_of_pool("team", POOL.name)] == ["a"]
    assert await objects.runs_of_pool("other", POOL.name) == []
    assert [r["metadata"]["name"] for r in await objects.runs_of_pool("team", third.name)] == ["ending"]
    pools = controller(objects)
    resync = asyncio.create_task(pools._resync())
    await asyncio.sleep(0.05)
    resync.cancel()
    assert taken(pools) == [POOL, OTHER, third]
    await pools.close()
