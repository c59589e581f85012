"""Which requests of runs and of the operator the trainer of a shared pool accepts."""

import asyncio

import pytest
from rlrun.protocol.shared_pool import MAX_RUNS, MAX_TRAINER_GRANT, TrainerOrder
from rlrun_trainer.runtime.run_deaths import RunDeaths
from rlrun_trainer.server.pool_server import PoolServer
from rlrun_trainer.sessions.trained_runs import TrainedRuns

from tests.support.waiting import until
from tests.unit.rlrun_trainer.conftest import ONE, POOL_TOKEN, TWO, Caller, Pool

STRANGER = Caller("u-3")
ROUTES = (
    ("PUT", ""),
    ("GET", ""),
    ("DELETE", ""),
    ("POST", "/steps/0"),
    ("POST", "/checkpoints/0"),
    ("POST", "/adapters/0"),
    ("GET", "/policies/policy-v000000-0123456789abcdef/adapter_config.json"),
)


@pytest.mark.parametrize("token", [None, "", POOL_TOKEN, TWO.token, STRANGER.token, ONE.entry().token_digest])
async def test_a_session_needs_the_token_of_its_run(pool: Pool, token: str | None) -> None:
    assert (await pool.open(ONE))[0] == 200
    for method, path in ROUTES:
        status, problem = await pool.call(token, method, f"/sessions/{ONE.uid}{path}", {})
        assert (status, problem["reason"]) == (401, "TokenInvalid"), path
        assert "The operator sends the list every few seconds" in problem["message"]
    assert (await pool.state(ONE))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        f"/sessions/{TWO.uid}",
        f"/sessions/{ONE.uid}%2F..%2F{TWO.uid}",
        f"/sessions/{ONE.uid}%2Fsteps",
        f"/sessions/{ONE.uid}0",
        "/sessions/",
        "/sessions",
        "/other",
        "/",
        "/pool-order",
        f"/x/sessions/{ONE.uid}",
    ],
)
async def test_the_token_of_a_run_opens_nothing_else(pool: Pool, path: str) -> None:
    await pool.open(TWO)
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert (await pool.call(ONE.token, method, path, {}))[0] == 401, method


@pytest.mark.parametrize("token", [None, "", ONE.token])
async def test_only_the_token_of_the_pool_changes_the_order(pool: Pool, token: str | None) -> None:
    assert (await pool.call(token, "PUT", "/pool-order", TrainerOrder().to_json_dict()))[0] == 401
    assert set(pool.runs.uids) == {ONE.uid, TWO.uid}


async def test_probes_and_metrics_need_no_token(pool: Pool) -> None:
    for path in ("/healthz", "/readyz"):
        assert await pool.call(None, "GET", path) == (200, "ok\n")
    assert (await pool.call(None, "GET", "/metrics"))[0] == 200


async def test_the_response_names_the_runs_in_whose_folders_the_trainer_may_still_write(pool: Pool) -> None:
    assert await pool.order(ONE, TWO) == (200, {"sessions": [], "clients": []})
    await pool.open(ONE)
    await pool.open(TWO)
    await pool.step(TWO, 0)
    pool.stores[1].may_upload.clear()
    assert await pool.order(ONE) == (200, {"sessions": [ONE.uid, TWO.uid], "clients": []})
    await asyncio.sleep(0)
    assert await pool.order(ONE) == (200, {"sessions": [ONE.uid, TWO.uid], "clients": []}), (
        "it uploads the last checkpoint"
    )
    pool.stores[1].may_upload.set()
    await until(lambda: pool.sessions.names() == [ONE.uid])
    assert await pool.order(ONE) == (200, {"sessions": [ONE.uid], "clients": []})


async def test_an_order_sent_before_the_one_in_force_is_refused(pool: Pool) -> None:
    assert (await pool.order(ONE, TWO, number=10_000_000))[0] == 200
    status, problem = await pool.order(ONE, number=9_999_999)
    assert (status, problem["reason"]) == (409, "InvalidRequest")
    assert (await pool.open(TWO))[0] == 200


async def test_the_largest_order_is_accepted_and_a_larger_body_is_not_read(pool: Pool) -> None:
    pool.trainer._sessions = None
    callers = [Caller(f"{number:064}", is_client=True) for number in range(MAX_RUNS)]
    status, body = await pool.order(*callers, grant="g" * MAX_TRAINER_GRANT)
    assert (status, len(body["clients"]), len(pool.runs.uids)) == (200, MAX_RUNS, MAX_RUNS)
    assert (await pool.call(POOL_TOKEN, "PUT", "/pool-order", data=b" " * (2**21 + 1)))[0] == 413


@pytest.mark.parametrize("body", [{"runs": [{}]}, {"runs": [ONE.entry().to_json_dict()] * 2}, {"other": 1}])
async def test_an_invalid_order_changes_nothing(pool: Pool, body: object) -> None:
    status, problem = await pool.call(POOL_TOKEN, "PUT", "/pool-order", body)
    assert (status, problem["reason"]) == (422, "InvalidRequest")
    assert set(pool.runs.uids) == {ONE.uid, TWO.uid}


@pytest.mark.parametrize("token", [None, ""])
def test_a_pool_without_a_token_has_no_server(token: str | None) -> None:
    with pytest.raises(ValueError, match="Set RLRUN_TOKEN"):
        PoolServer(token, TrainedRuns(RunDeaths(None)))
