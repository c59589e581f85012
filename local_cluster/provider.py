"""Which cluster `up` makes: the embedded one, or kind where Docker works. Both answer to the same few calls."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from local_cluster.errors import LocalClusterError
from local_cluster.object_store import S3
from local_cluster.paths import paths
from local_cluster.shell import run


@dataclass(frozen=True)
class Status:
    """What `status` prints.

    Attributes:
        provider: `embedded` or `kind`.
        healthy: Whether everything that `up` starts runs and answers.
        problems: What doesn't.
        kubeconfig: Path of the kubeconfig.
        kubectl: Path of a kubectl of the cluster's version.
        helm: Path of helm.
        daemons: Process ids by daemon; empty where they are somebody else's.
        s3: The object store, when it can be asked.
    """

    provider: str
    healthy: bool
    kubeconfig: str
    kubectl: str
    helm: str
    problems: list[str] = field(default_factory=list)
    daemons: dict[str, int] = field(default_factory=dict)
    s3: S3 | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Provider(Protocol):
    """A way to have a cluster on this machine."""

    name: str

    @property
    def kubeconfig(self) -> Path:
        """The cluster's own kubeconfig; never the user's."""
        ...

    def up(self) -> None:
        """Bring the cluster up, or leave a healthy one as it is."""
        ...

    def down(self, purge: bool = False) -> None:
        """Remove the cluster; with `purge`, imported images too."""
        ...

    def status(self) -> Status:
        """Look at the cluster."""
        ...

    def import_images(self, archives: Sequence[Path]) -> None:
        """Make the images in these archives known to the node."""
        ...

    def leftovers(self) -> list[str]:
        """What is on the machine although the cluster is down."""
        ...


def provider() -> Provider:
    """The provider in use: `RLRUN_CLUSTER`, or what already runs, or kind where it works, or the embedded one."""
    from local_cluster.embedded import Embedded
    from local_cluster.kind import Kind

    choice = os.environ.get("RLRUN_CLUSTER", "")
    if choice not in ("", "embedded", "kind"):
        raise LocalClusterError(f"RLRUN_CLUSTER is {choice!r}: set it to `embedded` or `kind`, or unset it.")
    directories = paths()
    # A cluster that exists decides: Docker starting or stopping meanwhile must not make `down` look elsewhere.
    if choice == "kind" or (not choice and Kind(directories).exists()):
        return Kind(directories)
    if choice == "embedded" or directories.kubeconfig.exists() or not kind_works():
        return Embedded(directories)
    return Kind(directories)


def kind_works() -> bool:
    """Whether kind is installed and a Docker engine answers: the client alone proves nothing."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    try:
        return run(["docker", "info", "--format", "{{.ServerVersion}}"], check=False, timeout=15).returncode == 0
    except LocalClusterError:  # a client that hangs
        return False
