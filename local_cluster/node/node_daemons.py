"""Daemons that make this machine a node: containerd, kubelet and kube-proxy, and kube-router for NetworkPolicies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from local_cluster.control_plane.control_plane_daemons import LOCALHOST, ControlPlaneDaemons, answers
from local_cluster.control_plane.pki import ADMINISTRATORS
from local_cluster.host import network
from local_cluster.host.atomic_files import write
from local_cluster.host.daemons import Daemon
from local_cluster.host.paths import Paths
from local_cluster.host.shell import run
from local_cluster.node import node_config
from local_cluster.node.containers import ctr_command
from local_cluster.node.host_leftovers import CGROUPS
from local_cluster.tools.binaries import program

POLICY_HEALTH_PORT = 20244


@dataclass(frozen=True)
class NodeDaemons:
    """Builder of the node's daemons.

    Attributes:
        paths: Directories of the cluster.
        control_plane: Control plane that the node joins.
        pause_image: Image of the process that holds a pod's namespaces.
    """

    paths: Paths
    control_plane: ControlPlaneDaemons
    pause_image: str

    def containerd(self) -> Daemon:
        """Return the container runtime."""
        shim = program("containerd-shim-runsc-v1", self.paths)
        config = self._write("containerd.toml", node_config.containerd(self.paths, self.pause_image, shim))
        self._write(node_config.RUNSC_CONFIG, node_config.runsc(self.paths, program("runsc", self.paths)))
        self._write("cni/10-rlrun-local.conflist", node_config.cni(self.paths))
        for directory in (self.paths.containerd_root, self.paths.containerd_state):
            directory.mkdir(parents=True, exist_ok=True)
        argv = ("/usr/bin/containerd", "--config", str(config))

        def ready() -> bool:
            return run([*ctr_command(), "version"], check=False, timeout=10).returncode == 0

        return Daemon("containerd", argv, ready, configuration=config.read_text())

    def kubelet(self) -> Daemon:
        """Return the node agent, which registers the node."""
        node = node_config.NODE_NAME
        addresses = [node, self.control_plane.address, LOCALHOST]
        serving = self.control_plane.authority.issue("kubelet-serving", node, addresses=addresses)
        ca = str(self.control_plane.authority.pair.certificate)
        self._write("resolv.conf", "")
        config = self._write("kubelet.yaml", node_config.kubelet(self.paths, ca, serving))
        kubeconfig = self.control_plane.write_kubeconfig("kubelet", f"system:node:{node}", "system:nodes")
        argv = (
            str(program("kubelet", self.paths)),
            f"--config={config}",
            f"--kubeconfig={kubeconfig}",
            f"--root-dir={self.paths.kubelet}",
            f"--cert-dir={self.paths.pki}",
            f"--hostname-override={node}",
            f"--node-ip={self.control_plane.address}",
            "--node-labels=rlrun.dev/local-cluster=true",
        )
        make_cgroups(self.paths.cgroup)
        hint = "The kubelet of another Kubernetes may be using port 10250: `ss -ltnp sport = :10250`."
        return Daemon("kubelet", argv, self._node_is_ready(), hint, config.read_text())

    def kube_proxy(self) -> Daemon:
        """Return the daemon that implements Services with iptables rules."""
        kubeconfig = self.control_plane.write_kubeconfig("kube-proxy", "system:kube-proxy")
        config = self._write("kube-proxy.yaml", node_config.kube_proxy(str(kubeconfig)))
        argv = (str(program("kube-proxy", self.paths)), f"--config={config}")

        hint = "iptables must work on this machine. Check with `iptables-save -t nat`."
        return Daemon("kube-proxy", argv, answers("http://127.0.0.1:10256/healthz"), hint, config.read_text())

    def kube_router(self) -> Daemon:
        """Return the daemon that enforces NetworkPolicies with iptables rules. Its routing is disabled."""
        kubeconfig = self.control_plane.write_kubeconfig("kube-router", "rlrun-local-kube-router", ADMINISTRATORS)
        argv = (
            str(program("kube-router", self.paths)),
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            f"--kubeconfig={kubeconfig}",
            f"--hostname-override={node_config.NODE_NAME}",
            f"--service-cluster-ip-range={network.SERVICE_RANGE}",
            f"--health-port={POLICY_HEALTH_PORT}",
        )
        hint = "iptables and ipset must work on this machine. Check with `ipset list -name`."
        return Daemon("kube-router", argv, answers(f"http://{LOCALHOST}:{POLICY_HEALTH_PORT}/healthz"), hint)

    def _node_is_ready(self) -> Callable[[], bool]:
        kubectl: list[str | Path] = [program("kubectl", self.paths), "--kubeconfig", self.control_plane.kubeconfig]
        template = '{range .status.conditions[?(@.type=="Ready")]}{.status}{end}'

        def ready() -> bool:
            query = ["get", "node", node_config.NODE_NAME, "-o", f"jsonpath={template}"]
            return run([*kubectl, *query], check=False, timeout=20).stdout.strip() == "True"

        return ready

    def _write(self, name: str, text: str) -> Path:
        return write(self.paths.config / name, text)


def make_cgroups(name: str, root: Path = CGROUPS) -> None:
    """Create the control group in which the kubelet places its pods, because the kubelet does not create it."""
    if (root / "cgroup.controllers").exists():
        group = root / name
        group.mkdir(exist_ok=True)
        for controller in (root / "cgroup.controllers").read_text().split():
            for folder in (root, group):
                try:
                    (folder / "cgroup.subtree_control").write_text(f"+{controller}")
                except OSError:  # A controller that this kernel does not delegate.
                    continue
        return
    for hierarchy in root.iterdir():
        # Links are alternative names of joined hierarchies ("cpu" for "cpu,cpuacct").
        if hierarchy.is_dir() and not hierarchy.is_symlink() and os.path.ismount(hierarchy):
            (hierarchy / name).mkdir(exist_ok=True)
