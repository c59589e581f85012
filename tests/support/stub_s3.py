"""S3 over HTTP that answers what the operator asks of it, or nothing at all, as a test tells it.

It knows one bucket, pages without an end and no uploads in parts. For the rest, `tests/unit/support/test_stub_s3.py`
names the cases of the contract that it shares with a real server.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.support.waiting import until

OPERATIONS = frozenset({"list", "uploads", "get", "put", "delete"})
BUCKET = "rlrun"
SIZE = 7
"""Size of every object in bytes."""


@dataclass
class StubS3:
    """The server in the loop of the test. Deletions take effect when they are answered."""

    keys: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    """Operations in the order of their arrival, also those that get no answer: list, uploads, get, put, delete."""
    silent: frozenset[str] = frozenset()
    """Operations whose requests are accepted and wait for their answer."""
    dropped: set[str] = field(default_factory=set)
    """Operations whose next request finds the connection closed."""
    objects: dict[str, bytes] = field(default_factory=dict)
    """Objects that can be read, by key, also those that were put. All others have a size and no bytes."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes that listings show, by key, if they are others than SIZE and those of `objects`."""
    stalled: frozenset[str] = frozenset()
    """Keys of objects of which one byte is sent, and the rest with the next `answer`."""
    endpoint: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the project's processes read."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def silence(self, *operations: str) -> None:
        """Answer these operations no longer; all of them without a name."""
        self.silent = frozenset(operations) or OPERATIONS

    def answer(self) -> None:
        """Answer everything, also the requests that wait."""
        self.silent = frozenset()
        self.stalled = frozenset()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        operation = _operation(request)
        self.requests.append(operation)
        key, body = request.path.removeprefix(f"/{BUCKET}/"), await request.read()
        await until(lambda: operation not in self.silent)
        if operation in self.dropped:
            self.dropped.discard(operation)
            assert request.transport
            request.transport.abort()
            return web.Response()
        if operation == "delete":
            named = [key] if request.method == "DELETE" else re.findall("<Key>(.*?)</Key>", body.decode())
            self.keys -= set(named)
            self.objects = {known: data for known, data in self.objects.items() if known not in named}
            return _xml("DeleteResult", "")
        if operation == "list":
            known = self.keys | self.objects.keys() | self.sizes.keys()
            keys = sorted(key for key in known if key.startswith(request.query.get("prefix", "")))
            contents = "".join(
                f"<Contents><Key>{key}</Key><Size>{self._size(key)}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for key in keys
            )
            count = f"<IsTruncated>false</IsTruncated><KeyCount>{len(keys)}</KeyCount>"
            return _xml("ListBucketResult", count + contents)
        if operation == "uploads":
            return _xml("ListMultipartUploadsResult", "<IsTruncated>false</IsTruncated>")
        if operation == "put":
            self.keys.add(key)
            self.objects[key] = body
            return web.Response(headers={"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'})
        if operation == "get" and key in self.objects:
            return await self._send(request, key)
        return web.Response(status=404, text="<Error><Code>NoSuchKey</Code></Error>", content_type="application/xml")

    def _size(self, key: str) -> int:
        return self.sizes.get(key, len(self.objects[key]) if key in self.objects else SIZE)

    async def _send(self, request: web.Request, key: str) -> web.StreamResponse:
        data = self.objects[key]
        response = web.StreamResponse(headers={"content-length": str(len(data))})
        await response.prepare(request)
        await response.write(data[:1])
        await until(lambda: key not in self.stalled)
        await response.write(data[1:])
        return response


@asynccontextmanager
async def stub_s3() -> AsyncIterator[StubS3]:
    """Start the server on a free port. It answers."""
    server = StubS3()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.answer()
        await runner.cleanup()


def _operation(request: web.Request) -> str:
    if request.method in {"PUT", "DELETE"}:
        return request.method.lower()
    named = {"delete": "delete", "uploads": "uploads", "list-type": "list"}
    return next((operation for key, operation in named.items() if key in request.query), "get")


def _xml(root: str, inner: str) -> web.Response:
    return web.Response(text=f"<?xml version='1.0'?><{root}>{inner}</{root}>", content_type="application/xml")
