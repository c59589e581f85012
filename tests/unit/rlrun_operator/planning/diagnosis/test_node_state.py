"""Nodes whose kubelets end no pods."""

from typing import Any

import pytest
from rlrun_operator.planning.diagnosis.node_state import is_lost


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
