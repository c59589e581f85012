import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun.service.access import token_middleware
from rlrun.service.server import healthz


async def test_a_server_asks_for_the_token_before_it_reads_the_request() -> None:
    seen: list[str] = []

    async def handle(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(text="ok")

    app = web.Application(middlewares=[token_middleware("secret")])
    app.router.add_get("/healthz", healthz)
    app.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        for method, path in (
            ("GET", "/status"),
            ("PUT", "/sessions/x"),
            ("DELETE", "/adapters/x"),
            ("POST", "/groups"),
        ):
            async with http.request(method, server.make_url(path)) as response:
                assert response.status == 401
                assert (await response.json())["reason"] == "TokenInvalid"
                assert response.headers["WWW-Authenticate"] == "Bearer"
            async with http.request(method, server.make_url(path), headers=bearer("other")) as response:
                assert response.status == 401
        assert seen == []
        async with http.get(server.make_url("/healthz")) as response:
            assert response.status == 200
        async with http.put(server.make_url("/sessions/x"), headers=bearer("secret")) as response:
            assert response.status == 200
    assert seen == ["/sessions/x"]
