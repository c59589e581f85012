"""Command line with in-memory fakes of the cluster and S3."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from rlrun.storage.store import Store
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import CliContext
from rlrun_cli.remote.server import RemoteStorage

from tests.support.command_line import Answer, Rlrun, call
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.support.seaweedfs import S3Server
from tests.support.sync_fake_transport import SyncFakeTransport

TEAM = "team"
"""Namespace of commands without -n."""


def custom_object(kind: ResourceKind, name: str, *, created: str | None = None, **parts: Any) -> Obj:
    """Return an object as the API server returns it."""
    metadata: Obj = {"name": name, "uid": f"uid-{name}", "managedFields": [{}]}
    if kind.namespaced:
        metadata["namespace"] = TEAM
    if created:
        metadata["creationTimestamp"] = created
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {}, **parts}


@pytest.fixture
def api() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def remote(api: FakeCluster) -> RemoteCluster:
    return remote_cluster(api)


def remote_cluster(api: FakeCluster, namespace: str | None = None) -> RemoteCluster:
    """Return the cluster as commands with -n `namespace` see it."""
    return RemoteCluster(lambda seconds: SyncFakeTransport(api), namespace or TEAM)


@pytest.fixture
def s3() -> InMemoryStore:
    return InMemoryStore("b")


@pytest.fixture
def chosen() -> list[tuple[Path | None, str | None, str | None]]:
    """Kubeconfig, context and namespace of each connection of a command."""
    return []


def commands(api: FakeCluster, store: Store, chosen: list[Any], bucket: str = "b", prefix: str = "p") -> Rlrun:
    """Return a call of the command line with this cluster and this S3, as rlrun-server would open it."""

    def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> RemoteCluster:
        chosen.append((kubeconfig, context, namespace))
        return remote_cluster(api, namespace)

    def invoke(
        *args: object, env: dict[str, str | None] | None = None, input: str | bytes | None = None, ticks: float = 0.0
    ) -> Answer:
        """`ticks`: seconds between two looks at the clock."""
        clock = itertools.count(0.0, ticks)
        given = CliContext(
            connect=connect,
            store=lambda endpoint, style: store,
            storage=lambda cluster, server: RemoteStorage(bucket, prefix, store),
            sleep=lambda seconds: None,
            clock=lambda: float(next(clock)),
        )
        cleared = {"RLRUN_S3_BUCKET": None, "RLRUN_S3_PREFIX": None, "AWS_ENDPOINT_URL_S3": None, "RLRUN_SERVER": None}
        return call(*args, context=given, env=cleared | (env or {}), input=input)

    return invoke


@pytest.fixture
def rlrun(api: FakeCluster, s3: InMemoryStore, chosen: list[Any]) -> Rlrun:
    return commands(api, s3, chosen)


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.bucket


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A folder of the test's own."""
    return str(request.node.name[:20])


@pytest.fixture
def on_s3(api: FakeCluster, store: Store, chosen: list[Any], bucket: str, prefix: str) -> Rlrun:
    """Commands with the cluster in memory and a real S3."""
    return commands(api, store, chosen, bucket, prefix)
