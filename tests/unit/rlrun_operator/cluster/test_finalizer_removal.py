"""Runs after an uninstallation: none keeps a finalizer that nobody would take off."""

import asyncio
import logging
from typing import Any

import pytest
from rlrun.constants import FINALIZER
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun_operator.cluster.finalizer_removal import IDENTITY, RemovalError, remove_finalizers
from rlrun_operator.runtime.leader_election import DURATION_SECONDS, LeaderElection, LeaseLost

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster


def run(name: str, namespace: str = "team", *finalizers: str) -> Obj:
    found = run_object(name, namespace, f"uid-{name}", artifactPolicy="Delete")
    found["metadata"]["finalizers"] = list(finalizers)
    return found


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(cluster: FakeCluster, identity: str = IDENTITY, clock: Time | None = None, **more: Any) -> LeaderElection:
    return LeaderElection(cluster.kube, "system", "lease", identity, retry=0.001, clock=clock or Time(), **more)


def finalizers(cluster: FakeCluster) -> dict[str, list[str]]:
    return {o["metadata"]["name"]: o["metadata"]["finalizers"] for o in cluster.all("RLRun")}


async def test_runs_lose_the_finalizer_of_the_operator_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(
        run("first", "team", FINALIZER), run("second", "other", "a/b", FINALIZER), run("third", "team", "a/b")
    )
    with caplog.at_level(logging.INFO):
        assert await remove_finalizers(cluster.kube, lease(cluster), "bucket", "prefix") == 2
    assert finalizers(cluster) == {"first": [], "second": ["a/b"], "third": ["a/b"]}
    assert (
        "Run team/first: finalizer removed; its files are kept at s3://bucket/prefix/team/uid-first"
    ) in caplog.messages
    before = cluster.writes
    assert await remove_finalizers(cluster.kube, lease(cluster), "bucket") == 0
    assert cluster.writes == before + 1, "the Lease alone is written by a second Job"


async def test_a_run_that_waits_for_its_finalizer_is_gone_at_once() -> None:
    cluster = FakeCluster(run("first", "team", FINALIZER))
    cluster.request_deletion(cluster.all("RLRun")[0], START)
    assert cluster.all("RLRun")
    assert await remove_finalizers(cluster.kube, lease(cluster), "bucket") == 1
    assert cluster.all("RLRun") == []


async def test_runs_of_namespaces_that_the_operator_did_not_serve_are_not_changed() -> None:
    cluster = FakeCluster(run("first", "team", FINALIZER), run("second", "other", FINALIZER))
    assert await remove_finalizers(cluster.kube, lease(cluster), "bucket", namespaces=["other"]) == 1
    assert finalizers(cluster) == {"first": [FINALIZER], "second": []}


async def test_nothing_is_changed_while_an_operator_holds_the_lease() -> None:
    cluster, clock = FakeCluster(run("first", "team", FINALIZER)), Time()
    await lease(cluster, "operator", clock).acquire()
    with pytest.raises(RemovalError, match="an operator may still be running"):
        await remove_finalizers(cluster.kube, lease(cluster, clock=clock), "bucket", wait=0.05)
    assert finalizers(cluster) == {"first": [FINALIZER]}


async def test_an_operator_that_was_killed_is_waited_for_until_its_lease_expires() -> None:
    cluster, clock = FakeCluster(run("first", "team", FINALIZER)), Time()
    await lease(cluster, "operator", clock).acquire()
    removing = asyncio.create_task(remove_finalizers(cluster.kube, lease(cluster, clock=clock), "bucket"))
    async with asyncio.timeout(60):
        while len([r for r in cluster.requests if r.kind.kind == "Lease"]) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert finalizers(cluster) == {"first": [FINALIZER]}
    clock.now += DURATION_SECONDS
    assert await removing == 1


async def test_no_operator_takes_over_after_the_job() -> None:
    cluster, clock = FakeCluster(run("first", "team", FINALIZER)), Time()
    await remove_finalizers(cluster.kube, lease(cluster, clock=clock), "bucket")
    standby = lease(cluster, "standby", clock)
    assert not await standby._try()


async def test_removal_ends_when_an_operator_takes_the_lease() -> None:
    cluster, clock = FakeCluster(run("first", "team", FINALIZER)), Time()
    mine = lease(cluster, clock=clock, duration=0.0)

    async def answer_never(_: object) -> Obj:
        cluster.held("Lease", "lease", "system")["spec"]["holderIdentity"] = "another"
        await asyncio.sleep(3600)
        return {}

    cluster.patch = answer_never  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(remove_finalizers(cluster.kube, mine, "bucket"), 60)


async def test_a_run_that_changes_meanwhile_is_looked_at_again() -> None:
    cluster = FakeCluster(run("first", "team", FINALIZER))
    conflict, patch = ApiError(409, "Conflict", "changed"), cluster.patch

    async def fail_once(_: object) -> Obj:
        cluster.patch = patch  # type: ignore[method-assign]
        raise conflict

    cluster.patch = fail_once  # type: ignore[method-assign]
    assert await remove_finalizers(cluster.kube, lease(cluster), "bucket") == 1
    assert finalizers(cluster) == {"first": []}


async def test_a_run_that_cannot_be_changed_is_named_and_keeps_no_other_from_it() -> None:
    cluster = FakeCluster(run("first", "team", FINALIZER), run("second", "team", FINALIZER))
    patch = cluster.patch

    async def refuse_first(request: Any) -> Obj:
        if request.name == "first":
            raise ApiError(422, "Invalid", "a webhook says no")
        return await patch(request)

    cluster.patch = refuse_first  # type: ignore[method-assign]
    with pytest.raises(RemovalError, match=r"The finalizer rlrun\.dev/artifacts .* from 1 run, .*: team/first"):
        await remove_finalizers(cluster.kube, lease(cluster), "bucket")
    assert finalizers(cluster) == {"first": [FINALIZER], "second": []}


async def test_without_the_kinds_there_is_nothing_to_do() -> None:
    cluster = FakeCluster()
    cluster.answers["list rlruns"] = [ApiError(404, "NotFound", "the server could not find the requested resource")]
    assert await remove_finalizers(cluster.kube, lease(cluster), "bucket") == 0
