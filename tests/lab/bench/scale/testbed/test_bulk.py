"""Many requests side by side, on a real HTTP server."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from bench.scale.testbed.bulk import BulkClient, Call, RefusedError


@dataclass
class Server:
    url: str = ""
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    now: int = 0
    most: int = 0
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Statuses of the next requests for a path; 200 without one."""

    async def handle(self, request: web.Request) -> web.Response:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01)
        self.now -= 1
        self.seen.append((request.method, request.path, await request.json()))
        status = self.answers.get(request.path, [])
        return web.json_response(
            {"version": len(self.seen)}, status=status.pop(0) if status else 200, headers={"Retry-After": "0"}
        )


@pytest.fixture
def server() -> Iterator[Server]:
    found, ready, loop = Server(), threading.Event(), asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", found.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield found
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)


def test_every_request_is_sent_once_and_no_more_than_allowed_at_a_time(server: Server) -> None:
    BulkClient(server.url, at_once=5).send([Call("POST", f"/{n}", {"n": n})] for n in range(60))
    assert sorted(body["n"] for _, _, body in server.seen) == list(range(60))
    assert 1 < server.most <= 5


def test_requests_of_a_chain_follow_one_another_and_know_the_response_before(server: Server) -> None:
    first = Call("POST", "/run", {})
    BulkClient(server.url).send([[first, Call("PATCH", "/run/status", body_after=lambda made: made)]])
    assert server.seen == [("POST", "/run", {}), ("PATCH", "/run/status", {"version": 1})]


def test_an_overloaded_server_is_asked_again_and_a_creation_that_it_made_counts(server: Server) -> None:
    server.answers["/run"] = [429, 503, 409]
    BulkClient(server.url).send([[Call("POST", "/run", {})]])
    assert len(server.seen) == 3


@pytest.mark.parametrize("status", [403, 409, 422])
def test_a_refusal_ends_all_with_its_cause(server: Server, status: int) -> None:
    server.answers["/bad"] = [status]
    with pytest.raises(RefusedError, match=f"POST /bad: {status}"):
        BulkClient(server.url, at_once=1).send([Call("POST", path, {})] for path in ("/good", "/bad", "/never"))
    assert [path for _, path, _ in server.seen] == ["/good", "/bad"]


def test_a_server_that_stays_overloaded_is_an_error(server: Server) -> None:
    server.answers["/run"] = [503] * 100
    with pytest.raises(RefusedError, match="503"):
        BulkClient(server.url).send([[Call("POST", "/run", {})]])
    assert len(server.seen) == 6
