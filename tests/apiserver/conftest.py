"""A real kube-apiserver over a real etcd for the whole session, with the project's CRDs installed."""

import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from local_cluster.control_plane.api_server_only import GARBAGE_COLLECTION, ControlPlane

CRDS = Path(__file__).parents[2] / "crds"
ESTABLISHED_SECONDS = 30


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """The API server, with garbage collection running."""
    with ControlPlane(controllers=GARBAGE_COLLECTION) as started:
        yield started


@pytest.fixture(scope="session")
def bare_api(control_plane: ControlPlane) -> client.ApiClient:
    """An administrator's client of a server that may have no CRDs yet."""
    return config.new_client_from_config(str(control_plane.kubeconfig))


@pytest.fixture(scope="session")
def api(bare_api: client.ApiClient) -> client.ApiClient:
    """An administrator's client of a server that serves all kinds of the project."""
    extensions = client.ApiextensionsV1Api(bare_api)
    names = []
    for file in sorted(CRDS.glob("*.yaml")):
        definition = yaml.safe_load(file.read_text())
        names.append(definition["metadata"]["name"])
        extensions.create_custom_resource_definition(definition)
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    while waiting := [name for name in names if not _established(extensions, name)]:
        assert time.monotonic() < deadline, f"not served after {ESTABLISHED_SECONDS} s: {waiting}"
        time.sleep(0.1)
    return bare_api


@pytest.fixture
def namespace(api: client.ApiClient) -> str:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    return name


def _established(extensions: client.ApiextensionsV1Api, name: str) -> bool:
    conditions = extensions.read_custom_resource_definition(name).status.conditions or []
    return any(c.type == "Established" and c.status == "True" for c in conditions)
