"""Configuration files of the node."""

import json
import tomllib
from pathlib import Path

import yaml

from local_cluster.control_plane.pki import KeyPair
from local_cluster.host.network import DNS_SERVICE_ADDRESS
from local_cluster.host.paths import Paths
from local_cluster.node import node_config

PATHS = Paths(state=Path("/s"), cache=Path("/c"))


def test_containerd_shares_nothing_with_another_containerd() -> None:
    config = tomllib.loads(node_config.containerd(PATHS, "pause:1", Path("/c/bin/shim")))
    assert config["grpc"]["address"] == "/s/containerd/containerd.sock"
    assert (config["root"], config["state"]) == ("/c/containerd", "/s/containerd/state")
    cri = config["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["sandbox_image"] == "pause:1"
    assert cri["restrict_oom_score_adj"] is True


def test_the_handler_of_the_runtime_class_is_gvisor_on_systrap() -> None:
    config = tomllib.loads(node_config.containerd(PATHS, "pause:1", Path("/c/bin/shim")))
    containerd = config["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]
    assert containerd["default_runtime_name"] == "runc"
    handler = containerd["runtimes"][node_config.GVISOR_HANDLER]
    assert handler["runtime_type"] == "/c/bin/shim"
    assert handler["options"]["ConfigPath"] == f"/s/config/{node_config.RUNSC_CONFIG}"
    runsc = tomllib.loads(node_config.runsc(PATHS, Path("/c/bin/runsc")))
    assert runsc["binary_name"] == "/c/bin/runsc"
    assert runsc["root"].startswith("/s/"), "removed with the state directory"
    assert runsc["runsc_config"] == {"platform": "systrap"}


def test_kubelet_keeps_images_and_ignores_the_resolver_of_the_machine() -> None:
    config = yaml.safe_load(node_config.kubelet(PATHS, "/s/pki/ca.crt", KeyPair(Path("/s/k.crt"), Path("/s/k.key"))))
    assert config["imageGCHighThresholdPercent"] == 100
    assert config["failCgroupV1"] is False
    assert config["clusterDNS"] == [DNS_SERVICE_ADDRESS]
    assert config["resolvConf"] == "/s/config/resolv.conf"


def test_pod_network_does_not_masquerade() -> None:
    plugin = json.loads(node_config.cni(PATHS))["plugins"][0]
    assert plugin["ipMasq"] is False
