"""Kueue with its kinds and webhooks, beside a control plane without nodes."""

from collections.abc import Iterator
from contextlib import contextmanager

from kubernetes import client

from local_cluster.control_plane.kueue import NAMESPACE, Kueue, crds
from local_cluster.control_plane.without_nodes import ControlPlane
from tests.support.crds import wait_until_served


@contextmanager
def running_kueue(control_plane: ControlPlane, api: client.ApiClient) -> Iterator[Kueue]:
    """Run Kueue until the end of the block. `api`: an administrator's client."""
    extensions, definitions = client.ApiextensionsV1Api(api), crds()
    for definition in definitions:
        extensions.create_custom_resource_definition(definition)
    wait_until_served(api, [definition["metadata"]["name"] for definition in definitions])
    client.CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
    kueue = Kueue(control_plane)
    try:
        kueue.start()
        admission = client.AdmissionregistrationV1Api(api)
        mutating, validating = sorted(kueue.webhooks(), key=lambda w: str(w["kind"]))
        admission.create_mutating_webhook_configuration(mutating)
        admission.create_validating_webhook_configuration(validating)
        yield kueue
    finally:
        kueue.stop()
