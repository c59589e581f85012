"""A proxy between the operator and the API server that counts calls and breaks them as it is told.

It speaks plain HTTP to the operator and TLS, with the administrator's certificate, to the API server, and runs in a
thread of its own. Watches pass through line by line, and can be cut or answered with 410 in mid-stream.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from aiohttp import ClientError, ClientSession, ClientTimeout, TCPConnector, web

from tests.support.api_address import api_address

HOP_BY_HOP = {
    "connection",
    "content-length",
    "host",
    "transfer-encoding",
    "keep-alive",
    "accept-encoding",
    "content-encoding",
}
GONE = {
    "type": "ERROR",
    "object": {
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 410, "reason": "Expired",
        "message": "too old resource version",
    },
}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One call of the operator."""

    index: int
    method: str
    path: str
    watch: bool

    @property
    def lease(self) -> bool:
        """Whether it is about leadership."""
        return "/leases" in self.path


@dataclass(frozen=True)
class Answer:
    """What the proxy does with a call; the default passes it on."""

    status: int = 0
    """Answer this instead of asking the API server; 0 asks it."""
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0
    """Seconds to wait first."""
    gone: bool = False
    """Answer a watch with an event of type ERROR and status 410, as the API server does for a version that is too old.
    """
    silent: bool = False
    """Keep the connection open and never answer."""
    drop: bool = False
    """Close the connection without an answer."""
    drop_after: bool = False
    """Ask the API server, and close the connection without its answer."""


Decide = Callable[[Request], Answer]


def passes(_: Request) -> Answer:
    """Breaks nothing."""
    return Answer()


@dataclass
class Proxy:
    """Where the operator finds the API server, and what becomes of its calls."""

    url: str = ""
    decide: Decide = passes
    requests: list[Request] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _watches: "set[asyncio.Queue[str]]" = field(default_factory=set)

    def end_watches(self, how: str) -> int:
        """Ends all open watches, `gone` with an error of 410 in them, `cut` with a closed connection; says how many."""
        found = list(self._watches)
        for queue in found:
            assert self._loop is not None
            self._loop.call_soon_threadsafe(queue.put_nowait, how)
        return len(found)

    def kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig that leads here."""
        named = {"clusters": [{"name": "c", "cluster": {"server": self.url}}], "users": [{"name": "u", "user": {}}]}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", **named, "contexts": [context], "current-context": "x"}
        path.write_text(yaml.safe_dump(config))
        return path


@contextmanager
def running(kubeconfig: Path) -> Iterator[Proxy]:
    """A proxy to the API server of that kubeconfig."""
    server, context = api_address(kubeconfig)
    proxy, ready = Proxy(), threading.Event()
    stop: list[Callable[[], object]] = []

    async def serve() -> None:
        proxy._loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        stop.append(lambda: proxy._loop and proxy._loop.call_soon_threadsafe(ended.set))
        connector = TCPConnector(ssl=context, limit=0)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), trust_env=False) as session:
            app = web.Application(client_max_size=1 << 26)

            async def handle(request: web.Request) -> web.StreamResponse:
                return await _handle(proxy, session, server, request)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await ended.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    if not ready.wait(10):
        raise TimeoutError("the proxy did not start")
    try:
        yield proxy
    finally:
        stop[0]()
        thread.join(10)


async def _handle(proxy: Proxy, session: ClientSession, server: str, request: web.Request) -> web.StreamResponse:
    watch = request.query.get("watch") in ("true", "1")
    call = Request(len(proxy.requests), request.method, request.path, watch)
    proxy.requests.append(call)
    answer = proxy.decide(call)
    if answer.delay:
        await asyncio.sleep(answer.delay)
    if answer.silent:
        await asyncio.Event().wait()
    if answer.drop:
        return _dropped(request)
    if answer.gone:
        return web.Response(body=json.dumps(GONE).encode() + b"\n", content_type="application/json")
    if answer.status:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": answer.status, "reason": "Storm"}
        return web.json_response(body | {"message": "in a storm"}, status=answer.status, headers=dict(answer.headers))
    headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
    try:
        upstream = await session.request(
            request.method, f"{server}{request.raw_path}", headers=headers, data=await request.read() or None
        )
    except ClientError:
        return _dropped(request)
    async with upstream:
        if answer.drop_after:
            # The response to a watch ends only when its time is over.
            if not watch:
                await upstream.read()
            return _dropped(request)
        if watch and upstream.status == 200:
            return await _stream(proxy, request, upstream)
        body_bytes = await upstream.read()
        kept = {n: v for n, v in upstream.headers.items() if n.lower() not in HOP_BY_HOP}
        return web.Response(body=body_bytes, status=upstream.status, headers=kept)


async def _stream(proxy: Proxy, request: web.Request, upstream: "object") -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    orders: asyncio.Queue[str] = asyncio.Queue()
    proxy._watches.add(orders)
    reading: asyncio.Task[bytes] | None = None
    ordered = asyncio.create_task(orders.get())
    try:
        while True:
            reading = reading or asyncio.create_task(upstream.content.readline())  # type: ignore[attr-defined]
            done, _ = await asyncio.wait({reading, ordered}, return_when=asyncio.FIRST_COMPLETED)
            if ordered in done:
                if ordered.result() == "gone":
                    await response.write(json.dumps(GONE).encode() + b"\n")
                    await response.write_eof()
                    return response
                return _dropped(request, response)
            line = reading.result()
            reading = None
            if not line:
                await response.write_eof()
                return response
            await response.write(line)
    except (ClientError, ConnectionError):
        return _dropped(request, response)
    finally:
        proxy._watches.discard(orders)
        ordered.cancel()
        if reading is not None:
            reading.cancel()


def _dropped(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.close()
    return response or web.Response(status=502)
