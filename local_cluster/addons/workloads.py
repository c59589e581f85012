"""Workloads that every cluster includes: DNS and the object store."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from string import Template

import yaml

from local_cluster.addons.kubectl import LocalClusterKubectl
from local_cluster.addons.object_store import (
    ACCESS_KEY,
    CONFIG_SECRET,
    NAMESPACE,
    S3,
    SECRET,
    configuration,
    ensure_bucket,
)
from local_cluster.host import network
from local_cluster.host.progress import progress

MANIFESTS = Path(__file__).resolve().parents[1] / "manifests"


def render(name: str, values: Mapping[str, str]) -> str:
    """Return a manifest with its `${...}` placeholders filled in. Raises KeyError for a missing value."""
    return Template((MANIFESTS / f"{name}.yaml").read_text()).substitute(values)


def _digest(name: str) -> str:
    return hashlib.sha256((MANIFESTS / f"{name}.yaml").read_bytes()).hexdigest()[:12]


def install_dns(kubectl: LocalClusterKubectl, image: str) -> None:
    """Install CoreDNS and wait until it is ready."""
    with progress.step("cluster DNS"):
        values = {"COREDNS_IMAGE": image, "DNS_ADDRESS": network.DNS_SERVICE_ADDRESS}
        kubectl.apply(render("coredns", values | {"MANIFEST_HASH": _digest("coredns")}))
        kubectl.wait_for_deployment("coredns", "kube-system")


def install_object_store(kubectl: LocalClusterKubectl, image: str, data: str, endpoint: str | None = None) -> S3:
    """Install SeaweedFS with credentials and bucket, and wait until it is ready.

    Args:
        kubectl: kubectl of the cluster.
        image: Image of the `weed` program.
        data: Directory on the node.
        endpoint: URL for this machine, if it is not the address of the Service.

    Returns:
        The object store.
    """
    with progress.step("object store"):
        manifests = render("s3", {"WEED_IMAGE": image, "S3_DATA": data})
        namespace, rest = manifests.split("\n---\n", 1)
        kubectl.apply(namespace)
        _ensure_credentials(kubectl)
        kubectl.apply(rest)
        kubectl.wait_for_deployment("s3", NAMESPACE)
        found = S3.of(kubectl, endpoint)
        ensure_bucket(kubectl, found)
    return found


def _ensure_credentials(kubectl: LocalClusterKubectl) -> None:
    """Create the two Secrets once per cluster, because a second `up` must not change credentials in use."""
    if kubectl.get("secret", SECRET, NAMESPACE) and kubectl.get("secret", CONFIG_SECRET, NAMESPACE):
        return
    secret_key = secrets.token_urlsafe(30)
    credentials = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": secret_key}
    for name, content in (
        (SECRET, credentials),
        (CONFIG_SECRET, {"s3.json": configuration(ACCESS_KEY, secret_key)}),
    ):
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "stringData": content,
        }
        kubectl.apply(yaml.safe_dump(manifest))
