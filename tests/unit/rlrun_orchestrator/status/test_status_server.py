import aiohttp
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry
from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun_orchestrator.status.status_server import status_application


async def test_the_status_needs_the_token_of_the_run_and_probes_do_not() -> None:
    app = status_application(lambda: RunStatus(phase=RunPhase.running, max_steps=1), CollectorRegistry(), "secret")
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        for path, headers, status in (
            ("/status", {}, 401),
            ("/status", bearer("other"), 401),
            ("/status", bearer("secret"), 200),
            ("/healthz", {}, 200),
            ("/readyz", {}, 200),
            ("/metrics", {}, 200),
        ):
            async with http.get(server.make_url(path), headers=headers) as response:
                assert response.status == status, path
