"""Informer: a store of the objects of one kind, listed in pages and updated by a watch, like client-go's reflector.

- If the API server ends a watch, the next one continues from the version of the last event or bookmark. If a watch
  fails (410, an error, silence), the objects are listed again and the list is compared with the store: listeners
  receive everything that was added, changed or removed.
- The response to a write by this process is stored immediately (`writing`), and the later event is not reported as a
  change.
- The resourceVersion decides which state is newer: versions of one kind are comparable as numbers (Kubernetes
  enhancement 5504).

Objects are stored as JSON bytes, which take a fifth of the memory of dictionaries and cannot be modified by readers.
"""

import asyncio
import logging
import random
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from rlrun.api.base.received import read_stored
from rlrun.constants import GONE
from rlrun.kube.errors import TIMEOUT, ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Labels, Obj

log = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
"""Duration of a watch request in seconds, after which the API server ends it."""
SILENCE_SECONDS = 75.0
"""Seconds without an event or bookmark after which the connection is considered lost. Bookmarks arrive about every
minute.
"""
PROVEN_SECONDS = 5.0
"""Seconds after which a request counts as evidence that the API server is healthy. After a shorter watch, the informer
pauses before the next request; after a longer one, the back-off is reset.
"""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LIST_REST = 4.0
"""Pause before a new list after a 410, as a multiple of the duration of the last list. Lists of many objects are
expensive for the API server.
"""
OBJECTS_PER_TURN = 20
"""Number of listed objects that are converted, in about 10 ms, before the event loop runs other tasks."""
MAX_REMOVED = 10_000
"""Maximum number of removed objects whose uids are remembered."""
NEVER = 1 << 64
"""Version higher than any object's version."""
MAX_LOGGED = 20
"""Maximum number of unreadable objects that are logged after a list."""
MAX_OBJECT_BYTES = 256 << 10
"""Maximum size of an object that is stored completely."""
MAX_BYTES = 256 << 20
"""Maximum total size of the objects of a kind that are stored completely."""


@dataclass(frozen=True, slots=True)
class CachedObject:
    """Object in the store of an informer."""

    namespace: str
    name: str
    uid: str
    version: int
    data: bytes | None
    """JSON of the object. None if the object is not stored completely and must be read by `Informer.load`."""
    size: int
    """Size of the JSON in bytes."""
    labels: tuple[tuple[str, str], ...]
    """Labels that are available without decoding the object."""

    def read(self) -> Obj:
        """Decode the object. Raises ValueError if `data` is None."""
        if self.data is None:
            raise ValueError(f"{self.namespace}/{self.name} is not stored completely: load it before reading")
        return self.decode(self.data)

    def decode(self, data: bytes) -> Obj:
        """Decode an object from these bytes."""
        obj: Obj = read_stored(data)
        return obj


T = TypeVar("T", bound=CachedObject)


@dataclass(frozen=True)
class ObjectChange(Generic[T]):
    """Creation, change or deletion of an object."""

    cached: T
    """Current object, or the last state of a deleted object."""
    is_deleted: bool = False
    is_own: bool = False
    """True for the response to a write by this process."""
    is_missing: bool = False
    """True if the object was missing from a list, but no deletion event was received."""


class ObjectSource(Protocol):
    """Part of `AsyncKubeClient` that an informer uses."""

    def all_pages(
        self, kind: ResourceKind, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[tuple[list[Obj], str]]:
        """Yield all objects page by page, with the version from which a watch can start. Raises ApiError."""
        ...

    def watch(
        self, kind: ResourceKind, namespace: str | None, labels: Labels | None, version: str, seconds: float
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Yield the type and object of each event, including bookmarks. Raises ApiError."""
        ...

    async def read_listed(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Raises ApiError."""
        ...


class Informer(Generic[T]):
    """Store of the objects of one kind. Not thread-safe: use from one event loop only."""

    def __init__(
        self,
        source: ObjectSource,
        kind: ResourceKind,
        convert: Callable[[Obj], T],
        *,
        namespace: str | None = None,
        labels: Labels | None = None,
        index: Collection[str] = (),
        max_object_bytes: int = MAX_OBJECT_BYTES,
        max_bytes: int = MAX_BYTES,
        lists: asyncio.Semaphore | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`convert` returns the stored form of an object, without parts that readers do not use. `namespace` and
        `labels` select the objects; None selects all namespaces. `index` contains the labels by which objects can be
        looked up. `lists` is shared by several informers and limits how many of them list objects at the same time.
        """
        self.kind = kind
        self.namespace = namespace
        self._source = source
        self._convert = convert
        self._labels = labels
        self._index = frozenset(index)
        self._max_object_bytes = max_object_bytes
        self._max_bytes = max_bytes
        self._lists = lists or asyncio.Semaphore()
        self._listing = asyncio.Lock()
        self._clock = clock
        self._by_name: dict[tuple[str, str], T] = {}
        self._by_uid: dict[str, T] = {}
        self._by_label: dict[tuple[str, str, str], tuple[T, ...]] = {}
        """Objects by namespace, label and value. Tuples as keys take a fifth of the memory of nested dictionaries."""
        self._removed: OrderedDict[str, int] = OrderedDict()
        """Version of each removed object by uid. The object is stored again only with a later version, for example if
        its labels match again.
        """
        self._removed_lately: set[str] = set()
        """Uids of objects that were removed during the last list."""
        self._unreadable: dict[str, int] = {}
        """Versions of unreadable objects, by uid."""
        self._synced = asyncio.Event()
        self._writing: Counter[tuple[str, str]] = Counter()
        """Number of writes in progress by this process, by namespace and name of the object."""
        self._waiting: defaultdict[tuple[str, str], list[T]] = defaultdict(list)
        """Events held back while their object is in `_writing`, because they may result from the write."""
        self._own: defaultdict[str, set[int]] = defaultdict(set)
        """Versions written by this process whose events have not arrived, by uid."""
        self.stored_bytes = 0
        """Total size of the objects that are stored completely."""
        self.changes = 0
        """Counter that increases with every change to the store, and after every complete list."""
        self.version = 0
        """Version up to which all changes have been received."""
        self.listeners: list[Callable[[ObjectChange[T]], None]] = []
        """Functions called after each change. They must not block."""

    @property
    def is_synced(self) -> bool:
        """True once all objects have been listed. The objects may be stale while the API server is unavailable."""
        return self._synced.is_set()

    async def until_synced(self) -> None:
        """Wait until all objects have been listed once."""
        await self._synced.wait()

    def all(self) -> Iterable[T]:
        """Return all objects, in no particular order."""
        return self._by_name.values()

    def find(self, namespace: str, name: str) -> T | None:
        """Return the object with this name, or None."""
        return self._by_name.get((namespace, name))

    def find_uid(self, namespace: str, uid: str) -> T | None:
        """Return the object with this uid if it is in the namespace, or None."""
        cached = self._by_uid.get(uid)
        return cached if cached is not None and cached.namespace == namespace else None

    def find_labelled(self, namespace: str, label: str, value: str) -> list[T]:
        """Return the objects with this label, ordered by name. Raises ValueError if the label is not in `index`."""
        if label not in self._index:
            raise ValueError(f"{self.kind.plural} are not indexed by the label {label}")
        return sorted(self._by_label.get((namespace, label, value), ()), key=lambda cached: cached.name)

    async def load(self, cached: T) -> T | None:
        """Return the object with its complete data, or None if it was deleted. Raises ApiError."""
        if cached.data is not None:
            return cached
        obj = await self._source.read_listed(self.kind, cached.namespace or None, cached.name)
        if obj is None or obj["metadata"].get("uid") != cached.uid:
            return None
        return self._convert(obj)

    # --- list and watch -----------------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """List and watch the objects until cancelled."""
        pause, list_seconds = FIRST_PAUSE, 0.0
        while True:
            began = self._clock()
            try:
                async with self._lists, self._listing:
                    began = self._clock()
                    version = await self.list()
                list_seconds = self._clock() - began
                while True:
                    began = self._clock()
                    version = await self._watch(version)
                    if self._clock() - began < PROVEN_SECONDS:
                        # A proxy or an API server that is shutting down may end each request immediately.
                        await sleep(FIRST_PAUSE)
            except Exception as error:
                if isinstance(error, ApiError) and error.status == GONE:
                    pause = min(max(FIRST_PAUSE, LIST_REST * list_seconds), LONGEST_PAUSE)
                elif self._clock() - began >= PROVEN_SECONDS:
                    pause = FIRST_PAUSE
                self._log_end(error, pause)
            await sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _log_end(self, error: Exception, pause: float) -> None:
        if not isinstance(error, ApiError):
            log.exception("%s are not up to date; listing them again in %.0f s", self.kind.plural, pause)
            return
        level = logging.DEBUG if error.status == GONE else logging.WARNING
        log.log(level, "%s are not up to date; listing them again in %.0f s: %s", self.kind.plural, pause, error)

    async def list(self) -> str:
        """List all objects and compare them with the store. Returns the version from which a watch continues.

        Raises ApiError.
        """
        before, listed = dict(self._by_uid), set[str]()
        self._unreadable.clear()
        self._removed_lately.clear()
        version, is_first = "", not self.is_synced
        async for page, version in self._source.all_pages(self.kind, self.namespace, self._labels):  # noqa: B007
            for number, obj in enumerate(page, 1):
                listed.add(str(obj["metadata"].get("uid") or ""))
                self._compare(obj, before, is_notified=not is_first)
                if number % OBJECTS_PER_TURN == 0:
                    await asyncio.sleep(0)
        self.version = version_number(version)
        self._remove_unlisted(listed, before, self.version)
        self.changes += 1
        self._synced.set()
        return version

    def _remove_unlisted(self, listed: Collection[str], before: Mapping[str, T], version: int) -> None:
        """Remove the objects that are not in `listed`, a complete list of this version. `before` is the content of the
        store at the start of the list.
        """
        for uid, cached in list(self._by_uid.items()):
            # Objects written since the API server created the list are not in it.
            if uid not in listed and (cached is before.get(uid) or cached.version <= version):
                self._remove(uid, version, is_notified=self.is_synced, is_missing=True)
        for uid in [uid for uid, versions in self._own.items() if max(versions) <= version]:
            del self._own[uid]

    async def catch_up(self, version: int) -> None:
        """List all objects, unless all changes up to this version have been received. Raises ApiError.

        Watches of different kinds are not ordered: a run may arrive before the model that it refers to.
        """
        if self.version >= version:
            return
        async with self._listing:
            # Another caller may have listed the objects in the meantime.
            if self.version < version:
                await self.list()

    def _compare(self, obj: Obj, before: Mapping[str, T], *, is_notified: bool) -> None:
        """Store a listed object if its version differs from the stored one. `before` is the content of the store at the
        start of the list.

        An older version is stored too, unless the store has changed since, because the API server may have been
        restored from a backup.
        """
        metadata, (uid, version) = obj["metadata"], identity_of(obj)
        known = self._by_name.get((str(metadata.get("namespace") or ""), str(metadata["name"])))
        is_unchanged = known is None or known is before.get(known.uid)
        if known is not None and (known.uid, known.version) == (uid, version):
            return
        if known is not None and known.version > version and not is_unchanged:
            return
        cached = None if uid in self._removed_lately else self._convert_or_none(obj)
        if cached is None:
            return
        self._removed.pop(uid, None)
        is_own = self._take_own(cached)
        if self._store(cached, is_listed=True) and is_notified and not is_own:
            self._notify(ObjectChange(cached))

    async def _watch(self, version: str) -> str:
        """Watch until the request ends. Returns the version up to which changes were received. Raises ApiError."""
        watch = self._source.watch(self.kind, self.namespace, self._labels, version, WATCH_SECONDS)
        async with aclosing(watch) as events:
            while True:
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        event, obj = await anext(events)
                except StopAsyncIteration:
                    return version
                except TimeoutError:
                    message = f"the API server sent nothing for {SILENCE_SECONDS:.0f} s"
                    raise ApiError(0, TIMEOUT, message, action=f"watch {self.kind.plural}") from None
                version = str(obj["metadata"]["resourceVersion"])
                self.version = max(self.version, version_number(version))
                self.handle_event(event, obj)

    def handle_event(self, event: str, obj: Obj) -> None:
        """Apply an event of the watch to the store, and notify the listeners."""
        if event == "DELETED":
            self._remove(*identity_of(obj))
        elif event in ("ADDED", "MODIFIED"):
            cached = self._convert_or_none(obj)
            if cached is not None:
                self._handle_version(cached)

    def _handle_version(self, new: T) -> None:
        known = self._by_uid.get(new.uid)
        self._store(new)
        current = self._by_uid.get(new.uid)
        if current is None or self._take_own(new) or (known is not None and known.version == new.version):
            return
        place = (new.namespace, new.name)
        if place in self._writing:
            self._waiting[place].append(new)
        else:
            # Report the current object even for an older version, because a write by this process has hidden a change
            # by others.
            self._notify(ObjectChange(current))

    # --- own writes ---------------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, namespace: str, name: str) -> Iterator[Callable[[Obj], None]]:
        """Announce a write by this process. The context yields a function to call with the API server's response.

        The event of a write often arrives before the response. Until the response, events of the object are stored but
        not reported.
        """
        place = (namespace, name)
        self._writing[place] += 1
        try:
            yield self._store_answer
        finally:
            self._writing[place] -= 1
            if not self._writing[place]:
                del self._writing[place]
                for event in self._waiting.pop(place, ()):
                    current = self._by_uid.get(event.uid)
                    if current is not None and not self._take_own(event):
                        self._notify(ObjectChange(current))

    def _store_answer(self, obj: Obj) -> None:
        cached = self._convert_or_none(obj)
        if cached is None or self._is_removed(cached):
            return
        known = self._by_uid.get(cached.uid)
        if known is None or known.version < cached.version or self._is_waiting(cached):
            self._own[cached.uid].add(cached.version)
        if self._store(cached):
            self._notify(ObjectChange(cached, is_own=True))

    def remove_deleted(self, uid: str) -> None:
        """Remove an object that this process has deleted. A newer object with the same name is kept."""
        self._remove(uid, NEVER, is_own=True)

    def _is_waiting(self, cached: T) -> bool:
        waiting = self._waiting.get((cached.namespace, cached.name), ())
        return any((event.uid, event.version) == (cached.uid, cached.version) for event in waiting)

    def _take_own(self, cached: T) -> bool:
        """Return whether this process wrote the version in an event. Forgets the version."""
        own = self._own.get(cached.uid)
        if own is None or cached.version not in own:
            return False
        own.discard(cached.version)
        if not own:
            del self._own[cached.uid]
        return True

    # --- the store ----------------------------------------------------------------------------------------------------

    def put(self, obj: Obj) -> None:
        """Store an object that was just read or written, unless a newer version is stored or the object was removed."""
        cached = self._convert(obj)
        if self._store(cached):
            self._notify(ObjectChange(cached))

    def _store(self, new: T, *, is_listed: bool = False) -> bool:
        """Store an object. Returns whether the store has changed. An older version is stored only if `is_listed`."""
        old = self._by_name.get((new.namespace, new.name))
        if self._is_removed(new):
            return False
        if old is not None and not is_listed:
            is_known = (old.uid, old.version) == (new.uid, new.version)
            if is_known or old.version > new.version:
                return False
        if old is not None:
            self._drop(old)
            if old.uid != new.uid:
                self._forget(old.uid, new.version)
                self._notify(ObjectChange(old, is_deleted=True))
        if len(new.data or b"") > min(self._max_object_bytes, self._max_bytes - self.stored_bytes):
            new = replace(new, data=None)
        self._by_name[new.namespace, new.name] = self._by_uid[new.uid] = new
        for place in self._places(new):
            self._by_label[place] = (*self._by_label.get(place, ()), new)
        self.stored_bytes += len(new.data or b"")
        self.changes += 1
        return True

    def _drop(self, old: T) -> None:
        del self._by_uid[old.uid], self._by_name[old.namespace, old.name]
        for place in self._places(old):
            others = tuple(cached for cached in self._by_label[place] if cached is not old)
            if others:
                self._by_label[place] = others
            else:
                del self._by_label[place]
        self.stored_bytes -= len(old.data or b"")

    def _places(self, cached: T) -> Iterator[tuple[str, str, str]]:
        """Yield the index keys of an object."""
        for key, value in cached.labels:
            if key in self._index:
                yield cached.namespace, key, value

    def _remove(
        self, uid: str, version: int, *, is_notified: bool = True, is_own: bool = False, is_missing: bool = False
    ) -> None:
        """Remove an object that was deleted at or before `version`."""
        old = self._by_uid.get(uid)
        self._forget(uid, version if old is None else max(version, old.version))
        if old is None:
            return
        self._drop(old)
        self.changes += 1
        if is_notified:
            self._notify(ObjectChange(old, is_deleted=True, is_own=is_own, is_missing=is_missing))

    def _is_removed(self, cached: T) -> bool:
        return cached.version <= self._removed.get(cached.uid, -1)

    def _forget(self, uid: str, version: int) -> None:
        """Remember the uid and version of a removed object, so that a late response does not store the object again."""
        self._own.pop(uid, None)
        self._unreadable.pop(uid, None)
        if self._listing.locked():
            self._removed_lately.add(uid)
        self._removed[uid] = version
        while len(self._removed) > MAX_REMOVED:
            self._removed.popitem(last=False)

    def _notify(self, change: ObjectChange[T]) -> None:
        for listener in self.listeners:
            listener(change)

    def _convert_or_none(self, obj: Obj) -> T | None:
        """Convert an object to its stored form. Returns None for an unreadable object, which is logged and ignored."""
        try:
            return self._convert(obj)
        except Exception as error:
            metadata, (uid, version) = obj["metadata"], identity_of(obj)
            is_logged = uid not in self._unreadable and len(self._unreadable) < MAX_LOGGED
            self._unreadable[uid] = version
            if is_logged:
                name = f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
                log.error("%s %s is ignored, because it cannot be read: %.300s", self.kind.kind, name, error)
            return None


def identity_of(obj: Obj) -> tuple[str, int]:
    """Return the uid of an object, or an empty string if it has none, and its version as a number."""
    metadata = obj["metadata"]
    return str(metadata.get("uid") or ""), version_number(str(metadata.get("resourceVersion") or ""))


def version_number(version: str) -> int:
    """Convert a resourceVersion to a number, or to 0 if it is not a number."""
    return int(version) if version.isdecimal() and len(version) < 20 else 0


async def sleep(seconds: float) -> None:
    """Sleep for a random part of `seconds`, at least half, so that processes do not all send requests at once."""
    await asyncio.sleep(seconds * random.uniform(0.5, 1.0))
