"""Adapter between kopf's event streams and the cache, with a workaround for one defect of the streams.

kopf takes an event with status 410 as the end of a stream, and lists the kind again. A response with status 410 it
takes as its own end, and with it the operator's: proxies answer so, and the API server does in the middle of a list
that takes long. kopf cannot be started again in the same process: its end cancels all tasks of the event loop, and
kills the process ten minutes later.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

# kopf has no public hook for the events of a stream. The locked version calls this function for each new list.
from kopf._cogs.clients import watching
from kopf._cogs.clients.errors import APIError
from rlrun.constants import GONE
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj

from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.cache.run_index import indexed_parts

log = logging.getLogger(__name__)

BOOKMARK = "BOOKMARK"
"""Type of events that contain only a version."""
PROVEN_SECONDS = 5.0
"""Duration after which a stream is considered healthy."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


@contextmanager
def watched_streams(
    cache: ObjectCache,
    kinds: Mapping[str, ResourceKind],
    is_needed: Callable[[ResourceKind, str | None, Obj], bool],
    on_listed: Callable[[ResourceKind, str | None], None],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Let the cache keep answers of these kinds while kopf's streams of them are open, and only then.

    `kinds`: by their plural names. `is_needed`: whether kopf gets an event of this type, None for a listed object. Each
    takes kopf 3 ms and, for seconds, the memory of several copies of the object. `on_listed` is called with kind and
    namespace of a stream, None for all, whose list is complete: earlier changes cause no event.
    """
    original = watching.continuous_watch
    pauses: dict[tuple[str, str | None], float] = {}

    async def continuous_watch(*, resource: Any, namespace: Any, **arguments: Any) -> AsyncIterator[Any]:
        place = None if namespace is None else str(namespace)
        kind, stream, began = kinds.get(resource.plural), (resource.plural, place), clock()
        listed: list[Obj] = []
        try:
            async for event in original(resource=resource, namespace=namespace, **arguments):
                if kind is None:
                    yield event
                elif event is watching.Bookmark.LISTED:
                    cache.watch_opened(kind, place, listed)
                    listed.clear()
                    on_listed(kind, place)
                    yield event
                else:
                    if event["type"] is None and cache.has_answer_about(kind, event["object"]):
                        listed.append(indexed_parts(event["object"]))
                    if event["type"] == BOOKMARK or is_needed(kind, event["type"], event["object"]):
                        yield event
        except APIError as error:
            if error.status != GONE:
                raise
            pause = FIRST_PAUSE if clock() - began >= PROVEN_SECONDS else pauses.get(stream, FIRST_PAUSE)
            pauses[stream] = min(2 * pause, LONGEST_PAUSE)
            log.warning("The watch of %s ended; it begins again in %.0f s: %s", resource.plural, pause, error)
            close(kind, place)
            await asyncio.sleep(pause)
        finally:
            close(kind, place)

    def close(kind: ResourceKind | None, place: str | None) -> None:
        if kind is not None:
            cache.watch_closed(kind, place)

    watching.continuous_watch = continuous_watch
    try:
        yield
    finally:
        watching.continuous_watch = original
