"""Interface of a local cluster, implemented by plain processes and by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from local_cluster.addons.object_store import S3


@dataclass(frozen=True)
class ClusterStatus:
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

    def status(self) -> ClusterStatus:
        """Look at the cluster."""
        ...

    def import_images(self, archives: Sequence[Path]) -> None:
        """Make the images in these archives known to the node."""
        ...

    def leftovers(self) -> list[str]:
        """What is on the machine although the cluster is down."""
        ...
