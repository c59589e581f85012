"""RuntimeClass of gVisor, and who offers it."""

import json
from pathlib import Path

import pytest

from local_cluster.addons.gvisor import RUNTIME_CLASS, install_gvisor_class
from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import Paths
from local_cluster.node.node_config import GVISOR_HANDLER
from local_cluster.providers.kind_cluster import KindCluster


def test_the_class_names_the_handler_of_containerd(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    monkeypatch.setattr(LocalClusterKubectl, "apply", lambda self, manifests: applied.append(manifests))
    install_gvisor_class(LocalClusterKubectl("kubectl", Path("kubeconfig")))
    (manifest,) = map(json.loads, applied)
    assert (manifest["metadata"]["name"], manifest["handler"]) == (RUNTIME_CLASS, GVISOR_HANDLER)


def test_kind_says_which_cluster_has_it(tmp_path: Path) -> None:
    with pytest.raises(LocalClusterError, match="RLRUN_CLUSTER=embedded"):
        KindCluster(Paths(state=tmp_path / "state", cache=tmp_path / "cache")).offer_gvisor()
