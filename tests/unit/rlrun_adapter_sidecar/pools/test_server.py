"""Which requests of runs and of the operator a pool's sidecar accepts."""

import json
import stat

import pytest
from rlrun.protocol.shared_pool import ORDER_FILE, PoolOrder, engine_name
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.replica_pool import ReplicaAddresses, ReplicaPool

from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.pools.conftest import GRANT, ONE, POOL_TOKEN, TWO, Caller, Pool, order_of

STRANGER = Caller("u-3", "s3://bucket/other/policy")


@pytest.mark.parametrize("token", [None, "", POOL_TOKEN, STRANGER.token, ONE.entry.token_digest])
async def test_adapters_need_the_token_of_a_run_in_the_order(pool: Pool, token: str | None) -> None:
    name = pool.publish(ONE, 1).name
    for method, path in (("GET", "/adapters"), ("PUT", f"/adapters/{name}"), ("DELETE", f"/adapters/{name}")):
        status, problem = await pool.call(token, method, path)
        assert (status, problem["reason"]) == (401, "TokenInvalid")


@pytest.mark.parametrize("token", [None, "", ONE.token])
async def test_only_the_token_of_the_pool_changes_the_order(pool: Pool, token: str | None) -> None:
    body = order_of(ONE).to_json_dict()
    assert (await pool.call(token, "PUT", "/pool-order", body))[0] == 401
    assert await pool.names(TWO) == []


async def test_probes_and_metrics_need_no_token(pool: Pool) -> None:
    await pool.put(ONE, pool.publish(ONE, 1))
    await pool.put(TWO, pool.publish(TWO, 1))
    for path in ("/healthz", "/readyz"):
        assert await pool.call(None, "GET", path) == (200, "ok\n")
    status, metrics = await pool.call(None, "GET", "/metrics")
    assert status == 200
    assert "rlrun_sidecar_adapters 2.0" in metrics


async def test_the_response_is_the_order_and_the_file_for_the_engine_has_no_grant(pool: Pool) -> None:
    status, body = await pool.order(ONE, number=7)
    assert status == 200
    assert PoolOrder.model_validate(body) == order_of(ONE, number=7)
    assert pool.store.grant == GRANT
    file = pool.folder / ORDER_FILE
    assert json.loads(file.read_text()) == {
        "base": "base",
        "runs": [ONE.entry.to_json_dict()],
        "grant": "",
        "number": 7,
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert not list(pool.folder.glob("*.tmp"))


async def test_an_invalid_order_changes_nothing(pool: Pool) -> None:
    before = (pool.folder / ORDER_FILE).read_text()
    for folder in ("policies", "adapters"):
        bad = PoolOrder(base="base", runs=[STRANGER.entry.model_copy(update={folder: "http://bucket/x"})])
        status, problem = await pool.call(POOL_TOKEN, "PUT", "/pool-order", bad.to_json_dict())
        assert (status, problem["reason"]) == (422, "InvalidRequest")
    assert (pool.folder / ORDER_FILE).read_text() == before
    assert await pool.names(ONE) == []


async def test_a_run_sees_loads_and_unloads_only_its_own_adapters(pool: Pool) -> None:
    first, second = pool.publish(ONE, 1), pool.publish(TWO, 1)
    assert first.name == second.name
    for caller, policy in ((ONE, first), (TWO, second)):
        assert (await pool.put(caller, policy))[1]["adapters"] == [policy.name]
    paths = {engine_name(caller.uid, first.name): str(pool.folder / caller.uid / first.name) for caller in (ONE, TWO)}
    assert pool.engine.loaded == paths
    assert await pool.call(ONE.token, "DELETE", f"/adapters/{first.name}") == (200, {"adapters": []})
    assert list(pool.engine.loaded) == [engine_name(TWO.uid, first.name)]
    assert await pool.names(TWO) == [first.name]


async def test_an_orchestrator_unloads_no_adapter_of_another_run(pool: Pool) -> None:
    """An orchestrator unloads each policy that it finds and does not use."""
    theirs, old, new = pool.publish(TWO, 1, b"theirs"), pool.publish(ONE, 1, b"old"), pool.publish(ONE, 2, b"new")
    await pool.put(TWO, theirs)
    await pool.put(ONE, old)

    async def resolve() -> list[ReplicaAddresses]:
        return [ReplicaAddresses(pool.settings.engine_url, pool.url)]

    pool.http.headers["Authorization"] = f"Bearer {ONE.token}"
    replicas = ReplicaPool(pool.http, resolve, LiveGroups("base").policies, poll_interval=0.02)
    replicas.start()
    await replicas.publish(new, deadline=10, grace=0)
    await until(lambda: engine_name(ONE.uid, old.name) not in pool.engine.loaded)
    await replicas.close()
    assert sorted(pool.engine.loaded) == sorted([engine_name(ONE.uid, new.name), engine_name(TWO.uid, theirs.name)])


async def test_a_run_with_a_new_token_is_the_same_run(pool: Pool) -> None:
    policy = pool.publish(ONE, 1)
    await pool.put(ONE, policy)
    entry = ONE.entry.model_copy(update={"token_digest": TWO.entry.token_digest})
    await pool.runs.apply(PoolOrder(base="base", runs=[entry]))
    assert (await pool.call(ONE.token, "GET", "/adapters"))[0] == 401
    assert await pool.call(TWO.token, "GET", "/adapters") == (200, {"adapters": [policy.name]})
    assert (await pool.put(ONE, policy))[0] == 401
