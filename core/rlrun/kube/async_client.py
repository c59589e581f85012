"""Asynchronous Kubernetes client. Objects of all kinds are plain dictionaries."""

import asyncio
import builtins
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, aclosing, nullcontext
from dataclasses import replace

from rlrun.constants import CONFLICT, FIELD_MANAGER
from rlrun.kube import requests
from rlrun.kube.async_transport import REQUEST_SECONDS, RESPONSE_LIMIT, AsyncTransport, too_large
from rlrun.kube.errors import TIMEOUT, TOO_LARGE, ApiError, find_log_error
from rlrun.kube.kinds import ALL, SECRET, ResourceKind
from rlrun.kube.objects import Labels, Obj
from rlrun.kube.refusals import ObjectRefused, find_other_owner, find_refusal
from rlrun.kube.requests import KubeRequest, label_selector

LOG_LINES = 200_000
"""Number of lines requested from the end of a log. `limitBytes` cannot be used instead, because it keeps the first
bytes of the log rather than the last.
"""
RUN_PAGE_LIMIT = 4 << 20
"""Maximum size in bytes of a page with objects of one run. Eight such pages are read concurrently, and parsed JSON
takes up four times as much memory as its text.
"""
PAGE_LIMIT = 8 << 20
"""Maximum size in bytes of a page of which only parts of the objects stay in memory, and of an event of a watch."""
VERSION_OF_NONE = "1"
"""resourceVersion that no object has, because etcd's first write has revision 2. A server-side apply with this version
creates the object, and fails with 409 if the object exists.
"""


Writing = Callable[[KubeRequest], AbstractContextManager[Callable[[Obj], None]]]
"""Function that returns a context for a write request. The context yields a function that must be called with the API
server's response.
"""


class AsyncKubeClient:
    """Client of the API server with the operator's field manager.

    All reads go to the server, never to a cache, and every request has a timeout.
    """

    def __init__(
        self, transport: AsyncTransport, *, open_seconds: float = REQUEST_SECONDS, writing: Writing | None = None
    ) -> None:
        """`open_seconds` is the time in which the API server must respond to a watch request. `writing` returns a
        context that is entered around each write, so that informers can store the response.
        """
        self._transport = transport
        self._open_seconds = open_seconds
        self._writing = writing or (lambda _: nullcontext(lambda _: None))

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def get(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Raises ApiError, including if its kind is not installed."""
        try:
            return await self._transport.send(requests.get(kind, namespace, name))
        except ApiError as error:
            if error.is_object_missing:
                return None
            raise

    async def list(
        self,
        kind: ResourceKind,
        namespace: str | None = None,
        labels: Labels | None = None,
        *,
        fields: str = "",
        keep: Callable[[Obj], Obj] | None = None,
    ) -> builtins.list[Obj]:
        """Return the complete list of objects with these labels, in all namespaces if `namespace` is None.

        `fields` is a field selector; the API server responds with 400 if the kind does not support it. If `keep` is
        given, pages have at most PAGE_LIMIT bytes, and the result contains what `keep` returns for each object. A list
        about one run or pool (every label has a value) or one object (`fields` in a namespace) fails if a page exceeds
        RUN_PAGE_LIMIT bytes or the whole list RESPONSE_LIMIT bytes. Raises ApiError.
        """
        request = requests.list_page(kind, namespace, labels, fields=fields)
        if (labels and all(labels.values())) or (namespace and fields):
            objects = await self._list_of_one(request)
            return objects if keep is None else [keep(obj) for obj in objects]
        pages = self._pages(replace(request, limit_bytes=PAGE_LIMIT) if keep else request)
        return [keep(obj) if keep else obj async for items, _ in pages for obj in items]

    async def all_pages(
        self, kind: ResourceKind, namespace: str | None = None, labels: Labels | None = None
    ) -> AsyncIterator[tuple[builtins.list[Obj], str]]:
        """Yield all objects with these labels page by page, with the version from which a watch can start.

        Pages have at most PAGE_LIMIT bytes. The list is complete if the iteration ends without ApiError.
        """
        async for page in self._pages(replace(requests.list_page(kind, namespace, labels), limit_bytes=PAGE_LIMIT)):
            yield page

    async def metadata_pages(
        self, kind: ResourceKind, namespace: str | None, labels: Labels | None
    ) -> AsyncIterator[tuple[builtins.list[Obj], str]]:
        """Yield the metadata of all objects with these labels, a page at a time, with the version of the list."""
        request = requests.list_metadata_page(kind, namespace, labels)
        async for page in self._pages(replace(request, limit_bytes=PAGE_LIMIT)):
            yield page

    async def read_listed(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return the object, or None if it does not exist. Uses a list request, for accounts that may list but not get.
        Raises ApiError.
        """
        request = requests.list_named(kind, namespace, name)
        items = requests.parse_page(request, await self._transport.send(request))
        return items[0] if items else None

    async def _list_of_one(self, request: KubeRequest) -> builtins.list[Obj]:
        """Return a list about one run, pool or object. Raises ApiError, including for a list above RESPONSE_LIMIT."""
        request = replace(request, limit_bytes=RUN_PAGE_LIMIT)
        objects: builtins.list[Obj] = []
        later_bytes = 0
        async for items, _ in self._pages(request, may_shrink=False):
            # A second page is rare. The transport limits the first one.
            later_bytes += len(json.dumps(items, ensure_ascii=False).encode()) if objects else 0
            if later_bytes > RESPONSE_LIMIT - RUN_PAGE_LIMIT:
                raise too_large(request, RESPONSE_LIMIT)
            objects += items
        return objects

    async def _pages(
        self, request: KubeRequest, *, may_shrink: bool = True
    ) -> AsyncIterator[tuple[builtins.list[Obj], str]]:
        """Yield each page with the version of the list, starting with `request`.

        With `may_shrink`, a page that is too large is requested again with fewer objects.
        """
        while True:
            try:
                page = await self._transport.send(request)
            except ApiError as error:
                smaller = requests.smaller_page(request) if error.reason == TOO_LARGE and may_shrink else None
                if smaller is None:
                    raise
                request = smaller
                continue
            yield requests.parse_page(request, page), requests.version_of(page)
            following = requests.next_page(request, page)
            if following is None:
                return
            request = following

    async def watch(
        self, kind: ResourceKind, namespace: str | None, labels: Labels | None, version: str, seconds: float
    ) -> AsyncGenerator[tuple[str, Obj], None]:
        """Yield the type and object of each event after `version`, including bookmarks, for at most `seconds`.

        `labels` select the objects. Raises ApiError, with status 410 if the version is too old.
        """
        request = requests.watch(kind, namespace, label_selector(labels or {}), "", version, seconds)
        async with aclosing(self._events(request)) as events:
            async for event in events:
                yield event

    async def _events(self, request: KubeRequest) -> AsyncGenerator[tuple[str, Obj], None]:
        async with AsyncExitStack() as stack:
            try:
                # The API server sends the headers of a watch immediately, and changes later.
                async with asyncio.timeout(self._open_seconds):
                    chunks = await stack.enter_async_context(self._transport.stream(request))
            except TimeoutError:
                message = f"the API server did not respond within {self._open_seconds:.0f} s"
                raise ApiError(0, TIMEOUT, message, action=str(request)) from None
            rest = b""
            async for chunk in chunks:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield requests.parse_event(request, line)
                if len(rest) > PAGE_LIMIT:
                    raise too_large(request, PAGE_LIMIT)

    async def _write(self, request: KubeRequest) -> Obj:
        with self._writing(request) as store_answer:
            answer = await self._transport.send(request)
            store_answer(answer)
        return answer

    async def create(self, obj: Obj) -> Obj:
        """Create the object. Raises ApiError, with status 409 if it already exists."""
        return await self._write(requests.create(obj, FIELD_MANAGER))

    async def dry_run(self, obj: Obj) -> None:
        """Check that the API server would create the object, without creating it. Raises ApiError if it would not."""
        await self._transport.send(requests.dry_run(obj, FIELD_MANAGER))

    async def replace(self, obj: Obj) -> Obj:
        """Replace the object. Raises ApiError, with status 409 if its resourceVersion is outdated."""
        return await self._write(requests.replace(obj, FIELD_MANAGER))

    async def apply(self, obj: Obj) -> Obj:
        """Apply the object with server-side apply. Raises ApiError."""
        return await self._write(requests.apply(obj, FIELD_MANAGER))

    async def apply_own(self, obj: Obj, *, is_new: bool) -> Obj:
        """Apply an object of a run or a pool. Raises ObjectRefused if a retry cannot succeed, otherwise ApiError.

        A new object is only created if its name is free, because server-side apply would silently take over another
        owner's object.
        """
        try:
            return await (self._create_by_apply(obj) if is_new else self.apply(obj))
        except ObjectRefused:
            raise
        except ApiError as error:
            refusal = find_refusal(obj, error)
            if refusal is None:
                raise
            raise refusal from error

    async def _create_by_apply(self, obj: Obj) -> Obj:
        metadata = obj["metadata"]
        try:
            return await self.apply({**obj, "metadata": {**metadata, "resourceVersion": VERSION_OF_NONE}})
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            existing = await self._read_existing(ALL[obj["kind"]], metadata["namespace"], metadata["name"])
            if existing is None:
                raise
        other_owner = find_other_owner(obj, existing)
        if other_owner is not None:
            raise other_owner
        return await self.apply(obj)

    async def _read_existing(self, kind: ResourceKind, namespace: str, name: str) -> Obj | None:
        # The operator may get Secrets, but only list other kinds. This is the only request that needs both cases.
        if kind == SECRET:
            return await self.get(kind, namespace, name)
        return await self.read_listed(kind, namespace, name)

    async def apply_status(self, obj: Obj, manager: str = FIELD_MANAGER) -> Obj:
        """Apply the object's status with server-side apply. Raises ApiError, with status 404 if the object is missing.

        Fields that `manager` applied before and that are missing now are removed. Fields of other managers are kept.
        """
        return await self._write(requests.apply(obj, manager, "status"))

    async def patch(self, kind: ResourceKind, namespace: str | None, name: str, changes: Obj) -> Obj:
        """Patch the object with a JSON merge patch. Raises ApiError."""
        return await self._write(requests.patch(kind, namespace, name, changes, FIELD_MANAGER))

    async def patch_status(self, kind: ResourceKind, namespace: str | None, name: str, changes: Obj) -> Obj:
        """Patch the status with a JSON merge patch. Raises ApiError, 409 if the resourceVersion is outdated."""
        return await self._write(requests.patch(kind, namespace, name, changes, FIELD_MANAGER, "status"))

    async def delete(
        self,
        kind: ResourceKind,
        namespace: str | None,
        name: str,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete the object. Returns False if there is no such object, or if it does not match the given `uid` or
        `resource_version`.

        If `grace_seconds` is None, the object's own grace period is used. Raises ApiError.
        """
        try:
            await self._write(requests.delete(kind, namespace, name, uid, resource_version, grace_seconds))
        except ApiError as error:
            # 409: the object was recreated or has changed.
            if error.is_object_missing or error.status == 409:
                return False
            raise
        return True

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, limit: int) -> bytes | None:
        """Return the last `limit` bytes that the container wrote, or None if there is no log. Raises ApiError."""
        request = requests.log(namespace, pod, container, previous=previous, tail_lines=LOG_LINES)
        try:
            async with self._transport.stream(request) as chunks:
                return (await read_end(chunks, limit))[0]
        except ApiError as error:
            # 400: the container has not started, or has no previous instance.
            if error.status in (400, 404):
                return None
            raise


async def read_end(chunks: AsyncIterator[bytes], limit: int) -> tuple[bytes, bool]:
    """Return the last `limit` bytes of a log, and whether the log was longer. Raises ApiError if the log was
    removed.
    """
    kept, is_cut = bytearray(), False
    async for chunk in chunks:
        kept += chunk
        if len(kept) > 2 * limit:
            del kept[:-limit]
            is_cut = True
    text = bytes(kept[-limit:])
    error = find_log_error(text)
    if error is not None:
        raise error
    return text, is_cut or len(kept) > limit
