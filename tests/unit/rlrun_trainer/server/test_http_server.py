import aiohttp
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun_trainer.server.http_server import Server


async def test_sessions_and_policies_need_the_token_of_the_run() -> None:
    async with TestServer(Server("secret").application()) as server, aiohttp.ClientSession() as http:
        for path in ("/sessions/x", "/sessions/x/policies/p/manifest.json"):
            for headers, status in (({}, 401), (bearer("other"), 401), (bearer("secret"), 503)):
                async with http.get(server.make_url(path), headers=headers) as response:
                    assert response.status == status, path
        async with http.put(server.make_url("/sessions/x"), json={}) as response:
            assert response.status == 401
        for path in ("/healthz", "/metrics"):
            async with http.get(server.make_url(path)) as response:
                assert response.status == 200
