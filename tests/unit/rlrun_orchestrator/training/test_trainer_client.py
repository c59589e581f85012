"""Errors that the client raises for the responses of a trainer."""

import hashlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.access import bearer
from rlrun.protocol.shared_pool import TrainedRun, TrainerOrder
from rlrun.service.errors import RequestRejected, ServiceUnavailable
from rlrun_orchestrator.training.trainer_client import TrainerClient
from rlrun_trainer.runtime.run_deaths import RunDeaths
from rlrun_trainer.server.pool_server import PoolServer
from rlrun_trainer.sessions.trained_runs import TrainedRuns


@pytest.fixture
async def runs() -> TrainedRuns:
    return TrainedRuns(RunDeaths(None))


@pytest.fixture
def is_shared() -> bool:
    return True


@pytest.fixture
async def client(runs: TrainedRuns, is_shared: bool) -> AsyncIterator[TrainerClient]:
    server = TestServer(PoolServer("pool", runs).application())
    await server.start_server()
    async with aiohttp.ClientSession(headers=bearer("token")) as http:
        yield TrainerClient(http, str(server.make_url("/")), "u-1", "orchestrator", is_shared=is_shared)
    await server.close()


async def test_a_shared_trainer_that_does_not_know_the_token_yet_is_unavailable(
    client: TrainerClient, runs: TrainedRuns
) -> None:
    with pytest.raises(ServiceUnavailable, match="TokenInvalid") as refused:
        await client.state()
    assert refused.value.status == 401
    digest = hashlib.sha256(b"token").hexdigest()
    runs.apply(TrainerOrder(runs=[TrainedRun(uid="u-1", token_digest=digest, folder="s3://b/u", keep_policies=1)]))
    with pytest.raises(ServiceUnavailable, match="TrainerLoading"):
        await client.state()


@pytest.mark.parametrize("is_shared", [False])
async def test_a_trainer_of_one_run_that_does_not_know_the_token_is_an_error(client: TrainerClient) -> None:
    with pytest.raises(RequestRejected, match="TokenInvalid") as refused:
        await client.state()
    assert refused.value.status == 401
