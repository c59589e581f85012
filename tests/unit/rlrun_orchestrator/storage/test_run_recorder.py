"""S3 that is away, slow or back: nothing is lost, everybody is told, nobody waits longer than it helps."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.metric_files import merge_lines
from rlrun.storage.samples.scan import scan
from rlrun.storage.samples.summary import StepSamples
from rlrun.storage.store import Unreachable
from rlrun_orchestrator.storage import run_recorder
from rlrun_orchestrator.storage.run_recorder import RunRecorder
from rlrun_orchestrator.storage.state_files import checkpoint_state_uri, claim_state
from rlrun_orchestrator.storage.upload_spool import UploadSpool

from tests.support.ended_groups import step_rollouts
from tests.support.run_processes import RUN_URI, World
from tests.support.run_store import RunStore

LAYOUT = RunLayout(S3Uri.parse(RUN_URI))
STATE = f"{RUN_URI}/orchestrator/state-000001.json"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
AWAY = Unreachable("s3://bucket does not answer at http://s3")


class SlowStore(RunStore):
    """Writes wait until they are let through."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.order: list[str] = []

    def put_bytes(self, uri: S3Uri, data: bytes) -> None:
        self.open.wait(60.0)
        super().put_bytes(uri, data)
        self.order.append(str(uri).removeprefix(f"{RUN_URI}/").split("/")[0])


class Desk:
    """A recorder, its store and what it told."""

    def __init__(self, store: RunStore, folder: Path, limit: int = 10**6) -> None:
        self.store = store
        self.told: list[Problem | None] = []
        self.recorder = RunRecorder(
            store,  # type: ignore[arg-type]
            LAYOUT,
            UploadSpool(folder, limit),
            self.told.append,
            retry_seconds=0.01,
        )

    async def waits(self, count: int) -> None:
        async with asyncio.timeout(60.0):
            while len(self.recorder.spool) != count:  # noqa: ASYNC110 (another thread's doing)
                await asyncio.sleep(0.002)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    desk = Desk(RunStore(), tmp_path)
    desk.recorder.start()
    yield desk
    await desk.recorder.close(0.1)


async def test_run_survives_an_s3_outage_of_any_length(desk: Desk) -> None:
    desk.store.away = AWAY
    for step in range(1, 101):
        desk.recorder.metrics(step, NOW, {"reward/mean": float(step)})
        desk.recorder.save_state({"step": step})
    for step in (1, 2):
        desk.recorder.rollouts(step_rollouts(step))
    await desk.waits(6)
    async with asyncio.timeout(60.0):
        while not desk.told:  # noqa: ASYNC110 (a writer's doing)
            await asyncio.sleep(0.002)
    problem = desk.told[-1]
    assert problem is not None
    assert problem.reason == "S3Unreachable"
    assert "Objects on the orchestrator's disk" in problem.message
    assert desk.store.objects == {}
    desk.store.away = None
    await desk.recorder.close(5.0)
    assert desk.told[-1] is None
    assert desk.recorder.dropped_objects == 0
    parts = sorted(key for key in desk.store.objects if "/metrics/" in key)
    lines = [json.loads(line) for part in parts for line in desk.store.objects[part].decode().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 101))
    assert json.loads(desk.store.objects[STATE]) == {"step": 100}
    assert sum("/rollouts/step-" in key for key in desk.store.objects) == 2
    (summaries,) = (data for key, data in desk.store.objects.items() if "/rollouts/steps/" in key)
    assert [StepSamples.model_validate_json(line).step for line in summaries.splitlines()] == [1, 2]


async def test_objects_that_exceed_the_spool_limit_are_dropped_and_counted(tmp_path: Path) -> None:
    desk = Desk(RunStore(), tmp_path, limit=3200)
    desk.store.away = AWAY
    desk.recorder.start()
    desk.recorder.save_state({"step": 1, "more": "x" * 300})
    for step in range(1, 5):
        desk.recorder.rollouts(step_rollouts(step))
        await desk.recorder._queue.join()
    given_up = desk.recorder.dropped_objects
    said = f"Dropped objects: {given_up}"
    async with asyncio.timeout(60.0):
        while not any(problem and said in problem.message for problem in desk.told):  # noqa: ASYNC110 (a writer's)
            await asyncio.sleep(0.002)
    desk.store.away = None
    await desk.recorder.close(5.0)
    written = sorted(key.rsplit("/", 1)[-1] for key in desk.store.objects)
    assert "state-000001.json" in written
    assert "step-000004.jsonl.zst" in written, "the oldest went first"
    assert desk.recorder.dropped_objects == 6 - len(written) > 0


async def test_rollouts_that_wait_for_the_disk_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_recorder, "MAX_WAITING_ROLLOUTS", 5)
    desk = Desk(RunStore(), tmp_path)
    for step in range(1, 5):
        desk.recorder.rollouts(step_rollouts(step))
    assert desk.recorder.dropped_objects == 2, "two of two rollouts each may wait"
    desk.recorder.start()
    await desk.recorder._queue.join()
    desk.recorder.rollouts(step_rollouts(5))
    await desk.recorder.close(5.0)
    assert desk.recorder.dropped_objects == 2
    written = sorted(key.rsplit("/", 1)[-1] for key in desk.store.objects if "/rollouts/step-" in key)
    assert written == [f"step-00000{step}.jsonl.zst" for step in (1, 2, 5)]


async def test_redacted_fields_never_reach_the_spool(tmp_path: Path) -> None:
    store = RunStore()
    recorder = RunRecorder(
        store,  # type: ignore[arg-type]
        LAYOUT,
        UploadSpool(tmp_path, 10**6),
        redact=["completion", "info.mail"],
    )
    recorder.start()
    recorder.rollouts(step_rollouts(3))
    await recorder.close(5.0)
    record, _ = scan(store.objects[str(LAYOUT.rollouts(3))]).records
    assert record.completion == [{"role": "assistant", "content": "[redacted]"}]
    assert record.info == {"mail": "[redacted]"}
    assert record.prompt == [{"role": "user", "content": "reverse: hello"}]
    assert record.redacted == ["completion", "info.mail"]


async def test_small_and_important_objects_do_not_wait_behind_rollouts(tmp_path: Path) -> None:
    store = SlowStore()
    desk = Desk(store, tmp_path)
    for step in range(1, 30):
        desk.recorder.rollouts(step_rollouts(step))
    desk.recorder.metrics(1, NOW, {})
    desk.recorder.save_state({"step": 1})
    desk.recorder.start()
    await desk.waits(32)  # 29 steps, the file of their summaries, metrics and state
    store.open.set()
    await desk.recorder.close(5.0)
    assert store.order.index("metrics") < store.order.index("orchestrator"), "no state tells of a line that is missing"
    assert max(store.order.index(name) for name in ("metrics", "orchestrator")) < 20


async def test_objects_spooled_by_a_killed_process_are_uploaded_by_the_next_one(tmp_path: Path) -> None:
    first = Desk(RunStore(), tmp_path)
    first.store.away = AWAY
    first.recorder.start()
    first.recorder.metrics(1, NOW, {"reward/mean": 0.5})
    first.recorder.save_state({"step": 1})
    await first.waits(2)
    for task in first.recorder._tasks:  # killed: nobody writes, nobody cleans up
        task.cancel()
    await asyncio.gather(*first.recorder._tasks, return_exceptions=True)
    second = Desk(RunStore(), tmp_path)
    second.store.objects[STATE] = b'{"step": 0}'
    _, found = await asyncio.to_thread(claim_state, second.store, LAYOUT, second.recorder.spool)
    assert json.loads(found) == {"step": 1}, "newer than what S3 has"
    second.recorder.start()
    await second.recorder.close(5.0)
    assert json.loads(second.store.objects[STATE]) == {"step": 1}
    assert any("/metrics/" in key for key in second.store.objects)


async def test_a_step_waits_for_the_record_of_its_batch_while_s3_answers(tmp_path: Path) -> None:
    store = SlowStore()
    desk = Desk(store, tmp_path)
    desk.recorder.start()
    desk.recorder.save_state({"step": 1})
    waiting = asyncio.create_task(desk.recorder.wait_until_saved(5.0))
    await desk.waits(1)
    await asyncio.sleep(0.02)
    assert not waiting.done()
    store.open.set()
    assert await waiting
    assert json.loads(store.objects[STATE]) == {"step": 1}
    await desk.recorder.close(1.0)


async def test_no_step_waits_because_an_earlier_record_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(RunStore(), tmp_path)

    def fail(*_: object) -> int:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(desk.recorder.spool, "enqueue", fail)
        desk.recorder.start()
        desk.recorder.save_state({"step": 1})
        await desk.recorder._queue.join()
    assert desk.recorder.dropped_objects == 1
    desk.recorder.save_state({"step": 2})
    assert await desk.recorder.wait_until_saved(5.0)
    assert json.loads(desk.store.objects[STATE]) == {"step": 2}
    await desk.recorder.close(1.0)


async def test_no_step_waits_for_s3_that_is_away_or_that_was_waited_for_in_vain(tmp_path: Path) -> None:
    store = SlowStore()
    desk = Desk(store, tmp_path)
    desk.recorder.start()
    desk.recorder.save_state({"step": 1})
    assert not await desk.recorder.wait_until_saved(0.05)
    async with asyncio.timeout(1.0):
        assert not await desk.recorder.wait_until_saved(60.0), "it is known to be slow"
    store.away = AWAY
    store.open.set()
    async with asyncio.timeout(60.0):
        while desk.recorder.problem is None:  # noqa: ASYNC110 (a writer's doing)
            await asyncio.sleep(0.002)
        assert not await desk.recorder.wait_until_saved(60.0), "it is known to be away"
    store.away = None
    async with asyncio.timeout(60.0):
        while desk.recorder.problem is not None:  # noqa: ASYNC110 (a writer's doing)
            await asyncio.sleep(0.002)
    assert STATE in store.objects
    desk.recorder.save_state({"step": 2})
    assert await desk.recorder.wait_until_saved(5.0), "and it is waited for again"
    await desk.recorder.close(1.0)


async def test_closing_gives_up_at_its_deadline(desk: Desk) -> None:
    desk.store.away = AWAY
    desk.recorder.save_state({"step": 1})
    async with asyncio.timeout(20.0):
        await desk.recorder.close(0.1)
    assert desk.recorder.dropped_objects == 1
    assert len(desk.recorder.spool) == 1, "the next process in this pod may have it"


async def test_a_checkpoint_state_is_stored_by_step(desk: Desk) -> None:
    desk.recorder.save_checkpoint_state(7, {"step": 7})
    assert await desk.recorder.load_checkpoint_state(8) is None
    await desk.recorder._queue.join()
    assert await desk.recorder.load_checkpoint_state(7) == {"step": 7}
    await desk.recorder.close(5.0)
    assert str(checkpoint_state_uri(LAYOUT, 7)) in desk.store.objects


async def test_states_of_recovery_copies_are_found_by_step_in_few_files(desk: Desk) -> None:
    desk.recorder.save_copy_state({"step": 1})
    for step in range(2, 6):
        desk.recorder.save_copy_state({"step": step})
        await desk.recorder._queue.join()
        for kept in range(max(1, step - 2), step + 1):
            assert await desk.recorder.load_checkpoint_state(kept) == {"step": kept}
    assert await desk.recorder.load_checkpoint_state(1) is None
    await desk.recorder.close(5.0)
    assert len([uri for uri in desk.store.objects if "/orchestrator/" in uri]) == 4


async def test_a_later_process_replaces_the_oldest_and_the_abandoned_states_of_copies(tmp_path: Path) -> None:
    store = RunStore()

    async def save(process: int, *states: dict[str, int]) -> dict[int, int]:
        """Save the states in a process of its own, and return those of all steps."""
        desk = Desk(store, tmp_path / str(process))
        desk.recorder.start()
        for state in states:
            desk.recorder.save_copy_state(state)
        await desk.recorder._queue.join()
        loaded = [await desk.recorder.load_checkpoint_state(step) for step in range(20)]
        await desk.recorder.close(5.0)
        return {state["step"]: state["timeline"] for state in loaded if state is not None}

    first = [{"step": step, "timeline": 1} for step in (3, 6, 9)]
    assert await save(1, *first) == {3: 1, 6: 1, 9: 1}
    assert await save(2, {"step": 12, "timeline": 1}, {"step": 15, "timeline": 1}) == {6: 1, 9: 1, 12: 1, 15: 1}
    # The run returns to step 9.
    assert await save(3, {"step": 12, "timeline": 2}) == {6: 1, 9: 1, 12: 2, 15: 1}
    assert await save(4, {"step": 14, "timeline": 2}) == {6: 1, 9: 1, 12: 2, 14: 2}


async def test_states_of_copies_are_saved_once_s3_is_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise AWAY

    read = desk.store.get_bytes
    monkeypatch.setattr(desk.store, "get_bytes", fail)
    desk.recorder.save_copy_state({"step": 1})
    await desk.recorder._queue.join()
    assert desk.recorder.dropped_objects == 1, "it could replace the newest state of an earlier process"
    monkeypatch.setattr(desk.store, "get_bytes", read)
    desk.recorder.save_copy_state({"step": 2})
    await desk.recorder._queue.join()
    assert await desk.recorder.load_checkpoint_state(2) == {"step": 2}
    await desk.recorder.close(5.0)


async def test_a_state_is_uploaded_after_the_metrics_of_its_step(tmp_path: Path) -> None:
    store = SlowStore()
    desk = Desk(store, tmp_path)
    desk.recorder.start()
    desk.recorder.metrics(1, NOW, {"eval": 1.0})
    await desk.waits(1)
    desk.recorder.metrics(2, NOW, {})
    desk.recorder.save_state({"step": 2})
    await desk.waits(2)
    store.open.set()
    await desk.recorder.close(5.0)
    assert store.order == ["metrics", "metrics", "orchestrator"]


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_run_continues_during_an_s3_outage_with_a_warning(world: World) -> None:
    world.spec["maxSteps"] = 12
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= 2)
    world.store.away = AWAY
    await world.until(lambda: len(world.trainer.batches) >= 5)
    status = await world.status()
    assert "S3Unreachable" in {warning.reason for warning in status.warnings}
    written = len(world.lines())
    await world.until(lambda: len(world.trainer.batches) >= 7)
    assert len(world.lines()) == written
    world.store.away = None
    assert await running == 0
    assert "S3Unreachable" not in {warning.reason for warning in world.last_word.warnings}
    assert [line["step"] for line in world.lines()] == list(range(1, 13))
    for step in range(1, 13):
        assert len(world.rollouts(step)) == 8


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(2, 7))
async def test_s3_that_is_slower_than_a_step_loses_no_line_of_a_process_that_is_killed(
    world: World, moment: int
) -> None:
    class Slow(RunStore):
        dead = False

        def put_bytes(self, uri: S3Uri, data: bytes) -> None:
            time.sleep(0.06)
            if self.dead:
                raise AWAY
            super().put_bytes(uri, data)

    world.store = Slow()
    world.trainer.store = world.store
    world.spec |= {"maxSteps": 10, "maxAsyncLevel": 3, "oversamplingFactor": 3}
    world.settings["drain_deadline"] = world.settings["stop_deadline"] = 0.1
    await world.start()
    running = asyncio.create_task(world.run())
    await world.until(lambda: len(world.trainer.batches) >= moment)
    world.store.dead = True  # nothing that this process has not written by now will ever be there
    world.stop.set()
    assert await running == 1
    world.stop.clear()
    world.store = RunStore()
    world.store.objects.update(world.trainer.store.objects)
    world.trainer.store = world.store
    world.settings["spool"] = world.folder / "another pod"
    async with world.trainer.turn:
        pass
    assert await world.run() == 0
    lines = [line for line in merge_lines(world.lines()) if "reward/mean" in line]
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert [step for step, _ in world.trainer.batches] == list(range(10))
