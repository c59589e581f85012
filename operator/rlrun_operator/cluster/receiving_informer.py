"""Informer for objects that another library, such as kopf, lists and watches.

The library passes each event to `receive`. The informer itself lists only metadata, to check that it stores every
object and no deleted object.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import FIRST_PAUSE, LONGEST_PAUSE, NEVER, Informer, T, identity_of, sleep, version_number
from rlrun.kube.objects import Obj
from typing_extensions import override

QUIET_SECONDS = 1.0
"""Seconds without another listed object after which the other library's list is considered complete."""
LONGEST_LIST_SECONDS = 60.0
"""Seconds after which metadata is listed even if the other library's list is not complete."""
CHECK_SECONDS = 600.0
"""Maximum seconds between two lists of metadata. Only these lists show that the library has stopped without an error.
"""
MISSING_SECONDS = 10.0
"""Seconds without an object from the other library after which the informer stops waiting for missing objects."""


class ReceivingInformer(Informer[T]):
    """Store of the objects of one kind. Another library receives their events and passes them to `receive`."""

    @override
    def __init__(self, source: AsyncKubeClient, *given: Any, **options: Any) -> None:
        super().__init__(source, *given, **options)
        self._client = source
        self._missing: dict[str, int] = {}
        """Versions of objects that are in a list of metadata but were not passed to `receive`, by uid."""
        self._complete = asyncio.Event()
        """Set while no object is missing."""
        self._gap = asyncio.Event()
        """Set when `receive` gets an object from a list, because deletions before that list may have been missed."""
        self._listed_at = 0.0
        """Time at which the last listed object was passed to `receive`."""

    def receive(self, event: str | None, obj: Obj) -> None:
        """Apply an event that the other library received to the store. `event` is the type of the event, or None for an
        object from one of the library's lists.
        """
        uid, version = identity_of(obj)
        known = self._by_uid.get(uid)
        if event is not None:
            self.handle_event(event, obj)
        else:
            self._gap.set()
            self._listed_at = self._clock()
            cached = self._convert_or_none(obj) if known is None or known.version != version else None
            if cached is not None and self.is_synced:
                self._handle_version(cached)
            elif cached is not None:
                self._store(cached)
        if self._missing and (event == "DELETED" or version >= self._missing.get(uid, NEVER)):
            self._missing.pop(uid, None)
            self._expect(self._missing)

    async def follow_received(self, on_stalled: Callable[[], None]) -> None:
        """Until cancelled, check that the other library passes all objects to `receive`.

        Lists the metadata of all objects at the start, after each gap in the events, and every CHECK_SECONDS. If
        objects are still missing at the second list, calls `on_stalled` and reads the missing objects itself. Also
        calls `on_stalled` if the API server did not serve the kind at first, because the library may not watch such a
        kind.
        """
        pause, was_served, overdue = FIRST_PAUSE, True, frozenset[str]()
        while True:
            self._gap.clear()
            try:
                async with self._lists, self._listing:
                    version = await self._check()
                    if not overdue.isdisjoint(self._missing):
                        on_stalled()
                        version = version_number(await self.list())
                        self._expect({})
            except Exception as error:
                was_served &= not (isinstance(error, ApiError) and error.status == 404)
                self._log_end(error, pause)
                await sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if not was_served:
                on_stalled()
            pause, was_served, overdue = FIRST_PAUSE, True, frozenset()
            if not await self._arrives():
                # Objects deleted in the meantime never arrive. The next list does not contain them.
                overdue = frozenset(self._missing)
                continue
            self.version = max(self.version, version)
            self._synced.set()
            await _is_set_within(self._gap, CHECK_SECONDS)
            # Wait until the library's list is complete.
            end = self._clock() + LONGEST_LIST_SECONDS
            while self._clock() < min(self._listed_at + QUIET_SECONDS, end):
                await sleep(QUIET_SECONDS)

    async def _check(self) -> int:
        """List the metadata of all objects, remove those that are gone, and note which ones are missing.

        Returns the version of the list. Raises ApiError.
        """
        before, listed, text, is_older = dict(self._by_uid), dict[str, int](), "", False
        self._removed_lately.clear()
        async for page, text in self._client.metadata_pages(self.kind, self.namespace, self._labels):  # noqa: B007
            for uid, version in map(identity_of, page):
                listed[uid] = version
                known = self._by_uid.get(uid)
                is_older |= known is not None and known.version > version and known is before.get(uid)
                is_older |= uid in self._removed and uid not in self._removed_lately
            await asyncio.sleep(0)
        if is_older:
            # The API server's data were restored from a backup.
            text = await self.list()
            self._expect({})
        else:
            self._remove_unlisted(listed, before, version_number(text))
            self._unreadable = {uid: version for uid, version in self._unreadable.items() if uid in listed}
            self._expect({uid: version for uid, version in listed.items() if not self._has(uid, version)})
        return version_number(text)

    def _expect(self, missing: dict[str, int]) -> None:
        """Set the objects that are missing."""
        self._missing = missing
        (self._complete.clear if missing else self._complete.set)()

    async def _arrives(self) -> bool:
        """Wait until all missing objects have arrived. Returns False once no object has arrived for MISSING_SECONDS."""
        began = self._clock()
        while not await _is_set_within(self._complete, MISSING_SECONDS):
            if self._clock() - max(began, self._listed_at) >= MISSING_SECONDS:
                return False
        return True

    def _has(self, uid: str, version: int) -> bool:
        """Return whether the object has arrived in this version or a later one, even if it was removed since."""
        known = self._by_uid.get(uid)
        arrived = self._unreadable.get(uid, -1) if known is None else known.version
        return max(arrived, self._removed.get(uid, -1)) >= version


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
