"""Object source of an informer for several namespaces, for a process that may not list objects in all namespaces."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

from rlrun.kube.informer import ObjectSource, version_number
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj

WAITING_EVENTS = 100
"""Maximum number of queued events for the informer, over all namespaces."""

Event = tuple[str, Obj]


class NamespacesSource:
    """Source that lists and watches each namespace, and merges the results as if they came from the whole cluster."""

    def __init__(self, source: ObjectSource, namespaces: Sequence[str]) -> None:
        self._source = source
        self._namespaces = tuple(dict.fromkeys(namespaces))
        self._versions: dict[ResourceKind, dict[str, str]] = {}
        """The resourceVersion up to which the informer has received changes, by kind and namespace. Namespaces are
        watched independently.
        """

    async def all_pages(
        self, kind: ResourceKind, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[tuple[list[Obj], str]]:
        """Yield pages with the objects of each namespace. Each page comes with the oldest resourceVersion among the
        namespaces' lists so far. Raises ApiError.
        """
        if not kind.namespaced or namespace is not None:
            async for page in self._source.all_pages(kind, namespace, labels):
                yield page
            return
        versions: dict[str, str] = {}
        for each in self._namespaces:
            async for objects, version in self._source.all_pages(kind, each, labels):
                versions[each] = version
                yield objects, min(versions.values(), key=version_number)
        self._versions[kind] = versions

    async def watch(
        self, kind: ResourceKind, namespace: str | None, labels: Labels | None, version: str, seconds: float
    ) -> AsyncGenerator[Event, None]:
        """Yield the changes of all namespaces until the watch of one of them ends. Raises ApiError."""
        if not kind.namespaced or namespace is not None:
            async with aclosing(self._source.watch(kind, namespace, labels, version, seconds)) as events:
                async for event in events:
                    yield event
            return
        versions = self._versions[kind]
        queue: asyncio.Queue[tuple[str, Event]] = asyncio.Queue(WAITING_EVENTS)

        async def follow(each: str) -> None:
            async with aclosing(self._source.watch(kind, each, labels, versions[each], seconds)) as events:
                async for event in events:
                    await queue.put((each, event))

        watches = [asyncio.create_task(follow(each)) for each in self._namespaces]
        try:
            while True:
                taking = asyncio.create_task(queue.get())
                await asyncio.wait([taking, *watches], return_when=asyncio.FIRST_COMPLETED)
                if not taking.done():
                    taking.cancel()
                    for watch in watches:
                        if watch.done():
                            watch.result()
                    return
                each, event = taking.result()
                # Events that the informer has not received arrive again with the next watch.
                versions[each] = str(event[1]["metadata"]["resourceVersion"])
                yield event
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def read_listed(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Raises ApiError."""
        return await self._source.read_listed(kind, namespace, name)
