"""Selection of the cluster's provider for this machine."""

from __future__ import annotations

from local_cluster.host.paths import paths
from local_cluster.host.provider_choice import provider_choice
from local_cluster.providers.embedded_cluster import EmbeddedCluster
from local_cluster.providers.kind_cluster import KindCluster
from local_cluster.providers.provider import Provider


def provider() -> Provider:
    """Return the chosen provider."""
    return KindCluster(paths()) if provider_choice().name == "kind" else EmbeddedCluster(paths())
