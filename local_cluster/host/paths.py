"""Two directories hold everything: a cache that survives, and a state that `down` removes.

Nothing of the local cluster is written into the source tree (but for the timings in `build/`), and no file of the
user's own, such as `~/.kube/config`, is ever touched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MARKER = ".rlrun-local-state"


@dataclass(frozen=True)
class Paths:
    """Where the embedded cluster keeps its files.

    Attributes:
        state: kubeconfig, keys, etcd's data, logs, the kubelet's root; removed by `down`.
        cache: built binaries and imported images; removed by `down --purge` only as far as images go.
    """

    state: Path
    cache: Path

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        """Keys and certificates."""
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        """One log per daemon."""
        return self.state / "logs"

    @property
    def run(self) -> Path:
        """Process-id files of the daemons."""
        return self.state / "run"

    @property
    def config(self) -> Path:
        """Rendered configuration files of the daemons."""
        return self.state / "config"

    @property
    def kubelet(self) -> Path:
        """The kubelet's root directory, with the pods' volumes."""
        return self.state / "kubelet"

    @property
    def containerd_socket(self) -> Path:
        """containerd's socket: not the one of a containerd that the machine runs for others."""
        return self.state / "containerd" / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        """containerd's running state: bundles, mounts, network namespaces."""
        return self.state / "containerd" / "state"

    @property
    def containerd_root(self) -> Path:
        """Image contents and snapshots: in the cache, so that a second demo imports nothing."""
        return self.cache / "containerd"

    @property
    def s3_data(self) -> Path:
        """The object store's data."""
        return self.state / "s3"

    @property
    def bin(self) -> Path:
        """Built binaries, one folder per content key."""
        return self.cache / "bin"

    @property
    def lock(self) -> Path:
        """Beside the state, not in it: `down` holds the lock while it removes the state."""
        return self.state.with_name(self.state.name + ".lock")

    @property
    def control_plane(self) -> Path:
        """State of the control plane that runs without a node, for tests of the API server."""
        return self.state.with_name(self.state.name + "-apiserver")


def paths() -> Paths:
    """The directories in force: `RLRUN_STATE` and `RLRUN_CACHE`, or the defaults."""
    state = os.environ.get("RLRUN_STATE") or "/var/lib/rlrun-local"
    cache = os.environ.get("RLRUN_CACHE") or "~/.cache/rlrun"
    return Paths(state=Path(state).expanduser().resolve(), cache=Path(cache).expanduser().resolve())
