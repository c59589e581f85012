"""What a session of a shared pool's run needs from the order."""

import asyncio
import gc
import threading
from pathlib import Path

import pytest
from rlrun.protocol.policy import PolicyKind
from rlrun.protocol.shared_pool import TrainerOrder
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import AccessDenied
from rlrun.storage.store import Store
from rlrun_trainer.runtime.run_deaths import RunDeaths
from rlrun_trainer.sessions.trained_runs import TrainedRuns

from tests.unit.rlrun_trainer.conftest import ONE, TWO, Caller, GrantedStore


def runs_of(*callers: Caller, deaths: Path | None = None) -> TrainedRuns:
    runs = TrainedRuns(RunDeaths(deaths), GrantedStore)
    runs.apply(TrainerOrder(runs=[caller.entry() for caller in callers]))
    return runs


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("runUid", {"run_uid": TWO.uid}),
        ("runUri", {"run_uri": TWO.folder}),
        ("runUri", {"run_uri": f"{ONE.folder}/"}),
        ("kind", {"kind": PolicyKind.weights}),
    ],
)
def test_a_session_that_is_not_the_runs_own_is_refused(field: str, change: dict[str, object]) -> None:
    runs = runs_of(ONE, TWO)
    runs.check(ONE.uid, ONE.spec())
    with pytest.raises(ProblemError, match=f"{field} is '.*', but must be '.*' in this shared pool") as refused:
        runs.check(ONE.uid, ONE.spec().model_copy(update=change))
    assert (refused.value.status, refused.value.problem.reason) == (422, "SessionInvalid")


def test_a_run_that_left_is_refused_at_opening() -> None:
    runs = runs_of(ONE)
    with pytest.raises(ProblemError, match="TokenInvalid: The trainer of this shared pool has no run") as refused:
        runs.check(TWO.uid, TWO.spec())
    assert refused.value.status == 401


def test_a_run_that_ended_the_trainer_twice_is_refused_at_opening(tmp_path: Path) -> None:
    for _ in range(2):
        RunDeaths(tmp_path / "deaths.json").enter(ONE.uid)
    runs = runs_of(ONE, TWO, deaths=tmp_path / "deaths.json")
    with pytest.raises(ProblemError, match="it continues with a trainer of its own") as refused:
        runs.check(ONE.uid, ONE.spec())
    assert (refused.value.status, refused.value.problem.reason) == (422, "PoolEvicted")
    runs.check(TWO.uid, TWO.spec())


def test_a_run_with_a_larger_batch_than_the_pool_reads_leaves_it() -> None:
    runs = TrainedRuns(RunDeaths(None), GrantedStore)
    runs.apply(TrainerOrder(runs=[ONE.entry(max_batch_bytes=1000)]))
    runs.check_batch(ONE.uid, 1000)
    with pytest.raises(
        ProblemError, match=r"is 1001 bytes long, but .* at most 1000 bytes.* a trainer of its own"
    ) as refused:
        runs.check_batch(ONE.uid, 1001)
    assert (refused.value.status, refused.value.problem.reason) == (422, "PoolEvicted")
    with pytest.raises(ProblemError, match="Send Content-Length"):
        runs.check_batch(ONE.uid, None)
    with pytest.raises(ProblemError, match="TokenInvalid"):
        runs.check_batch(TWO.uid, 1)


async def test_a_store_is_made_off_the_event_loop_with_the_grant_of_its_run() -> None:
    runs = runs_of(ONE, TWO)
    one, two = await runs.storage(ONE.uid), await runs.storage(TWO.uid)
    assert isinstance(one.store, GrantedStore)
    assert isinstance(two.store, GrantedStore)
    assert one.store.thread is not threading.main_thread()
    assert (one.store.grants, two.store.grants) == ([f"grant of {ONE.uid}"], [f"grant of {TWO.uid}"])
    assert one.keep_policies == 2


async def test_requests_at_the_same_time_share_a_store() -> None:
    runs = runs_of(ONE)
    first, second = await asyncio.gather(runs.storage(ONE.uid), runs.storage(ONE.uid))
    assert first.store is second.store is (await runs.storage(ONE.uid)).store


async def test_an_order_renews_the_grant_of_a_store_also_after_an_absence() -> None:
    runs = runs_of(ONE)
    kept = await runs.storage(ONE.uid)
    runs.apply(TrainerOrder(runs=[ONE.entry("second")]))
    runs.apply(TrainerOrder())
    runs.apply(TrainerOrder(runs=[ONE.entry("third")]))
    assert isinstance(kept.store, GrantedStore)
    assert kept.store.grants == [f"grant of {ONE.uid}", "second", "third"]


async def test_a_store_that_nothing_uses_is_released() -> None:
    runs = runs_of(ONE)
    await runs.storage(ONE.uid)
    await asyncio.sleep(0)
    gc.collect()
    assert not runs._stores


async def test_without_a_usable_store_the_opening_is_retried() -> None:
    def fail() -> Store:
        raise AccessDenied("no credentials")

    runs = TrainedRuns(RunDeaths(None), fail)
    runs.apply(TrainerOrder(runs=[ONE.entry()]))
    with pytest.raises(ProblemError, match="no credentials"):
        await runs.storage(ONE.uid)


async def test_a_run_that_leaves_while_its_store_is_made_gets_none() -> None:
    def leave() -> Store:
        runs.apply(TrainerOrder())
        return GrantedStore()

    runs = TrainedRuns(RunDeaths(None), leave)
    runs.apply(TrainerOrder(runs=[ONE.entry()]))
    with pytest.raises(ProblemError, match="TokenInvalid"):
        await runs.storage(ONE.uid)
