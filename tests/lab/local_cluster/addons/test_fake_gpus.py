"""Commands that add fake GPUs to nodes and remove them."""

import json
from pathlib import Path
from typing import Any

import pytest

from local_cluster.addons.fake_gpus import LABELS, RESOURCE, TAINT, advertise
from local_cluster.addons.kubectl import LocalClusterKubectl


class RecordingKubectl(LocalClusterKubectl):
    """A kubectl of a cluster with two nodes that records what it is called with."""

    def __init__(self) -> None:
        super().__init__("kubectl", Path("kubeconfig"))
        self.calls: list[tuple[str, ...]]
        object.__setattr__(self, "calls", [])

    def __call__(self, *args: str, **_: Any) -> str:
        self.calls.append(args)
        return "node/a\nnode/b\n" if args[0] == "get" else ""

    def of(self, verb: str) -> list[tuple[str, ...]]:
        return [call for call in self.calls if call[0] == verb]


def test_each_node_advertises_gpus_with_labels_and_a_taint() -> None:
    kubectl = RecordingKubectl()
    advertise(kubectl, 8, tainted=True)
    assert [call[1] for call in kubectl.of("patch")] == ["node/a", "node/b"]
    patch = kubectl.of("patch")[0]
    assert "--subresource=status" in patch
    assert json.loads(patch[-1]) == {"status": {"capacity": {RESOURCE: "8"}}}
    assert {f"{key}={value}" for key, value in LABELS.items()} < set(kubectl.of("label")[0])
    assert [call[-1] for call in kubectl.of("taint")] == [TAINT, TAINT]


@pytest.mark.parametrize("gpus", [0, 8])
def test_without_a_taint_an_earlier_one_goes(gpus: int) -> None:
    kubectl = RecordingKubectl()
    advertise(kubectl, gpus)
    assert [call[-1] for call in kubectl.of("taint")] == [f"{RESOURCE}-", f"{RESOURCE}-"]


def test_zero_removes_gpus_and_labels() -> None:
    kubectl = RecordingKubectl()
    advertise(kubectl, 0)
    assert json.loads(kubectl.of("patch")[0][-1]) == {"status": {"capacity": {RESOURCE: None}}}
    assert {f"{key}-" for key in LABELS} < set(kubectl.of("label")[0])
