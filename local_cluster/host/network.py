"""Address ranges of the cluster, address of the node, free ports."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from local_cluster.host.errors import LocalClusterError

POD_RANGE = "10.244.0.0/16"
NODE_POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_SERVICE_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
# Address of a documentation range. Nothing is sent; the kernel only selects the source address of the default route.
_ELSEWHERE = ("198.51.100.1", 9)


@dataclass(frozen=True)
class Ports:
    """Ports of the control plane.

    The defaults are the ports of the full cluster. They differ from Kubernetes' defaults, so that the cluster can run
    beside another Kubernetes on the same machine.
    """

    api: int = 16443
    etcd: int = 12379
    etcd_peer: int = 12380
    controller_manager: int = 12257
    scheduler: int = 12259


def node_address() -> str:
    """Return the address of this machine on its default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError as error:
            raise LocalClusterError(
                "This machine has no IPv4 default route, so the node has no address. "
                "Add one, for example with `ip route add default dev <link>`."
            ) from error
        return str(probe.getsockname()[0])


def free_ports() -> Ports:
    """Return ports that are free at this moment."""
    probes = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(5)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        api, etcd, etcd_peer, controller_manager, scheduler = (probe.getsockname()[1] for probe in probes)
    finally:
        for probe in probes:
            probe.close()
    return Ports(api, etcd, etcd_peer, controller_manager, scheduler)


def free_port() -> int:
    """Return a port of the loopback address that is free at this moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
