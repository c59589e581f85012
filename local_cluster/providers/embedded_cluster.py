"""Cluster of plain processes: real Kubernetes daemons and real containers, without Docker or a registry.

`up` installs packages and binaries, then starts control plane, container runtime, node, DNS and object store. A cluster
whose API server or etcd has exited is replaced by a new one. Any other missing daemon is restarted.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from local_cluster.addons.gvisor import install_gvisor_class
from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.addons.object_store import S3
from local_cluster.addons.workloads import install_dns, install_object_store
from local_cluster.control_plane.control_plane_daemons import ControlPlaneDaemons
from local_cluster.host.daemons import Supervisor
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.network import Ports, node_address
from local_cluster.host.paths import MARKER, Paths
from local_cluster.host.progress import progress
from local_cluster.images.ensure import build_images, ensure_images
from local_cluster.node import cleanup, host_leftovers
from local_cluster.node.containers import ensure_binary_images, import_archives, remove_containers
from local_cluster.node.node_daemons import NodeDaemons
from local_cluster.node.static_images import BinaryImage
from local_cluster.providers.first_start import SECONDS, steps_ahead
from local_cluster.providers.provider import ClusterStatus
from local_cluster.tools.binaries import CLUSTER_BUILDS, ensure_builds, missing_builds, program
from local_cluster.tools.host_packages import ensure_system_packages, weed

DAEMONS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "containerd",
    "kubelet",
    "kube-proxy",
)


class EmbeddedCluster:
    """Provider that runs all daemons as processes of this machine."""

    name = "embedded"

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.supervisor = Supervisor(paths.run, paths.logs)

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the administrator."""
        return self.paths.kubeconfig

    def prepare(self) -> None:
        """Install packages and build binaries. Afterwards, only image builds need a network."""
        with ThreadPoolExecutor(max_workers=3) as pool:
            jobs: list[Future[None] | Future[Path]] = [
                pool.submit(ensure_system_packages, self.paths.cache),
                pool.submit(ensure_builds, CLUSTER_BUILDS, self.paths),
                pool.submit(weed, self.paths),
            ]
        for job in jobs:
            job.result()

    def up(self, images: bool = False) -> None:
        """Start a new cluster, replace a dead one, or start the missing parts of a running one.

        Args:
            images: Also build and import the product's images.
        """
        _require_root()
        with file_lock(self.paths.lock), ThreadPoolExecutor(max_workers=1) as pool:
            if ahead := steps_ahead(self.paths, images):
                progress.expect(ahead, SECONDS)
            # If no program has to be built, images are built after the start: an image on the node is not built again,
            # and only the node's containerd can list the images there.
            beside = images and missing_builds(CLUSTER_BUILDS, self.paths)
            building = pool.submit(build_images) if beside else None
            try:
                self.prepare()
                self._start()
            except BaseException:
                if building and not building.done():
                    progress.say("      failed; waiting for image builds in progress")
                raise
            if building:
                building.result()
            if images:
                ensure_images()

    def enforce_policies(self) -> None:
        """Start kube-router, which enforces NetworkPolicies until the cluster is removed."""
        with file_lock(self.paths.lock):
            ensure_builds(["kube-router"], self.paths)
            control_plane = ControlPlaneDaemons(self.paths, self.paths.state, Ports(), node_address())
            self.supervisor.start(NodeDaemons(self.paths, control_plane, self._image("pause").reference).kube_router())

    def offer_gvisor(self) -> None:
        """Build gVisor, for which containerd is configured, and create its RuntimeClass."""
        with file_lock(self.paths.lock):
            ensure_builds(["gvisor"], self.paths)
            install_gvisor_class(self._kubectl())

    def down(self, purge: bool = False) -> None:
        """Remove processes, mounts and the state directory of this cluster."""
        _require_root()
        with file_lock(self.paths.lock):
            self._clear()
            if purge:
                with progress.step("remove imported images"):
                    cleanup.remove_tree(self.paths.containerd_root)

    def status(self) -> ClusterStatus:
        """Return the state of daemons, node and object store."""
        running = self.supervisor.running()
        problems = [f"{name} is not running" for name in DAEMONS if name not in running]
        s3 = None
        if not problems:
            try:
                ready = self._kubectl()("get", "nodes", "--no-headers", timeout=15)
                if " Ready" not in ready:
                    problems.append(f"the node is not ready: {ready.strip() or 'none registered'}")
                s3 = S3.of(self._kubectl())
            except LocalClusterError as error:
                problems.append(str(error))
        return ClusterStatus(
            provider=self.name,
            healthy=not problems,
            problems=problems,
            kubeconfig=str(self.kubeconfig),
            kubectl=str(program("kubectl", self.paths)),
            helm=str(program("helm", self.paths)),
            daemons=running,
            s3=s3,
        )

    def import_images(self, archives: Sequence[Path]) -> None:
        """Import images into the containerd of the node."""
        import_archives(archives)

    def leftovers(self) -> list[str]:
        """Return one line for each thing that this cluster has left on the machine."""
        return host_leftovers.find(self.paths).lines()

    def _start(self) -> None:
        address = node_address()
        if not self._can_continue(address):
            self._clear()
            self._make_state(address)
        control_plane = ControlPlaneDaemons(self.paths, self.paths.state, Ports(), address)
        control_plane.prepare()
        self.supervisor.start(control_plane.etcd())
        self.supervisor.start(control_plane.api_server_with_nodes())
        self.supervisor.start(control_plane.controller_manager())
        self.supervisor.start(control_plane.scheduler())
        self._start_node(control_plane)
        kubectl = self._kubectl()
        install_dns(kubectl, self._image("coredns").reference)
        install_object_store(kubectl, self._image("weed").reference, str(self.paths.s3_data))

    def _can_continue(self, address: str) -> bool:
        """Return True if the cluster can be kept: etcd and API server run, and the machine still has its address."""
        known = self.paths.state / "address"
        same = known.exists() and known.read_text() == address
        return same and {"etcd", "kube-apiserver"} <= self.supervisor.running().keys()

    def _make_state(self, address: str) -> None:
        self.paths.state.mkdir(parents=True, exist_ok=True)
        # Reading would expose keys, but without search permission users in containers could not reach their volumes.
        self.paths.state.chmod(0o711)
        (self.paths.state / MARKER).touch()
        (self.paths.state / "address").write_text(address)

    def _clear(self) -> None:
        """Remove an earlier cluster in this state directory, running or dead."""
        if not host_leftovers.find(self.paths).lines():
            cleanup.remove_state(self.paths)
            return
        with progress.step("remove the earlier cluster"):
            self.supervisor.stop("kubelet", grace=3.0)
            if self.supervisor.pid("containerd") is not None:
                # Its database is in the cache and survives; only a running containerd can remove containers from it.
                remove_containers()
            for name in ("kube-router", *reversed(DAEMONS)):
                self.supervisor.stop(name, grace=1.0)
            removed = cleanup.remove_leftovers(self.paths)
            cleanup.remove_state(self.paths)
        summary = ", ".join(f"{count} {kind}" for kind, count in removed.items())
        progress.say(f"      removed: state directory {self.paths.state}" + (f", {summary}" if summary else ""))

    def _start_node(self, control_plane: ControlPlaneDaemons) -> None:
        pause = self._image("pause")
        node = NodeDaemons(self.paths, control_plane, pause.reference)
        started = self.supervisor.start(node.containerd())
        if started and self.supervisor.pid("kubelet") is None:
            # A cluster that was killed leaves containers in containerd's database.
            remove_containers()
        ensure_binary_images([pause, self._image("coredns"), self._image("weed")], self.paths)
        self.supervisor.start(node.kubelet())
        # Started after the node, because without a Node object kube-proxy waits half a minute before its next attempt.
        self.supervisor.start(node.kube_proxy())

    def _image(self, name: str) -> BinaryImage:
        return BinaryImage(name, program(name, self.paths).resolve())

    def _kubectl(self) -> LocalClusterKubectl:
        return LocalClusterKubectl(program("kubectl", self.paths), self.kubeconfig)


def _require_root() -> None:
    if os.geteuid() != 0:
        raise LocalClusterError(
            "The embedded cluster needs root (namespaces, mounts, iptables). Run it as root, "
            "or install Docker, kind, kubectl and helm, which need none."
        )
