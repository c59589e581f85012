"""Transport that reports every write to the cache and counts all requests."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

from rlrun.kube.async_transport import AsyncTransport
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from typing_extensions import override

from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.runtime.metrics import API_REQUESTS

READS = frozenset({Verb.GET, Verb.LIST, Verb.WATCH, Verb.LOG})


class RecordingTransport(AsyncTransport):
    """`AsyncTransport` whose writes reach the cache before their answers reach the caller."""

    def __init__(self, transport: AsyncTransport, cache: ObjectCache) -> None:
        self._transport = transport
        self._cache = cache

    @override
    async def send(self, request: KubeRequest) -> Obj:
        API_REQUESTS.labels(request.verb.name.lower(), request.kind.plural).inc()
        if request.verb in READS:
            return await self._transport.send(request)
        answer, began = None, self._cache.moment()
        with self._cache.writing(request.kind, request.namespace, _name_of(request)):
            try:
                answer = await self._transport.send(request)
            finally:
                # Also after an error: the API server may have written what it did not confirm.
                self._record(request, answer, began)
        return answer

    @override
    def stream(self, request: KubeRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        API_REQUESTS.labels(request.verb.name.lower(), request.kind.plural).inc()
        return self._transport.stream(request)

    @override
    async def close(self) -> None:
        await self._transport.close()

    def _record(self, request: KubeRequest, answer: Obj | None, began: int) -> None:
        if answer is not None and answer.get("kind") == request.kind.kind and request.verb is not Verb.DELETE:
            self._cache.store_written(request.kind, answer, began)
            return
        # An object that did not exist before is in no answer by its name, but may be missing in one by its labels.
        self._cache.changed(request.kind, request.body or {}, deleted=True)
        self._cache.forget_object(request.kind, request.namespace, _name_of(request))


def _name_of(request: KubeRequest) -> str:
    metadata = (request.body or {}).get("metadata") or {}
    return request.name or str(metadata.get("name", ""))
