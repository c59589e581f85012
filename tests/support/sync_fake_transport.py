"""The cluster in memory for the synchronous client."""

from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun.kube.sync_client import SyncTransport
from typing_extensions import override

from tests.support.fake_cluster import FakeCluster

T = TypeVar("T")


class SyncFakeTransport(SyncTransport):
    """Requests of a synchronous client, answered by the one cluster in memory."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    @override
    def send(self, request: KubeRequest) -> Obj:
        return run_at_once(self._cluster.send(request))

    @override
    def stream(self, request: KubeRequest) -> Iterator[bytes]:
        yield from self._cluster.read(request, run_at_once(self._cluster.chunks(request)))


def run_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that waits for nothing. It needs no event loop, so any thread may call it."""
    try:
        work.send(None)
    except StopIteration as end:
        found: T = end.value
        return found
    work.close()
    raise AssertionError("the cluster in memory waits for something, which only an asynchronous client can do")
