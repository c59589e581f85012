"""What a pool's sidecar removes: adapters and files of runs that are not in the order."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
from rlrun.protocol.access import bearer
from rlrun.protocol.shared_pool import ORDER_FILE, engine_name
from rlrun_adapter_sidecar.pools import pool_runs
from rlrun_adapter_sidecar.pools.pool_runs import PoolRuns

from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, POOL_TOKEN, TWO, Pool, order_of


def folders(pool: Pool) -> list[str]:
    return sorted(path.name for path in pool.folder.iterdir() if path.is_dir())


async def test_a_run_that_leaves_is_refused_and_its_adapters_and_files_are_removed(pool: Pool) -> None:
    kept, left = pool.publish(ONE, 1), pool.publish(TWO, 1)
    await pool.put(ONE, kept)
    await pool.put(TWO, left)
    assert (await pool.order(ONE))[0] == 200
    assert (await pool.call(TWO.token, "GET", "/adapters"))[0] == 401
    assert await pool.runs.clean()
    assert list(pool.engine.loaded) == [engine_name(ONE.uid, kept.name)]
    assert folders(pool) == [ONE.uid]
    assert (pool.folder / ONE.uid / kept.name).is_dir()
    assert (pool.folder / ORDER_FILE).is_file()
    # It may come back.
    await pool.order(ONE, TWO)
    assert (await pool.put(TWO, left))[0] == 200


async def test_a_load_in_progress_ends_with_its_run(pool: Pool) -> None:
    policy = pool.publish(TWO, 1)
    pool.store.may_download.clear()
    load = asyncio.create_task(pool.put(TWO, policy))
    await until(lambda: pool.store.started == 1)
    await pool.order(ONE)
    await asyncio.wait({load})
    pool.store.may_download.set()
    await until(lambda: not any(path.name.startswith(".policy") for path in (pool.folder / TWO.uid).iterdir()))
    assert await pool.runs.clean()
    assert (pool.engine.loads, pool.engine.loaded) == (0, {})
    assert folders(pool) == [ONE.uid]


async def test_a_restarted_sidecar_removes_what_earlier_orders_left(pool: Pool) -> None:
    policy = pool.publish(ONE, 1)
    await pool.put(ONE, policy)
    await pool.put(TWO, pool.publish(TWO, 1))
    (pool.folder / ONE.uid / f".{policy.name}-abc").mkdir()
    (pool.folder / ".u-9").mkdir()
    async with aiohttp.ClientSession(headers=bearer(POOL_TOKEN)) as http:
        restarted = PoolRuns(http, pool.http, pool.store, pool.settings)
        await restarted.apply(order_of(ONE))
        assert await restarted.clean()
    assert list(pool.engine.loaded) == [engine_name(ONE.uid, policy.name)]
    assert folders(pool) == [ONE.uid]
    assert [path.name for path in (pool.folder / ONE.uid).iterdir()] == [policy.name]


async def test_removals_are_repeated_until_the_engine_responds(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_runs, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(pool_runs, "CHECK_SECONDS", 3600.0)
    await pool.put(TWO, pool.publish(TWO, 1))
    await pool.order(ONE)
    pool.engine.list_status = 503
    cleaning = asyncio.create_task(pool.runs.keep_clean())
    await until(lambda: folders(pool) == [ONE.uid])
    assert pool.engine.loaded
    pool.engine.list_status, pool.engine.keeps = 200, True
    await asyncio.sleep(0.05)
    assert pool.engine.loaded
    pool.engine.keeps = False
    await until(lambda: pool.engine.loaded == {})
    cleaning.cancel()


async def test_a_folder_that_cannot_be_written_is_reported(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    status, problem = await pool.order(ONE)
    assert (status, problem["reason"]) == (503, "AdaptersFolderNotWritable")
    assert await pool.names(TWO) == [], "the former order is in force"
