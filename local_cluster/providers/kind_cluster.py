"""Cluster in a container, created by kind, for machines with a Docker engine.

Needs no root and builds no programs: docker, kind, kubectl and helm are installed by the user. The node image comes
from kind. The object store runs in a pod, from an image that is built here, and stores its data in the node container.

docs/design/006-local-cluster.md describes what was tested with the real programs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.addons.object_store import S3
from local_cluster.addons.workloads import install_object_store
from local_cluster.host.docker_engine import docker_problem
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.network import free_port
from local_cluster.host.paths import Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.images.ensure import ensure_images
from local_cluster.node.kind_node import cluster_name, kind_ctr_command
from local_cluster.node.static_images import BinaryImage
from local_cluster.providers.provider import ClusterStatus
from local_cluster.tools.host_packages import weed
from local_cluster.tools.user_programs import HELM, KIND, KUBECTL, find_user_program

# Node port of the object store (manifests/s3.yaml), published on a loopback port.
_NODE_PORT = 30833
_DATA_ON_NODE = "/var/lib/rlrun-s3"
_CREATE_SECONDS = 900.0
_LOAD_SECONDS = 300.0
_DELETE_SECONDS = 600.0
_ANSWER_SECONDS = 15.0
_HINT = "Alternatively, set RLRUN_CLUSTER=embedded, which needs root, but neither Docker nor kind."


class KindCluster:
    """Provider that uses kind to run the cluster."""

    name = "kind"

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.cluster = cluster_name(paths)

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the cluster."""
        return self.paths.kind / "kubeconfig"

    def prepare(self) -> None:
        """Check the user's programs, and download the object store.

        Raises:
            LocalClusterError: A program is missing or too old, or no Docker engine responds.
        """
        self._check_programs()
        weed(self.paths)

    def up(self, images: bool = False) -> None:
        """Create the cluster unless it already runs, and install the object store. Also build and load images if
        `images`.
        """
        self.prepare()
        with file_lock(self.paths.kind.with_suffix(".lock")):
            if not self._can_continue():
                self._delete()
                self._create()
            store = BinaryImage("weed", weed(self.paths))
            self._ensure_on_node(store)
            install_object_store(self._kubectl(), store.reference, _DATA_ON_NODE, self._s3_endpoint())
        if images:
            ensure_images()

    def enforce_policies(self) -> None:
        """Do nothing, because kind's own network plugin has enforced NetworkPolicies since kind 0.24."""

    def offer_gvisor(self) -> None:
        """Raise LocalClusterError, because kind's node image has no gVisor."""
        raise LocalClusterError(f"kind's node has no gVisor. {_HINT}")

    def down(self, purge: bool = False) -> None:
        """Delete the cluster. Its container also contains the images, so `purge` removes nothing more."""
        with file_lock(self.paths.kind.with_suffix(".lock")):
            self._delete()

    def status(self) -> ClusterStatus:
        """Return the state of node and object store."""
        problems = []
        s3 = None
        try:
            self._check_programs()
            if not self.paths.kind_config.exists():
                raise LocalClusterError(f"There is no kind cluster {self.cluster}.")
            ready = self._kubectl()("get", "nodes", "--no-headers", timeout=_ANSWER_SECONDS)
            if " Ready" not in ready:
                problems.append(f"the node is not ready: {ready.strip() or 'none registered'}")
            s3 = S3.of(self._kubectl(), self._s3_endpoint())
        except LocalClusterError as error:
            problems.append(str(error))
        return ClusterStatus(
            provider=self.name,
            healthy=not problems,
            problems=problems,
            kubeconfig=str(self.kubeconfig),
            kubectl=shutil.which("kubectl") or "kubectl",
            helm=shutil.which("helm") or "helm",
            s3=s3,
        )

    def import_images(self, archives: Sequence[Path]) -> None:
        """Load each archive with `kind load image-archive`."""
        for archive in archives:
            with progress.step(f"load {archive.name}"):
                run(["kind", "load", "image-archive", archive, "--name", self.cluster], timeout=_LOAD_SECONDS)

    def leftovers(self) -> list[str]:
        """Return the kind cluster, if kind still lists it, and its directory, if it exists."""
        found = [f"kind cluster {self.cluster}"] if self._is_listed() else []
        return [*found, str(self.paths.kind)] if self.paths.kind.exists() else found

    def _check_programs(self) -> None:
        problem = docker_problem()
        if problem is not None:
            raise LocalClusterError(f"The kind cluster needs Docker, but {problem}\n{_HINT}")
        for program in (KIND, KUBECTL, HELM):
            find_user_program(program)

    def _is_listed(self) -> bool:
        return self.cluster in run(["kind", "get", "clusters"], timeout=_ANSWER_SECONDS, next_step=_HINT).stdout.split()

    def _can_continue(self) -> bool:
        """Return True if the cluster of this cache directory exists and its node is ready."""
        if not self.paths.kind_config.exists() or not self._is_listed():
            return False
        arguments = ("wait", "--for=condition=Ready", "node", "--all", f"--timeout={_ANSWER_SECONDS:.0f}s")
        try:
            self._kubectl()(*arguments, timeout=2 * _ANSWER_SECONDS)
        except LocalClusterError:
            return False
        return True

    def _create(self) -> None:
        self.paths.kind.mkdir(parents=True, exist_ok=True)
        self.paths.kind_config.write_text(yaml.safe_dump(kind_config(free_port())))
        command = ("kind", "create", "cluster", "--name", self.cluster, "--wait", "180s")
        files = ("--config", self.paths.kind_config, "--kubeconfig", self.kubeconfig)
        try:
            with progress.step("kind create cluster"):
                run((*command, *files), timeout=_CREATE_SECONDS, next_step=_HINT)
        except LocalClusterError:
            # kind has removed its containers. The directory would make the next command choose kind again.
            shutil.rmtree(self.paths.kind)
            raise

    def _delete(self) -> None:
        # If kind was killed, its lock file remains and makes the next call fail. `up` and `down` hold their own lock.
        self.kubeconfig.with_suffix(".lock").unlink(missing_ok=True)
        if self._is_listed():
            with progress.step("kind delete cluster"):
                command = ("kind", "delete", "cluster", "--name", self.cluster, "--kubeconfig", self.kubeconfig)
                run(command, timeout=_DELETE_SECONDS)
        shutil.rmtree(self.paths.kind, ignore_errors=True)

    def _ensure_on_node(self, image: BinaryImage) -> None:
        listing = run([*kind_ctr_command(self.paths), "images", "list", "--quiet"], timeout=_LOAD_SECONDS)
        if image.reference in listing.stdout.split():
            return
        archive = self.paths.kind / f"{image.name}.tar"
        try:
            image.write(archive)
            self.import_images([archive])
        finally:
            archive.unlink(missing_ok=True)

    def _s3_endpoint(self) -> str:
        config: dict[str, Any] = yaml.safe_load(self.paths.kind_config.read_text())
        return f"http://127.0.0.1:{config['nodes'][0]['extraPortMappings'][0]['hostPort']}"

    def _kubectl(self) -> LocalClusterKubectl:
        return LocalClusterKubectl("kubectl", self.kubeconfig)


def kind_config(s3_port: int) -> dict[str, Any]:
    """Return the configuration of the cluster: one node, with the object store published on a loopback port."""
    mapping = {"containerPort": _NODE_PORT, "hostPort": s3_port, "listenAddress": "127.0.0.1"}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane", "extraPortMappings": [mapping]}],
    }
