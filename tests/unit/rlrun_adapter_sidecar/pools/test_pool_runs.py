"""Orders of a pool's sidecar, and what it removes: adapters and files of runs that are not in the order."""

import asyncio
import json
from pathlib import Path

import pytest
from rlrun.protocol.shared_pool import ORDER_FILE, engine_name
from rlrun.service.errors import ProblemError
from rlrun_adapter_sidecar.pools import pool_runs

from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, TWO, Pool, order_of


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
    pool.clock.now += 119
    assert await pool.runs.clean()
    assert (pool.folder / TWO.uid / left.name).is_dir(), "a request in the engine may need the files again"
    pool.clock.now += 2
    assert await pool.runs.clean()
    assert folders(pool) == [ONE.uid]
    assert (pool.folder / ONE.uid / kept.name).is_dir()
    assert (pool.folder / ORDER_FILE).is_file()
    # It may come back.
    await pool.order(ONE, TWO)
    assert (await pool.put(TWO, left))[0] == 200
    pool.clock.now += 3600
    await pool.order(ONE)
    pool.clock.now += 119
    assert await pool.runs.clean()
    assert (pool.folder / TWO.uid / left.name).is_dir(), "the time counts from the last time that the run left"


@pytest.mark.parametrize("failure", ["unload", "list"])
async def test_files_of_adapters_that_could_not_be_unloaded_are_kept(pool: Pool, failure: str) -> None:
    left = pool.publish(TWO, 1)
    await pool.put(TWO, left)
    await pool.order(ONE)
    pool.clock.now += 121
    pool.engine.keeps, pool.engine.list_status = failure == "unload", 503 if failure == "list" else 200
    assert not await pool.runs.clean()
    assert (pool.folder / TWO.uid / left.name).is_dir()
    pool.engine.keeps, pool.engine.list_status = False, 200
    assert await pool.runs.clean()
    assert folders(pool) == [ONE.uid]


@pytest.mark.parametrize(("behind", "status"), [(1, 409), (299_999, 409), (300_000, 200)])
async def test_an_order_that_was_sent_before_the_one_in_force_is_refused(pool: Pool, behind: int, status: int) -> None:
    number = 10_000_000
    assert (await pool.order(ONE, TWO, number=number))[0] == 200
    assert (await pool.order(ONE, TWO, number=number))[0] == 200
    answer, body = await pool.order(ONE, number=number - behind)
    assert answer == status
    assert (await pool.call(TWO.token, "GET", "/adapters"))[0] == (200 if status == 409 else 401)
    if status == 409:
        assert body["reason"] == "InvalidRequest"
        assert "older than the list in force" in body["message"]
        assert json.loads((pool.folder / ORDER_FILE).read_text())["number"] == number
    assert (await pool.order(ONE, number=number + 1))[0] == 200


async def test_a_restarted_sidecar_keeps_the_runs_of_the_newest_order(pool: Pool) -> None:
    await pool.order(ONE, TWO, number=10_000_000)
    restarted = pool.restart()
    await restarted.start(order_of(ONE).model_copy(update={"grant": "newer grant"}))
    assert restarted.find(f"Bearer {TWO.token}") is not None
    assert pool.store.grant == "newer grant"
    with pytest.raises(ProblemError, match="older than the list in force"):
        await restarted.apply(order_of(ONE, number=9_999_999))


@pytest.mark.parametrize("file", ["", "{", "{}", "[]"])
async def test_without_a_sent_order_a_sidecar_starts_with_the_mounted_one(pool: Pool, file: str) -> None:
    (pool.folder / ORDER_FILE).write_text(file or order_of(ONE, TWO).model_dump_json(by_alias=True))
    restarted = pool.restart()
    await restarted.start(order_of(ONE))
    assert restarted.find(f"Bearer {ONE.token}") is not None
    assert restarted.find(f"Bearer {TWO.token}") is None


async def test_polls_of_all_runs_share_a_listing(pool: Pool) -> None:
    before = pool.engine.listings
    await asyncio.gather(*[pool.names(caller) for caller in (ONE, TWO) * 5])
    assert pool.engine.listings == before + 1
    pool.clock.now += 0.5
    await asyncio.gather(*[pool.names(caller) for caller in (ONE, TWO) * 5])
    assert pool.engine.listings == before + 2
    # A change is visible at once.
    policy = pool.publish(ONE, 1)
    await pool.put(ONE, policy)
    assert await pool.names(ONE) == [policy.name]
    await pool.call(ONE.token, "DELETE", f"/adapters/{policy.name}")
    assert await pool.names(ONE) == []


async def test_polls_share_the_failure_of_a_listing(pool: Pool) -> None:
    before, pool.engine.list_status = pool.engine.listings, 500
    answers = await asyncio.gather(*[pool.call(ONE.token, "GET", "/adapters") for _ in range(5)])
    assert [(status, problem["reason"]) for status, problem in answers] == [(503, "EngineUnreachable")] * 5
    assert pool.engine.listings == before + 1


async def test_a_load_in_progress_ends_with_its_run(pool: Pool) -> None:
    policy = pool.publish(TWO, 1)
    pool.store.may_download.clear()
    load = asyncio.create_task(pool.put(TWO, policy))
    await until(lambda: pool.store.started == 1)
    await pool.order(ONE)
    await asyncio.wait({load})
    pool.store.may_download.set()
    await until(lambda: not any(path.name.startswith(".policy") for path in (pool.folder / TWO.uid).iterdir()))
    pool.clock.now += 121
    assert await pool.runs.clean()
    assert (pool.engine.loads, pool.engine.loaded) == (0, {})
    assert folders(pool) == [ONE.uid]


async def test_a_restarted_sidecar_removes_what_earlier_orders_left(pool: Pool) -> None:
    policy = pool.publish(ONE, 1)
    await pool.put(ONE, policy)
    await pool.put(TWO, pool.publish(TWO, 1))
    (pool.folder / ONE.uid / f".{policy.name}-abc").mkdir()
    (pool.folder / ".u-9").mkdir()
    restarted = pool.restart()
    await restarted.start(order_of(ONE))
    pool.clock.now += 119
    assert await restarted.clean()
    assert folders(pool) == [ONE.uid, TWO.uid], "the time counts from the start"
    pool.clock.now += 2
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
    listings = pool.engine.listings
    await until(lambda: pool.engine.listings > listings + 1)
    assert pool.engine.loaded
    pool.engine.list_status, pool.engine.keeps, listings = 200, True, pool.engine.listings
    await until(lambda: pool.engine.listings > listings + 1)
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
