import json
import tomllib
from pathlib import Path

import pytest
import yaml

from local_cluster.addons import object_store, workloads
from local_cluster.control_plane.pki import KeyPair
from local_cluster.host.network import DNS_SERVICE_ADDRESS
from local_cluster.host.paths import Paths, paths
from local_cluster.node import node_config
from local_cluster.providers.kind_cluster import _config as kind_config

PATHS = Paths(state=Path("/s"), cache=Path("/c"))
VALUES = {
    "coredns": {"COREDNS_IMAGE": "i", "DNS_ADDRESS": DNS_SERVICE_ADDRESS, "MANIFEST_HASH": "0e1"},
    "s3": {"WEED_IMAGE": "i", "S3_DATA": "/s/s3"},
}


def test_containerd_shares_nothing_with_another_containerd() -> None:
    config = tomllib.loads(node_config.containerd(PATHS, "pause:1"))
    assert config["grpc"]["address"] == "/s/containerd/containerd.sock"
    assert (config["root"], config["state"]) == ("/c/containerd", "/s/containerd/state")
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "pause:1"
    assert cri["restrict_oom_score_adj"] is True


def test_kubelet_keeps_images_and_reads_no_resolver_of_the_machine() -> None:
    config = yaml.safe_load(node_config.kubelet(PATHS, "/s/pki/ca.crt", KeyPair(Path("/s/k.crt"), Path("/s/k.key"))))
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["failCgroupV1"] is False
    assert config["clusterDNS"] == [DNS_SERVICE_ADDRESS]
    assert config["resolvConf"] == "/s/config/resolv.conf"


def test_pods_get_no_way_out() -> None:
    plugin = json.loads(node_config.cni(PATHS))["plugins"][0]
    assert plugin["ipMasq"] is False


@pytest.mark.parametrize("name", sorted(VALUES))
def test_manifests_render_to_valid_documents(name: str) -> None:
    documents = list(yaml.safe_load_all(workloads.render(name, VALUES[name])))
    assert all(document["kind"] and document["metadata"]["name"] for document in documents)
    with pytest.raises(KeyError):
        workloads.render(name, {})


def test_every_manifest_is_tested() -> None:
    assert {file.stem for file in workloads.MANIFESTS.glob("*.yaml")} == set(VALUES)


def test_kind_publishes_the_node_port_of_the_object_store() -> None:
    documents = list(yaml.safe_load_all(workloads.render("s3", VALUES["s3"])))
    service = next(document for document in documents if document["kind"] == "Service")
    mapping = kind_config()["nodes"][0]["extraPortMappings"][0]  # type: ignore[index]
    assert mapping["containerPort"] == service["spec"]["ports"][0]["nodePort"]
    assert mapping["hostPort"] == object_store.PORT


def test_directories_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLRUN_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "cache"))
    found = paths()
    assert found.kubeconfig == tmp_path / "state" / "kubeconfig"
    assert found.containerd_root == tmp_path / "cache" / "containerd"
    # Beside the state, because `down` removes the state while it holds the lock.
    assert found.state not in found.lock.parents
    assert found.state not in found.control_plane.parents
