"""Directories of the local cluster: a state that `down` removes, and a cache that survives it.

The cluster writes nothing into the source tree and never changes a user's file, such as `~/.kube/config`.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
MARKER = ".rlrun-local-state"
DEFAULT_STATE = Path("/var/lib/rlrun-local")
_GROUP = "rlrun-local"


@dataclass(frozen=True)
class Paths:
    """Directories of the local cluster.

    Attributes:
        state: kubeconfig, keys, etcd's data, logs and kubelet root of the embedded cluster. `down` removes it.
        cache: Built binaries and imported images. `down --purge` removes the images only.
    """

    state: Path
    cache: Path

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the administrator of the embedded cluster."""
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
        """Folder of the pid files of the daemons."""
        return self.state / "run"

    @property
    def config(self) -> Path:
        """Folder of the rendered configuration files of the daemons."""
        return self.state / "config"

    @property
    def kubelet(self) -> Path:
        """Root directory of the kubelet, with the volumes of the pods."""
        return self.state / "kubelet"

    @property
    def containerd_socket(self) -> Path:
        """Socket of the cluster's own containerd, separate from the containerd of the machine."""
        return self.state / "containerd" / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        """Runtime state of containerd: bundles, mounts and network namespaces."""
        return self.state / "containerd" / "state"

    @property
    def containerd_root(self) -> Path:
        """Image contents and snapshots, in the cache so that a second cluster need not import them."""
        return self.cache / "containerd"

    @property
    def s3_data(self) -> Path:
        """Data of the object store."""
        return self.state / "s3"

    @property
    def cgroup(self) -> str:
        """Name of the control group of all pods. It is unique to the state directory and thus to the cluster."""
        if self.state == DEFAULT_STATE:
            return _GROUP
        return f"{_GROUP}-{hashlib.sha256(str(self.state).encode()).hexdigest()[:12]}"

    @property
    def bin(self) -> Path:
        """Built binaries, one folder per content key."""
        return self.cache / "bin"

    @property
    def kind(self) -> Path:
        """Directory with the state of the kind cluster. It is in the cache, because the user may not be root. `down`
        removes it.
        """
        return self.cache / "kind"

    @property
    def kind_config(self) -> Path:
        """Configuration of the kind cluster. It exists as long as the cluster does."""
        return self.kind / "cluster.yaml"

    @property
    def lock(self) -> Path:
        """Lock file, next to the state directory because `down` holds the lock while it removes that directory."""
        return self.state.with_name(self.state.name + ".lock")

    @property
    def control_plane(self) -> Path:
        """State of the control plane without a node, for tests of the API server."""
        return self.state.with_name(self.state.name + "-apiserver")


def paths() -> Paths:
    """Return the directories named by `RLRUN_STATE` and `RLRUN_CACHE`, or the defaults."""
    state = os.environ.get("RLRUN_STATE") or str(DEFAULT_STATE)
    cache = os.environ.get("RLRUN_CACHE") or "~/.cache/rlrun"
    return Paths(state=Path(state).expanduser().resolve(), cache=Path(cache).expanduser().resolve())
