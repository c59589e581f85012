"""Two runs of a shared pool at one trainer, over HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from rlrun.protocol.access import bearer
from rlrun.protocol.shared_pool import TrainerOrder
from rlrun.protocol.train_batch import TrainBatch
from rlrun.protocol.trainer import CheckpointRequest
from rlrun.service.server import read_batch
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.server import http_server

from tests.support.waiting import until
from tests.unit.rlrun_trainer.conftest import ONE, POOL_TOKEN, TWO, Caller, Pool

THREE = Caller("u-3")


async def test_each_run_trains_in_its_own_folder_with_its_own_grant(pool: Pool) -> None:
    for caller in (ONE, TWO):
        assert (await pool.open(caller))[0] == 200
        status, result = await pool.step(caller, 0)
        assert (status, result["step"]) == (200, 1)
        assert result["policy"]["uri"].startswith(f"{caller.folder}/policy/")
    assert [store.grants for store in pool.stores] == [[f"grant of {ONE.uid}"], [f"grant of {TWO.uid}"]]
    for caller, store in zip((ONE, TWO), pool.stores, strict=True):
        assert all(uri.startswith(f"{caller.folder}/") for uri in store.objects)
    await pool.order(ONE, TWO, grant="renewed")
    assert [store.grants[-1] for store in pool.stores] == ["renewed", "renewed"]
    metrics = (await pool.call(None, "GET", "/metrics"))[1]
    for caller in (ONE, TWO):
        assert f'trainer_step{{session="{caller.uid}"}} 1.0' in metrics


async def test_policies_are_kept_as_the_order_says(pool: Pool) -> None:
    await pool.open(ONE)
    for step in range(4):
        assert (await pool.step(ONE, step))[0] == 200
    store, folder = pool.stores[0], S3Uri.parse(f"{ONE.folder}/policy")
    await until(lambda: len(store.list_folders(folder)) == 2)


@pytest.mark.parametrize("change", [{"run_uid": TWO.uid}, {"run_uri": TWO.folder}])
async def test_a_run_opens_no_session_in_the_folder_of_another_one(pool: Pool, change: dict[str, str]) -> None:
    status, problem = await pool.open(ONE, ONE.spec().model_copy(update=change))
    assert (status, problem["reason"]) == (422, "SessionInvalid")
    assert pool.backend.slots == []


async def test_a_run_that_leaves_is_refused_saved_and_closed(pool: Pool) -> None:
    for caller in (ONE, TWO):
        await pool.open(caller)
        await pool.step(caller, 0)
    await pool.order(ONE)
    assert (await pool.state(TWO))[0] == 401
    assert (await pool.step(TWO, 1))[0] == 401
    await until(lambda: pool.backend.slots == [ONE.uid])
    await until(lambda: not pool.sessions._removals)
    assert pool.stores[1].is_complete(RunLayout(S3Uri.parse(TWO.folder)).checkpoint(1))
    assert (await pool.step(ONE, 1))[0] == 200
    metrics = (await pool.call(None, "GET", "/metrics"))[1]
    assert f'session="{TWO.uid}"' not in metrics
    assert f'rlrun_pool_tokens_total{{kind="trained",run="{TWO.uid}"}}' in metrics, "for the next scrapes"


async def test_a_run_that_comes_back_waits_until_its_session_is_closed(pool: Pool) -> None:
    await pool.open(ONE)
    pool.backend.may_compute.clear()
    stepping = asyncio.create_task(pool.step(ONE, 0))
    await until(lambda: pool.backend.units == 1)
    await pool.order(TWO)
    await asyncio.sleep(0)
    await pool.order(ONE, TWO)
    opening = asyncio.create_task(pool.open(ONE))
    await until(lambda: bool(pool.sessions._removals))
    pool.stores[0].may_upload.clear()
    pool.backend.may_compute.set()
    await until(lambda: pool.backend.slots == [])
    await pool.order(ONE, TWO)
    assert not opening.done(), "it waits for the former session's upload, too"
    pool.stores[0].may_upload.set()
    status, state = await opening
    assert (status, state["step"]) == (200, 1), "it resumes from what the former session saved"
    assert state["checkpoints"] == [1]
    assert (await stepping)[0] == 200
    checkpoint = RunLayout(S3Uri.parse(ONE.folder)).checkpoint(1)
    assert pool.stores[0].is_complete(checkpoint)
    assert pool.backend.slots == [ONE.uid]
    assert (await pool.step(ONE, 1))[0] == 200


async def test_the_successor_of_a_run_that_is_being_closed_is_asked_to_retry(pool: Pool) -> None:
    for caller in (ONE, TWO):
        await pool.open(caller)
    pool.backend.may_compute.clear()
    stepping = asyncio.create_task(pool.step(TWO, 0))
    await until(lambda: pool.backend.units == 1)
    await pool.order(ONE, THREE)
    pool.backend.may_compute.set()
    seen = set()
    async with asyncio.timeout(30):
        while (answer := await pool.open(THREE))[0] != 200:
            seen.add((answer[0], answer[1]["reason"]))
    assert seen <= {(503, "NoFreeSlot")}
    await stepping


@pytest.mark.parametrize("settings", [TrainerSettings(slots=2, shutdown_seconds=0.05)], ids=["short"])
async def test_a_step_of_a_run_that_left_is_cancelled_after_the_time_for_a_shutdown(pool: Pool) -> None:
    await pool.open(TWO)
    pool.backend.may_compute.clear()
    stepping = asyncio.create_task(pool.step(TWO, 0))
    await until(lambda: pool.backend.units == 1)
    began = time.monotonic()
    await pool.order(ONE)
    await until(lambda: TWO.uid not in {session.name for session in pool.sessions.all()})
    assert time.monotonic() - began < 20
    pool.backend.may_compute.set()
    await until(lambda: pool.backend.slots == [])
    assert pool.backend.units == 1, "the other units of its step did not start"
    assert isinstance((await asyncio.gather(stepping, return_exceptions=True))[0], Exception)


async def test_a_run_that_left_while_its_session_was_being_opened_is_closed_by_the_next_order(pool: Pool) -> None:
    pool.backend.may_compute.clear()
    blocked = asyncio.create_task(pool.compute.run("", pool.backend.may_compute.wait))
    opening = asyncio.create_task(pool.open(TWO))
    await until(lambda: bool(pool.stores))
    await until(lambda: TWO.uid in pool.compute._waiting)
    repeated = asyncio.create_task(pool.open(TWO))
    await until(lambda: bool(pool.sessions._turn(TWO.uid)._waiters))
    await pool.order(ONE)
    pool.backend.may_compute.set()
    await asyncio.gather(blocked, opening)
    assert (await repeated)[0] == 401
    await pool.order(ONE)
    await until(lambda: pool.backend.slots == [])


async def test_an_orchestrator_that_one_run_has_replaced_is_known_to_no_other_run(pool: Pool) -> None:
    for orchestrator in ("first", "second"):
        pool.http.headers["X-Orchestrator-Id"] = orchestrator
        assert (await pool.open(ONE))[0] == 200
    pool.http.headers["X-Orchestrator-Id"] = "first"
    assert (await pool.open(TWO))[0] == 200
    assert (await pool.open(ONE))[0] == 410
    assert (await pool.step(ONE, 0))[0] == 410
    await pool.order(TWO)
    await pool.order(ONE, TWO)
    assert (await pool.open(ONE))[0] == 200, "what belongs to a run that left is forgotten"


async def test_a_run_that_is_back_before_its_removal_starts_keeps_its_session(pool: Pool) -> None:
    await pool.open(ONE)
    async with pool.sessions._turn(ONE.uid):
        await pool.order(TWO)
        await pool.order(ONE, TWO)
    await until(lambda: not pool.sessions._removals)
    assert (await pool.step(ONE, 0))[0] == 200


async def test_a_run_that_repeatedly_does_not_fit_beside_the_others_is_evicted(pool: Pool) -> None:
    for caller in (ONE, TWO):
        await pool.open(caller)
    pool.backend.full = 2
    for _ in range(2):
        status, problem = await pool.step(ONE, 0)
        assert (status, problem["reason"]) == (507, "TrainerOutOfMemory")
    assert (await pool.step(ONE, 0))[0] == 200, "the other runs have freed memory"
    pool.backend.full = 3
    answers = [await pool.step(ONE, 1) for _ in range(3)]
    assert [status for status, _ in answers] == [507, 507, 422]
    assert answers[-1][1]["reason"] == "PoolEvicted"
    assert (
        "ran out of memory for this run (the step does not fit). The run leaves the pool" in answers[-1][1]["message"]
    )
    assert (await pool.open(ONE))[1]["reason"] == "PoolEvicted", "also after the trainer's response was lost"
    assert (await pool.open(TWO))[0] == 200
    await pool.order(TWO)
    await pool.order(ONE, TWO)
    assert (await pool.open(ONE))[0] == 200


async def test_a_batch_beyond_the_runs_limit_is_refused_before_it_arrives(pool: Pool) -> None:
    await pool.open(ONE)
    await pool.call(POOL_TOKEN, "PUT", "/pool-order", TrainerOrder(runs=[ONE.entry(max_batch_bytes=10)]).to_json_dict())
    arrives = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"begin"
        await arrives.wait()

    headers = {**bearer(ONE.token), "Content-Length": "1000"}
    url = f"{pool.url}/sessions/{ONE.uid}/steps/0"
    async with asyncio.timeout(30), pool.http.post(url, data=body(), headers=headers) as response:
        assert (response.status, (await response.json())["reason"]) == (422, "PoolEvicted")
    arrives.set()


async def test_a_repeated_batch_is_read_after_the_step_in_progress_and_others_are_asked_to_retry(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def reading(request: web.Request) -> TrainBatch:
        read.append(request.path)
        return await read_batch(request)

    monkeypatch.setattr(http_server, "read_batch", reading)
    for caller in (ONE, TWO):
        await pool.open(caller)
    pool.backend.may_compute.clear()
    first = asyncio.create_task(pool.step(ONE, 0))
    await until(lambda: pool.backend.units == 1)
    repeated = asyncio.create_task(pool.step(ONE, 0))
    await until(lambda: pool.trainer._batches._requests[ONE.uid] == 2)
    status, problem = await pool.step(ONE, 0)
    assert (status, problem["reason"]) == (503, "TooManyRequests")
    assert read == [f"/sessions/{ONE.uid}/steps/0"]
    other = asyncio.create_task(pool.step(TWO, 0))
    await until(lambda: f"/sessions/{TWO.uid}/steps/0" in read)
    pool.backend.may_compute.set()
    answers = await asyncio.gather(first, repeated, other)
    assert [(status, result["step"]) for status, result in answers] == [(200, 1)] * 3
    assert pool.backend.units == 6, "the repeated request made no step"
    assert not pool.trainer._batches._requests


async def test_one_state_of_a_run_is_in_memory_at_a_time(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    async def reading(request: web.Request, *_: object, **__: object) -> CheckpointRequest:
        read.append(request.match_info["session"])
        return CheckpointRequest()

    for caller in (ONE, TWO):
        await pool.open(caller)
    monkeypatch.setattr(http_server, "read_model", reading)
    pool.backend.may_compute.clear()
    stepping = asyncio.create_task(pool.step(ONE, 0))
    await until(lambda: pool.backend.units == 1)
    waiting = [asyncio.create_task(pool.save(ONE, kind, 1)) for kind in ("checkpoints", "adapters")]
    await until(lambda: pool.trainer._states._requests[ONE.uid] == 2)
    status, problem = await pool.save(ONE, "checkpoints", 1)
    assert (status, problem["reason"]) == (503, "TooManyRequests")
    other = asyncio.create_task(pool.save(TWO, "checkpoints", 0))
    await until(lambda: TWO.uid in read)
    assert read.count(ONE.uid) == 1
    pool.backend.may_compute.set()
    assert (await stepping)[0] == 200
    assert [status for status, _ in await asyncio.gather(*waiting, other)] == [202] * 3
    assert not pool.trainer._states._requests
