"""KWOK for a control plane: nodes that report pods as running without running them.

The stages of nodes and pods come from the sources of the Go module from which KWOK is built. Pods of Jobs do not
complete.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from local_cluster.control_plane.control_plane_daemons import LOCALHOST, answers
from local_cluster.control_plane.without_nodes import ControlPlane
from local_cluster.host.atomic_files import write
from local_cluster.host.daemons import Daemon, Supervisor
from local_cluster.host.network import free_ports
from local_cluster.host.paths import Paths, paths
from local_cluster.tools.binaries import ensure_builds, module_folder, program

MODULE = "sigs.k8s.io/kwok"
STAGES = (
    "node/fast/node-initialize",
    "node/heartbeat-with-lease/node-heartbeat-with-lease",
    "pod/fast/pod-ready",
    "pod/fast/pod-delete",
)
PLENTY = 100_000
"""Number of CPUs of a node, and of GPUs by default."""


class Kwok:
    """KWOK for one control plane."""

    def __init__(self, control_plane: ControlPlane, directories: Paths | None = None) -> None:
        """Configure KWOK without starting it."""
        self._kubeconfig = control_plane.kubeconfig
        self._state = control_plane.state / "kwok"
        self._paths = directories or paths()
        self._port = free_ports().api
        self._supervisor = Supervisor(self._state / "run", self._state / "logs", die_with_parent=True)

    @property
    def log(self) -> Path:
        """Path of KWOK's log."""
        return self._supervisor.log("kwok")

    def start(self) -> Kwok:
        """Build KWOK if necessary, start it, and wait until it is ready."""
        ensure_builds(["kwok"], self._paths)
        stages = self._stages()
        file = self._state / "stages.yaml"
        write(file, stages)
        argv = (
            str(program("kwok", self._paths)),
            f"--kubeconfig={self._kubeconfig}",
            f"--config={file}",
            "--manage-all-nodes=true",
            f"--server-address={LOCALHOST}:{self._port}",
            "--node-lease-duration-seconds=40",
        )
        ready = answers(f"http://{LOCALHOST}:{self._port}/healthz")
        self._supervisor.start(Daemon("kwok", argv, ready, configuration=stages))
        return self

    def stop(self) -> None:
        """Stop the process."""
        self._supervisor.stop("kwok", grace=0.0)

    def _stages(self) -> str:
        folder = module_folder("kwok", MODULE, self._paths) / "kustomize" / "stage"
        return "\n---\n".join((folder / f"{stage}.yaml").read_text() for stage in STAGES)


def node(name: str, pods: int, gpus: int = PLENTY) -> dict[str, Any]:
    """Return a node with capacity for `pods` pods and `gpus` GPUs, and abundant other resources."""
    room = {"cpu": str(PLENTY), "memory": "100Ti", "ephemeral-storage": "100Ti", "pods": str(pods)}
    room["nvidia.com/gpu"] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"allocatable": room, "capacity": room},
    }
