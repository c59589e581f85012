"""Cluster in a container, made by kind, for machines with a Docker engine.

Not verified: the development machines have no Docker engine, so this module has never run against a real kind. It is
small for that reason. The tests exercise the embedded provider.

The node image comes from kind. The image of the object store is made here and loaded, as for the embedded cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from local_cluster.addons.kubectl import Kubectl
from local_cluster.addons.object_store import PORT, S3
from local_cluster.addons.workloads import install_object_store
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import MARKER, Paths
from local_cluster.host.progress import progress
from local_cluster.host.shell import run
from local_cluster.node.static_images import BinaryImage
from local_cluster.providers.provider import ClusterStatus
from local_cluster.tools.binaries import ensure_program

NAME = "rlrun-local"
# Node port of the object store (manifests/s3.yaml), published on the loopback address.
_NODE_PORT = 30833
_ENDPOINT = f"http://127.0.0.1:{PORT}"


class KindCluster:
    """Provider that lets kind run the cluster."""

    name = "kind"

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the cluster."""
        return self.paths.kubeconfig

    def exists(self) -> bool:
        """True if this state directory belongs to a kind cluster."""
        return self._config_file.exists()

    def up(self) -> None:
        """Create the cluster if kind does not list it, then install the object store."""
        self.paths.state.mkdir(parents=True, exist_ok=True)
        (self.paths.state / MARKER).touch()
        self._config_file.write_text(yaml.safe_dump(_config()))
        if NAME not in run(["kind", "get", "clusters"]).stdout.split():
            with progress.step("kind create cluster"):
                hint = "`docker info` and `kind create cluster` show more. RLRUN_CLUSTER=embedded does without Docker."
                command = ["kind", "create", "cluster", "--name", NAME, "--wait", "180s"]
                run([*command, "--config", self._config_file, "--kubeconfig", self.kubeconfig], next_step=hint)
        image = BinaryImage("weed", ensure_program("weed", self.paths))
        archive = self.paths.state / "weed.tar"
        try:
            self.import_images([self._written(image, archive)])
        finally:
            archive.unlink(missing_ok=True)
        install_object_store(self._kubectl(), image.reference, "/var/lib/rlrun-s3", _ENDPOINT)

    def down(self, purge: bool = False) -> None:
        """Delete the cluster. Its container holds the images, so `purge` has nothing more to remove."""
        with progress.step("kind delete cluster"):
            run(["kind", "delete", "cluster", "--name", NAME, "--kubeconfig", self.kubeconfig])
        for file in (self._config_file, self.kubeconfig, self.paths.state / MARKER):
            file.unlink(missing_ok=True)

    def status(self) -> ClusterStatus:
        """Return the state of API server and object store."""
        problems = []
        s3 = None
        try:
            s3 = S3.of(self._kubectl(), _ENDPOINT)
        except LocalClusterError as error:
            problems.append(str(error))
        return ClusterStatus(
            provider=self.name,
            healthy=not problems,
            problems=problems,
            kubeconfig=str(self.kubeconfig),
            kubectl=str(ensure_program("kubectl", self.paths)),
            helm=str(ensure_program("helm", self.paths)),
            s3=s3,
        )

    def import_images(self, archives: Sequence[Path]) -> None:
        """Load each archive with `kind load image-archive`."""
        for archive in archives:
            with progress.step(f"load {archive.name}"):
                run(["kind", "load", "image-archive", archive, "--name", NAME])

    def leftovers(self) -> list[str]:
        """Return the cluster, if kind still lists it."""
        listed = run(["kind", "get", "clusters"], check=False).stdout.split()
        return [f"kind cluster {NAME}"] if NAME in listed else []

    @property
    def _config_file(self) -> Path:
        return self.paths.state / "kind.yaml"

    def _kubectl(self) -> Kubectl:
        return Kubectl(ensure_program("kubectl", self.paths), self.kubeconfig)

    def _written(self, image: BinaryImage, archive: Path) -> Path:
        image.write(archive)
        return archive


def _config() -> dict[str, object]:
    mapping = {"containerPort": _NODE_PORT, "hostPort": PORT, "listenAddress": "127.0.0.1"}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane", "extraPortMappings": [mapping]}],
    }
