import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry
from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import GroupCounts, RunPhase, RunStatus
from rlrun_orchestrator.status.status_server import status_application, with_version


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


STATUS = RunStatus(phase=RunPhase.running, step=3, max_steps=10)


def version(**changes: object) -> str:
    return with_version(STATUS.model_copy(update=changes)).version


def test_the_version_is_that_of_the_content_without_estimates() -> None:
    assert version() == version(eta_seconds=3.0, groups=GroupCounts(in_flight=1), version="earlier", policy_version=3)
    assert len({version(), version(step=4), version(phase=RunPhase.completed), version(reward_errors=1)}) == 4


async def test_the_status_has_its_version() -> None:
    app = status_application(lambda: STATUS, CollectorRegistry())
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        for params, expected in (({}, version()), ({"since": ""}, version()), ({"since": "other"}, version())):
            response = await http.get(server.make_url("/status"), params=params)
            assert (await response.json()).get("version") == expected


@pytest.mark.parametrize("wait", ["-1", "61", "soon", "nan"])
async def test_a_wait_has_a_limit(wait: str) -> None:
    app = status_application(lambda: STATUS, CollectorRegistry())
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        response = await http.get(server.make_url("/status"), params={"since": version(), "wait": wait})
        assert response.status == 400
        assert "must be a number of seconds from 0 to 60" in await response.text()
