"""A real kube-apiserver over a real etcd for the whole session, with the project's CRDs installed.

All workers share one: each test has a namespace of its own, and names of its own for what has no namespace.
"""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

import tests.support.level_fixtures  # noqa: F401  (its settings of servers and of hypothesis)
from local_cluster.control_plane.without_nodes import GARBAGE_COLLECTION, ControlPlane
from tests.support.crds import install_crds
from tests.support.lanes import Together
from tests.support.seaweedfs import S3Server, running_for_all_workers
from tests.support.sharing import folder_of_all_workers, shared


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The API server of all workers, with the project's kinds and with garbage collection."""
    with shared(folder_of_all_workers(tmp_path_factory), "control-plane", _control_plane) as state:
        yield ControlPlane(Path(state))


@contextmanager
def _control_plane() -> Iterator[str]:
    with ControlPlane(controllers=GARBAGE_COLLECTION) as started:
        install_crds(config.new_client_from_config(str(started.kubeconfig)))
        yield str(started.state)


@pytest.fixture(scope="session")
def api(control_plane: ControlPlane) -> client.ApiClient:
    """An administrator's client."""
    return config.new_client_from_config(str(control_plane.kubeconfig))


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 of all workers: paths in it begin with a namespace, which is a test's own."""
    with running_for_all_workers(folder_of_all_workers(tmp_path_factory)) as server:
        yield server


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Keep tests of the chart on one worker: they work on one installation."""
    return Together(config, log, _lane)


def _lane(nodeid: str) -> str:
    return "chart" if "/chart/" in nodeid else nodeid


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that no worker waits for it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture
def namespace(api: client.ApiClient) -> str:
    """A namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    return name
