"""Reads of the nodes of evicted pods."""

from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.pods import Pod
from rlrun_operator.controller.node_states import KEPT_SECONDS, NodeStates, is_lost

from tests.support.cluster_objects import pod
from tests.support.fake_cluster import FakeCluster

EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}


def evicted(node: str) -> Obj:
    """Return a pod that a taint evicts from a node."""
    found = pod("trainer", ready=False)
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found["spec"] = {**found.get("spec", {}), "nodeName": node}
    found["status"]["conditions"] = [EVICTED]
    return found


class Nodes:
    """Nodes of a cluster, of which those in `lost` do not exist, and their reader."""

    def __init__(self) -> None:
        metadata = {"name": "healthy"}
        ready = {"type": "Ready", "status": "True"}
        self.cluster = FakeCluster({"kind": "Node", "metadata": metadata, "status": {"conditions": [ready]}})
        self.now = 0.0
        self.states = NodeStates(self.cluster.kube, lambda: self.now)

    async def lost(self, *nodes: str, is_fresh: bool = False) -> frozenset[str]:
        return await self.states.find_lost(map(Pod, map(evicted, nodes)), is_fresh=is_fresh)


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


async def test_the_nodes_of_evicted_pods_are_read_once_for_all_runs(nodes: Nodes) -> None:
    for _ in range(3):
        assert await nodes.lost("healthy", "gone", "gone", "") == {"gone"}
    assert nodes.cluster.calls == ["get Node gone", "get Node healthy"]


async def test_other_pods_cost_no_read(nodes: Nodes) -> None:
    """Also an evicted pod that is not being deleted yet, and one that has ended."""
    early, ended = evicted("gone"), evicted("gone")
    del early["metadata"]["deletionTimestamp"]
    ended["status"]["phase"] = "Failed"
    assert await nodes.states.find_lost(map(Pod, [pod("trainer", ready=True), early, ended])) == frozenset()
    assert nodes.cluster.calls == []


@pytest.mark.parametrize(("seconds", "is_fresh"), [(KEPT_SECONDS, False), (0.0, True)], ids=["later", "a decision"])
async def test_a_state_is_read_again_before_a_decision_and_after_a_while(
    nodes: Nodes, seconds: float, is_fresh: bool
) -> None:
    assert await nodes.lost("gone") == {"gone"}
    nodes.cluster.put({"kind": "Node", "metadata": {"name": "gone"}, "status": {"conditions": []}})
    nodes.now = seconds / 2
    assert await nodes.lost("gone") == {"gone"}
    nodes.now = seconds
    assert await nodes.lost("gone", is_fresh=is_fresh) == frozenset()
    assert len(nodes.cluster.calls) == 2
    assert await nodes.lost("gone") == frozenset()
    assert len(nodes.cluster.calls) == 2


async def test_a_state_that_is_read_for_a_decision_keeps_no_older_one(nodes: Nodes) -> None:
    await nodes.lost("healthy")
    nodes.now = 1.0
    assert await nodes.lost("gone") == {"gone"}
    nodes.cluster.put({"kind": "Node", "metadata": {"name": "gone"}, "status": {"conditions": []}})
    nodes.now = KEPT_SECONDS - 1.0
    await nodes.lost("healthy", is_fresh=True)
    nodes.now = KEPT_SECONDS + 1.0
    assert await nodes.lost("gone") == frozenset()


async def test_a_node_that_may_not_be_read_is_not_lost(nodes: Nodes) -> None:
    nodes.cluster.answers["get Node gone"] = [ApiError(403, "Forbidden", "no rights")]
    assert await nodes.lost("gone") == frozenset()


async def test_states_that_are_not_used_any_more_are_not_kept(nodes: Nodes) -> None:
    for number in range(20):
        nodes.now = number * KEPT_SECONDS
        await nodes.lost(f"node-{number}")
    assert len(nodes.states._known) == 1


def node(condition: str, *taints: str) -> dict[str, Any]:
    return {
        "spec": {"taints": [{"key": key, "effect": "NoExecute"} for key in taints]},
        "status": {"conditions": [{"type": "Ready", "status": condition}, {"type": "DiskPressure", "status": "False"}]},
    }


@pytest.mark.parametrize(
    ("found", "lost"),
    [
        (None, True),
        (node("Unknown"), True),
        (node("False"), True),
        (node("True", "node.kubernetes.io/unreachable"), True),
        (node("True", "node.kubernetes.io/not-ready"), True),
        (node("True", "node.kubernetes.io/out-of-service"), True),
        (node("True"), False),
        (node("True", "example.com/upgrade", "node.kubernetes.io/unschedulable"), False),
        ({"metadata": {"name": "new"}}, False),
    ],
)
def test_a_node_is_lost_if_it_cannot_end_pods(found: dict[str, Any] | None, lost: bool) -> None:
    assert is_lost(found) is lost
