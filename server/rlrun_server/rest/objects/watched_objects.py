"""Objects of one kind as the server knows them: listed once, then followed by a watch.

The fields for lists, filters and orders are kept, and beside them the object as compressed JSON, if that is small
and there is memory for it. Other objects are read again when they are needed.
"""

import asyncio
import json
import logging
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from rlrun.api.base.schema import Schema
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj
from rlrun.service.backoff import Backoff

log = logging.getLogger(__name__)

WATCH_SECONDS = 240.0
PAUSE_SECONDS = 1.0
MAX_PAUSE_SECONDS = 30.0
PAGE = 20
"""Number of objects of a list that are converted before the event loop runs other tasks: about 10 ms."""
MAX_OBJECT_BYTES = 32 << 10
"""Compressed bytes of an object that is kept whole. One of 60 kB of JSON has 13 kB."""
MAX_KEPT_BYTES = 64 << 20
"""Compressed bytes of all objects of a kind that are kept whole."""
LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""Annotation with the whole object once more."""
MAX_REMOVED = 10_000
"""Uids of removed objects that are remembered."""
MAX_LOGGED = 20
"""Objects without a summary that are logged after a list."""

S = TypeVar("S", bound=Schema)


class ListingCluster(Protocol):
    """The part of `AsyncKubeClient` that is used."""

    def all_pages(self, kind: ResourceKind) -> AsyncIterator[tuple[list[Obj], str]]:
        """Yield all objects of a kind by pages, with the version from which a watch can begin. Raises ApiError."""
        ...

    async def read_listed(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Raises ApiError."""
        ...

    def watch(self, kind: ResourceKind, version: str, seconds: float) -> AsyncIterator[tuple[str, Obj]]:
        """Yield type and object of each change. Raises ApiError."""
        ...


@dataclass(frozen=True)
class KeptObject(Generic[S]):
    """One object."""

    namespace: str
    name: str
    uid: str
    version: int
    data: bytes | None
    """Compressed JSON. None: it is not kept, and `WatchedObjects.load` reads it."""
    size: int
    """Bytes of its JSON."""
    summary: S
    text: bytes
    """Summary as JSON, which lists are made of."""

    def read(self) -> Obj:
        """Return the object without managed fields and LAST_APPLIED. Raises ValueError if it must be loaded first."""
        if self.data is None:
            raise ValueError(f"{self.namespace}/{self.name} is not kept whole: load it before it is read")
        obj: Obj = json.loads(zlib.decompress(self.data))
        return obj


@dataclass(frozen=True)
class Change(Generic[S]):
    """Creation, change or deletion of an object."""

    kept: KeptObject[S]
    """The current object, or its last state if it was deleted."""
    is_deleted: bool


class WatchedObjects(Generic[S]):
    """All objects of one kind."""

    def __init__(self, cluster: ListingCluster, kind: ResourceKind, summarize: Callable[[Obj], S]) -> None:
        self.kind = kind
        self._cluster = cluster
        self._summarize = summarize
        self._by_name: dict[tuple[str, str], KeptObject[S]] = {}
        self._by_uid: dict[str, KeptObject[S]] = {}
        self._removed: OrderedDict[str, None] = OrderedDict()
        """Objects by uid. A uid is never reused."""
        self._unreadable: set[str] = set()
        """Uids of objects without a summary."""
        self.kept_bytes = 0
        """Compressed bytes of the objects that are kept whole."""
        self.is_listed = False
        """True when all objects were listed once. They may be outdated while the API server is away."""
        self.changes = 0
        """Number of changes so far."""
        self.first_version = 0
        """Version of the first list. Listeners receive all later changes."""
        self.version = 0
        """Version up to which all changes have arrived."""
        self.listeners: list[Callable[[Change[S]], None]] = []
        """Called after each change. They must not wait."""

    def all(self) -> Iterable[KeptObject[S]]:
        """Return all objects, in no order."""
        return self._by_name.values()

    def find(self, namespace: str, name: str) -> KeptObject[S] | None:
        """Return the object with this name."""
        return self._by_name.get((namespace, name))

    def find_uid(self, namespace: str, uid: str) -> KeptObject[S] | None:
        """Return the object with this uid, if it is in the namespace."""
        kept = self._by_uid.get(uid)
        return kept if kept is not None and kept.namespace == namespace else None

    async def load(self, kept: KeptObject[S]) -> KeptObject[S] | None:
        """Return the object such that it can be read, or None if it was deleted. Raises ApiError."""
        if kept.data is not None:
            return kept
        obj = await self._cluster.read_listed(self.kind, kept.namespace or None, kept.name)
        if obj is None or obj["metadata"].get("uid") != kept.uid:
            return None
        return self.to_kept(obj)

    async def follow(self) -> None:
        """Follow the API server until cancelled."""
        pauses = Backoff(PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            try:
                version = await self._list()
                pauses.record_success()
                while True:
                    version = await self._watch(version)
                    # An API server that ends each watch at once must not be asked without a pause.
                    await asyncio.sleep(PAUSE_SECONDS)
            except ApiError as error:
                if error.status == 410:  # the version is too old
                    continue
                log.warning("%s are not up to date: %s", self.kind.plural, error)
            except Exception:
                log.exception("%s are not up to date", self.kind.plural)
            pauses.record_failure(0.0)
            await asyncio.sleep(pauses.pause)

    async def _list(self) -> str:
        before = dict(self._by_uid)
        self._unreadable.clear()
        converted: dict[str, KeptObject[S]] = {}
        version, room = "", MAX_KEPT_BYTES
        async for objects, version in self._cluster.all_pages(self.kind):  # noqa: B007
            for number, obj in enumerate(objects, 1):
                kept = self._kept_or_none(obj)
                if kept is not None:
                    converted[kept.uid] = kept = _fit(kept, room)
                    room -= _bytes_of(kept)
                if number % PAGE == 0:
                    await asyncio.sleep(0)
        for uid, kept in self._by_uid.items():
            if kept is not before.get(uid) and kept.version > version_number(version):
                converted[uid] = kept  # written since the API server made the list
        for uid in before.keys() - converted.keys():
            self._forget(uid)
        known, self._by_uid = self._by_uid, converted
        self._by_name = {(k.namespace, k.name): k for k in converted.values()}
        self.kept_bytes = sum(map(_bytes_of, converted.values()))
        self.version = version_number(version)
        self.changes += 1
        if not self.is_listed:
            self.is_listed = True
            self.first_version = self.version
            return version
        for uid, old in known.items():
            if uid not in converted:
                self._tell(old, is_deleted=True)
        for uid, new in converted.items():
            if uid not in known or known[uid].version != new.version:
                self._tell(new)
        return version

    async def _watch(self, version: str) -> str:
        """Return the version up to which changes have arrived."""
        async for event, obj in self._cluster.watch(self.kind, version, WATCH_SECONDS):
            version = str(obj["metadata"]["resourceVersion"])
            self.version = version_number(version)
            if event == "DELETED":
                self._remove(obj)
            elif event in ("ADDED", "MODIFIED"):
                kept = self._kept_or_none(obj)
                if kept is not None:
                    self._put(kept)
        return version

    def put(self, obj: Obj) -> None:
        """Keep an object that was read or written just now, unless a newer version is kept or it was removed."""
        self._put(self.to_kept(obj))

    def _put(self, new: KeptObject[S]) -> None:
        old = self._by_name.get((new.namespace, new.name))
        if new.uid in self._removed or (old is not None and old.version > new.version):
            return
        self.kept_bytes -= _bytes_of(old)
        new = _fit(new, MAX_KEPT_BYTES - self.kept_bytes)
        self.kept_bytes += _bytes_of(new)
        self._by_name[new.namespace, new.name] = self._by_uid[new.uid] = new
        self.changes += 1
        if old is not None and old.uid != new.uid:
            self._by_uid.pop(old.uid, None)
            self._tell(old, is_deleted=True)
        if old is None or (old.uid, old.version) != (new.uid, new.version):
            self._tell(new)

    def _remove(self, obj: Obj) -> None:
        uid = str(obj["metadata"].get("uid") or "")
        self._forget(uid)
        old = self._by_uid.pop(uid, None)
        if old is not None:
            del self._by_name[old.namespace, old.name]
            self.kept_bytes -= _bytes_of(old)
            self.changes += 1
            self._tell(old, is_deleted=True)

    def _tell(self, kept: KeptObject[S], *, is_deleted: bool = False) -> None:
        for listener in self.listeners:
            listener(Change(kept, is_deleted))

    def _forget(self, uid: str) -> None:
        """Let no request that is answered late keep an object again that was removed."""
        self._removed[uid] = None
        while len(self._removed) > MAX_REMOVED:
            self._removed.popitem(last=False)

    def _kept_or_none(self, obj: Obj) -> KeptObject[S] | None:
        """Convert an object to its kept form. None if it cannot be summarized: lists then omit it."""
        try:
            return self.to_kept(obj)
        except Exception as error:
            metadata = obj.get("metadata") or {}
            uid = str(metadata.get("uid") or "")
            if uid not in self._unreadable and len(self._unreadable) < MAX_LOGGED:
                self._unreadable.add(uid)
                name = f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
                log.error("%s %s is not shown, because it cannot be read: %.300s", self.kind.kind, name, error)
            return None

    def to_kept(self, obj: Obj) -> KeptObject[S]:
        """Convert an object to its kept form."""
        metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
        if LAST_APPLIED in (metadata.get("annotations") or {}):
            metadata["annotations"] = {k: v for k, v in metadata["annotations"].items() if k != LAST_APPLIED}
        stripped = {**obj, "metadata": metadata}
        # Level 1 makes 60 kB of JSON 13 kB in 0.4 ms.
        text = json.dumps(stripped).encode()
        summary = self._summarize(stripped)
        return KeptObject(
            str(metadata.get("namespace") or ""),
            str(metadata["name"]),
            str(metadata.get("uid") or ""),
            version_number(str(metadata.get("resourceVersion") or "")),
            zlib.compress(text, 1),
            len(text),
            summary,
            summary.model_dump_json(by_alias=True, exclude_none=True).encode(),
        )


def _fit(kept: KeptObject[S], room: int) -> KeptObject[S]:
    """Return the object without its JSON, if that is large or has more than `room` bytes."""
    return kept if _bytes_of(kept) <= min(room, MAX_OBJECT_BYTES) else replace(kept, data=None)


def _bytes_of(kept: KeptObject[Any] | None) -> int:
    return 0 if kept is None or kept.data is None else len(kept.data)


def version_number(version: str) -> int:
    """Return a resourceVersion as number. 0: it is none."""
    return int(version) if version.isdecimal() and len(version) < 20 else 0
