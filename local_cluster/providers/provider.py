"""Interface of a local cluster, implemented by plain processes and by kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from local_cluster.addons.object_store import S3


@dataclass(frozen=True)
class ClusterStatus:
    """State of the cluster, as `status` prints it.

    Attributes:
        provider: `embedded` or `kind`.
        healthy: True if everything that `up` starts is running and responds.
        problems: Parts that are not running or not responding, and why.
        kubeconfig: Path of the kubeconfig.
        kubectl: Path of a kubectl for the cluster.
        helm: Path of helm.
        daemons: Process ids by daemon. Empty if the provider does not run them itself.
        s3: The object store. None if it cannot be reached.
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
        """Return the state as a JSON object."""
        return asdict(self)


class Provider(Protocol):
    """Interface of a cluster on this machine."""

    name: str

    @property
    def kubeconfig(self) -> Path:
        """kubeconfig of the cluster, separate from the user's."""
        ...

    def prepare(self) -> None:
        """Install or check the programs that `up` needs."""
        ...

    def up(self, images: bool = False) -> None:
        """Start the cluster and, with `images`, load the product's images. A healthy cluster is unchanged."""
        ...

    def enforce_policies(self) -> None:
        """Make the running cluster enforce NetworkPolicies."""
        ...

    def offer_gvisor(self) -> None:
        """Add a RuntimeClass with which pods of the running cluster can select gVisor."""
        ...

    def down(self, purge: bool = False) -> None:
        """Remove the cluster and, with `purge`, imported images."""
        ...

    def status(self) -> ClusterStatus:
        """Return the state of the cluster."""
        ...

    def import_images(self, archives: Sequence[Path]) -> None:
        """Import the images of these archives into the node."""
        ...

    def leftovers(self) -> list[str]:
        """Return one line for each thing that the cluster has left on the machine."""
        ...
