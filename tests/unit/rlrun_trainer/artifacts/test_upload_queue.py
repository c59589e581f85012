"""Artifacts count as complete if S3 has them and nothing waits to replace them."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import AccessDenied
from rlrun_trainer.artifacts.recovery_copies import RecoveryCopies
from rlrun_trainer.artifacts.upload_queue import SavedName, UploadJob, UploadQueue, completed_steps

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.support.waiting import until

RUN_URI = "s3://bucket/runs/team/uid-1"
LAYOUT = RunLayout(S3Uri.parse(RUN_URI))


def store_with(*steps: int) -> InMemoryStore:
    """A store with adapters of these steps."""
    store = InMemoryStore()
    for step in steps:
        store.publish(str(LAYOUT.adapter(step)), {"a": b"old"}, ArtifactKind.adapter)
    return store


def test_an_unreadable_manifest_hides_no_other_artifact() -> None:
    store = store_with(1, 2, 3)
    store.objects[str(LAYOUT.adapter(2) / MANIFEST)] = b"not JSON"
    assert completed_steps(store, LAYOUT.adapters, 0) == [1, 3]


async def test_an_artifact_that_is_uploaded_again_is_not_complete_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(55, 60)
    queue = UploadQueue(store, trainer_requests.spec(RUN_URI), 4, 2**30, 3)
    queue.completed[ArtifactKind.adapter] = [55, 60]
    before: dict[int, list[int]] = {}
    upload = store.upload_artifact

    def watched(*arguments: Any, step: int, **facts: Any) -> Manifest:
        before[step] = list(queue.completed[ArtifactKind.adapter])
        return upload(*arguments, step=step, **facts)

    monkeypatch.setattr(store, "upload_artifact", watched)
    for step in (55, 60):
        queue.submit(UploadJob(ArtifactKind.adapter, step, LAYOUT.adapter(step), {"a": b"new"}, None))
    assert await queue.drain(30) == 0
    assert before == {55: [], 60: [55]}
    assert queue.completed[ArtifactKind.adapter] == [55, 60]


async def test_a_step_that_is_trained_again_keeps_its_first_artifact_and_holds_up_no_other() -> None:
    """Another team may have started from it."""
    store = store_with(55)
    store.publish(str(LAYOUT.adapter(56)), {"a": b"old"}, ArtifactKind.adapter)
    store.objects[str(LAYOUT.adapter(56) / MANIFEST)] = b"not JSON"
    before = dict(store.objects)
    queue = UploadQueue(store, trainer_requests.spec(RUN_URI), 4, 2**30, 3)
    for step in (55, 56, 60):
        queue.submit(UploadJob(ArtifactKind.adapter, step, LAYOUT.adapter(step), {"a": b"new"}, None))
    assert await queue.drain(30) == 0
    assert queue.completed[ArtifactKind.adapter] == [55, 60]
    assert queue.problem is None
    assert store.objects.items() >= before.items()


COPY, CHECKPOINT, ADAPTER = ArtifactKind.recovery, ArtifactKind.checkpoint, ArtifactKind.adapter
PLACES = {COPY: LAYOUT.recovery_copy, CHECKPOINT: LAYOUT.checkpoint, ADAPTER: LAYOUT.adapter}


def job(kind: ArtifactKind, step: int, data: bytes = b"new") -> UploadJob:
    return UploadJob(kind, step, PLACES[kind](step), {"a": data}, None)


def queue_of(store: InMemoryStore, limit: int = 4) -> UploadQueue:
    return UploadQueue(store, trainer_requests.spec(RUN_URI), limit, 2**30, 3, copies=RecoveryCopies(store, LAYOUT))


def order_of(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list of attempts, which grows."""
    attempts: list[tuple[str, int]] = []
    upload = store.upload_artifact

    def seen(source: Any, uri: S3Uri, kind: ArtifactKind, *, step: int, **facts: Any) -> Manifest:
        attempts.append((kind.value, step))
        return upload(source, uri, kind, step=step, **facts)

    monkeypatch.setattr(store, "upload_artifact", seen)
    return attempts


async def test_a_waiting_copy_comes_after_all_others_and_a_checkpoint_replaces_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = InMemoryStore()
    attempts, queue = order_of(store, monkeypatch), queue_of(store)
    for kind, step in ((ADAPTER, 1), (COPY, 2), (ADAPTER, 2), (ADAPTER, 3)):
        queue.submit(job(kind, step))
    assert await queue.drain(30) == 0
    assert attempts == [("Adapter", 1), ("Adapter", 2), ("Adapter", 3), ("Recovery", 2)]
    attempts.clear()
    for kind, step in ((ADAPTER, 4), (COPY, 5), (CHECKPOINT, 6)):
        queue.submit(job(kind, step))
    assert await queue.drain(30) == 0
    assert attempts == [("Adapter", 4), ("Checkpoint", 6)]


async def test_a_copy_takes_no_capacity_from_artifacts_of_users() -> None:
    store = InMemoryStore()
    queue = queue_of(store, limit=1)
    queue.limit_bytes = 5
    queue.submit(job(COPY, 1, b"large copy"))
    queue.check_capacity(ADAPTER)
    assert (queue.pending, queue.pending_for_users) == (1, 0)
    queue.limit, queue.limit_bytes = 4, 2**30
    assert not queue.has_capacity_for_copy(), "one at a time"
    queue.limit, queue.limit_bytes = 1, 5
    assert await queue.drain(30) == 0
    assert queue.has_capacity_for_copy()
    queue.submit(job(ADAPTER, 1))
    assert not queue.has_capacity_for_copy()
    with pytest.raises(ProblemError):
        queue.check_capacity(CHECKPOINT)
    assert await queue.drain(30) == 0


async def test_a_copy_that_fails_is_no_problem_of_users_and_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pause of an hour ends when a job of users arrives."""
    store = InMemoryStore()
    upload, refused, attempts = store.upload_artifact, asyncio.Event(), []
    loop = asyncio.get_running_loop()

    def refuse_copies(source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        attempts.append(kind)
        if kind is COPY:
            raise AccessDenied("no right for recovery/")
        return upload(source, uri, kind, **facts)

    def wait(_: int) -> float:
        loop.call_soon(refused.set)
        return 3600.0

    monkeypatch.setattr(store, "upload_artifact", refuse_copies)
    queue = queue_of(store)
    queue.wait = wait
    queue.submit(job(COPY, 1))
    async with asyncio.timeout(30):
        await refused.wait()
        assert (queue.pending, queue.problem) == (1, None)
        queue.submit(job(ADAPTER, 1))
        assert queue._worker is not None
        await queue._worker
    assert attempts == [COPY, ADAPTER]
    assert queue.completed == {COPY: [], ADAPTER: [1]}


async def test_a_copy_whose_last_attempt_fails_while_a_job_arrives_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    queue, upload, loop = queue_of(store), store.upload_artifact, asyncio.get_running_loop()
    queue.wait = lambda _: 3600.0

    def refuse_copies(source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        if kind is COPY:
            arrived = threading.Event()
            loop.call_soon_threadsafe(lambda: (queue.submit(job(ADAPTER, 1)), arrived.set()))
            assert arrived.wait(30)
            raise AccessDenied("no right for recovery/")
        return upload(source, uri, kind, **facts)

    monkeypatch.setattr(store, "upload_artifact", refuse_copies)
    queue.submit(job(COPY, 1))
    assert queue._worker is not None
    async with asyncio.timeout(30):
        await queue._worker
    assert queue.completed == {COPY: [], ADAPTER: [1]}


async def test_a_complete_copy_does_not_hide_a_problem_of_users() -> None:
    queue = queue_of(InMemoryStore())
    queue.problem = problem = Problem(reason="S3AccessDenied", message="the adapter was not uploaded")
    queue.submit(job(COPY, 1))
    assert await queue.drain(30) == 0
    assert queue.problem == problem


async def test_only_the_newest_two_copies_stay_and_none_that_a_checkpoint_replaces() -> None:
    store = InMemoryStore()
    queue = queue_of(store)
    assert queue.copies is not None
    queue.copies.unusable = {9}
    store.publish(str(LAYOUT.recovery_copy(9)), {"a": b"damaged"}, COPY)
    for step in (1, 2, 3):
        queue.submit(job(COPY, step))
        assert await queue.drain(30) == 0
    assert store.list_folders(LAYOUT.recovery) == ["step-000002", "step-000003"]
    queue.submit(job(CHECKPOINT, 2))
    assert await queue.drain(30) == 0
    assert store.list_folders(LAYOUT.recovery) == ["step-000003"]
    queue.submit(job(CHECKPOINT, 3))
    assert await queue.drain(30) == 0
    assert store.list_folders(LAYOUT.recovery) == []
    assert store.list_folders(LAYOUT.checkpoints) == ["step-000002", "step-000003"]


async def test_a_copy_of_the_same_step_is_replaced() -> None:
    store = InMemoryStore()
    store.publish(str(LAYOUT.recovery_copy(5)), {"a": b"of an earlier trainer"}, COPY)
    queue = queue_of(store)
    queue.submit(job(COPY, 5))
    assert await queue.drain(30) == 0
    assert store.get_bytes(LAYOUT.recovery_copy(5) / "a") == b"new"


async def test_a_failure_to_delete_copies_stops_no_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    queue = queue_of(store)

    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(RecoveryCopies, "prune", fail)
    for kind in (CHECKPOINT, ADAPTER):
        queue.submit(job(kind, 1))
    assert await queue.drain(30) == 0
    assert queue.completed == {CHECKPOINT: [1], ADAPTER: [1]}


async def test_a_checkpoint_of_another_process_replaces_no_copy() -> None:
    """Its manifest does not show that its files are still there."""
    store = InMemoryStore()
    store.publish(str(LAYOUT.checkpoint(3)), {"a": b"old"}, CHECKPOINT)
    queue = queue_of(store)
    for new in (job(COPY, 2), job(CHECKPOINT, 3)):
        queue.submit(new)
        assert await queue.drain(30) == 0
    assert queue.completed[CHECKPOINT] == [3]
    assert store.list_folders(LAYOUT.recovery) == ["step-000002"]
    queue.submit(job(CHECKPOINT, 4))
    assert await queue.drain(30) == 0
    assert store.list_folders(LAYOUT.recovery) == []


async def test_a_named_checkpoint_is_displaced_by_none_and_recorded_before_it_counts_as_complete() -> None:
    store = InMemoryStore()
    queue, events = queue_of(store), list[object]()

    def named(step: int) -> UploadJob:
        def record(manifest: Manifest) -> None:
            assert manifest == store.read_manifest(LAYOUT.checkpoint(step))
            events.append(step)

        def on_end(is_complete: bool) -> None:
            events.append((step, is_complete))

        name = SavedName({"name": f"n{step}"}, record, on_end)
        return replace(job(CHECKPOINT, step), named=name)

    for step in (1, 2):
        queue.submit(named(step))
    queue.submit(job(CHECKPOINT, 3))
    queue.submit(named(4))
    assert await queue.drain(30) == 0
    assert events == [1, (1, True), 2, (2, True), 4, (4, True)]
    assert (queue.completed[CHECKPOINT], queue.uploaded) == ([1, 2, 4], 3)
    manifest = store.read_manifest(LAYOUT.checkpoint(2))
    assert manifest is not None
    assert manifest.details["name"] == "n2"


async def test_a_name_that_cannot_be_recorded_is_tried_again_and_finally_told() -> None:
    queue, ended = queue_of(InMemoryStore()), list[bool]()
    queue.wait = lambda _: 0.0

    def fail(_: object) -> None:
        raise AccessDenied("no right for the names")

    queue.submit(replace(job(CHECKPOINT, 1), named=SavedName({}, fail, ended.append)))
    await until(lambda: queue.problem is not None)
    assert (ended, queue.completed[CHECKPOINT]) == ([], [])
    queue.close()
    assert await queue.drain(30) == 0
    assert ended == [False]


@pytest.mark.parametrize(("name", "is_recorded"), [("a", True), ("b", False)])
async def test_an_existing_artifact_gets_no_other_name(name: str, is_recorded: bool) -> None:
    store = InMemoryStore()
    store.publish(str(LAYOUT.adapter(1)), {"a": b"old"}, ADAPTER, name="a")
    queue, recorded, ended = queue_of(store), list[Manifest](), list[bool]()
    named = SavedName({"name": name}, recorded.append, ended.append)
    queue.submit(replace(job(ADAPTER, 1), named=named))
    assert await queue.drain(30) == 0
    assert (recorded, ended) == ([store.read_manifest(LAYOUT.adapter(1))] * is_recorded, [is_recorded])


async def test_capacity_is_awaited_while_s3_accepts_uploads() -> None:
    store, may_end = InMemoryStore(), threading.Event()
    queue = queue_of(store, limit=1)
    upload = store.upload_artifact

    def slow(*arguments: Any, **facts: Any) -> Manifest:
        assert may_end.wait(30)
        return upload(*arguments, **facts)

    store.upload_artifact = slow  # type: ignore[method-assign]
    queue.submit(job(ADAPTER, 1))
    with pytest.raises(ProblemError, match=r"UploadsBehind.*save checkpoints and adapters less often"):
        await queue.wait_for_capacity(ADAPTER, 0.05)
    waiting = asyncio.create_task(queue.wait_for_capacity(ADAPTER, 30))
    await asyncio.sleep(0)
    may_end.set()
    await waiting
    queue.problem = Problem(reason="S3Unreachable", message="no route")
    queue.limit = 0
    with pytest.raises(ProblemError, match="no route"):
        await queue.wait_for_capacity(ADAPTER, 3600)
