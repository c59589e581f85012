"""Watch of one kind for the cache, metadata only: it shows that an object has changed, not how."""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable

from rlrun.constants import FIELD_MANAGER, GONE, MANAGED_BY_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import TIMEOUT, ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj

from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.cache.run_index import RunIndex, indexed_parts

log = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
"""Duration of one request. The next one continues from the version of the last event."""
SILENCE_SECONDS = 75.0
"""Time without an event or a bookmark after which the connection is considered lost. Bookmarks come about every
minute."""
PROVEN_SECONDS = 5.0
"""Duration of a request after which the watch is considered healthy."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
MANAGED = {MANAGED_BY_LABEL: FIELD_MANAGER}


class MetadataWatch:
    """Watch of the operator's objects of one kind, in one or in all namespaces."""

    def __init__(
        self,
        cluster: AsyncKubeClient,
        cache: ObjectCache,
        index: RunIndex,
        kind: ResourceKind,
        namespace: str | None,
        on_change: Callable[[Obj], None],
        on_open: Callable[[ResourceKind, str | None], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is called with the metadata of each object that has changed by others than this process,
        `on_open` with kind and namespace when the watch opens: earlier changes cause no event.
        """
        self._cluster = cluster
        self._cache = cache
        self._index = index
        self._kind = kind
        self._namespace = namespace
        self._on_change = on_change
        self._on_open = on_open
        self._clock = clock

    async def run(self) -> None:
        """Watch until the task is cancelled. While there is no watch, the cache keeps nothing of this kind."""
        pause = FIRST_PAUSE
        while True:
            began = self._clock()
            try:
                version = await self._open()
                while True:
                    began = self._clock()
                    version = await self._follow(version)
                    if self._clock() - began < PROVEN_SECONDS:
                        # A proxy, or an API server that stops, may end each request at once.
                        await _sleep(FIRST_PAUSE)
            except ApiError as error:
                self._cache.watch_closed(self._kind, self._namespace)
                self._index.watch_closed(self._kind, self._namespace)
                pause = FIRST_PAUSE if self._clock() - began >= PROVEN_SECONDS else pause
                level = logging.DEBUG if error.status == GONE or error.is_temporary else logging.WARNING
                log.log(level, "The watch of %s ended; it begins again in %.0f s: %s", self._kind.plural, pause, error)
            await _sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _open(self) -> str:
        """List all objects. Returns the version from which to watch for changes. Raises ApiError."""
        # Not in `run`, which lasts as long as the process: the list of a thousand runs' pods takes 100 MiB.
        objects, version = await self._cluster.list_metadata(self._kind, self._namespace, MANAGED, keep=indexed_parts)
        # In this order: what is read after the version was has it, and what changes later is an event.
        self._cache.watch_opened(self._kind, self._namespace, objects)
        self._index.watch_opened(self._kind, self._namespace, objects)
        self._on_open(self._kind, self._namespace)
        return version

    async def _follow(self, version: str) -> str:
        """Forward the changes of one request. Returns the version to continue from. Raises ApiError."""
        events = self._cluster.watch_metadata(self._kind, self._namespace, MANAGED, version, WATCH_SECONDS)
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    event, obj = await anext(events)
            except StopAsyncIteration:
                return version
            except TimeoutError:
                message = f"the API server sent nothing for {SILENCE_SECONDS:.0f} s"
                raise ApiError(0, TIMEOUT, message, action=f"watch {self._kind.plural}") from None
            version = str(obj["metadata"]["resourceVersion"])
            if event != "BOOKMARK":
                deleted = event == "DELETED"
                self._index.see(self._kind, self._namespace, obj, deleted=deleted)
                self._cache.after_own_write(self._kind, obj, functools.partial(self._tell, obj, deleted))

    def _tell(self, obj: Obj, deleted: bool) -> None:
        if self._cache.changed(self._kind, obj, deleted=deleted):
            self._on_change(obj)


async def _sleep(seconds: float) -> None:
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
