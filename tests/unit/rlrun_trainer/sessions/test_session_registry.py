"""Sessions of different runs do not wait for each other."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.upload_queue import UploadJob
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from typing_extensions import override

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.support.waiting import until
from tests.unit.rlrun_trainer.sessions.test_shutdown_budget import CountingBackend


class SlowFolders(InMemoryStore):
    """Store that lists the folders of `slow` once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_list = threading.Event()

    @override
    def list_folders(self, uri: S3Uri, *arguments: Any, **options: Any) -> list[str]:
        if "slow" in str(uri):
            assert self.may_list.wait(30)
        return super().list_folders(uri, *arguments, **options)


class Counted(CountingBackend):
    """A model that counts opened slots."""

    def __init__(self) -> None:
        self.opened = 0

    @override
    def open_slot(self, *_: Any) -> tuple[()]:
        self.opened += 1
        return ()

    def restore(self, *_: Any) -> CheckpointProgress:
        return CheckpointProgress(1, "uid-1", {})


@pytest.fixture
def store() -> Iterator[SlowFolders]:
    made = SlowFolders()
    yield made
    made.may_list.set()


async def test_a_slow_opening_delays_no_other_run(store: SlowFolders) -> None:
    compute, backend = Compute(), Counted()
    sessions = Sessions(backend, compute, store, TrainerSettings(slots=2))  # type: ignore[arg-type]
    slow_spec = trainer_requests.spec("s3://bucket/runs/team/slow")
    slow = [asyncio.ensure_future(sessions.open("slow", slow_spec)) for _ in range(2)]
    await asyncio.wait_for(sessions.open("fast", trainer_requests.spec("s3://bucket/runs/team/fast")), 10)
    closing = asyncio.ensure_future(sessions.close("slow"))
    await asyncio.wait_for(sessions.close("fast"), 10)
    assert not any(task.done() for task in (*slow, closing))
    store.may_list.set()
    # Requests for one session are still served one after another.
    first, second = await asyncio.gather(*slow)
    assert first is second
    await closing
    assert (sessions.all(), backend.opened) == ([], 2)
    compute.close()


async def test_a_session_that_opens_during_the_shutdown_makes_no_step(store: SlowFolders) -> None:
    compute = Compute()
    sessions = Sessions(Counted(), compute, store, TrainerSettings())  # type: ignore[arg-type]
    opening = asyncio.ensure_future(sessions.open("slow", trainer_requests.spec("s3://bucket/runs/team/slow")))
    await asyncio.sleep(0.05)
    await sessions.rescue(1.0)
    store.may_list.set()
    session = await opening
    with pytest.raises(ProblemError, match="TrainerStopping"):
        await session.train(0, trainer_requests.samples(2))
    compute.close()


FAST = "s3://bucket/runs/team/fast"


class Stubborn(Counted):
    """A model whose slots are released once they may, and not at all while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = 0
        self.closing, self.may_close = threading.Event(), threading.Event()
        self.may_close.set()
        self.error: Exception | None = None

    @override
    def close_slot(self, *_: Any) -> None:
        self.closing.set()
        assert self.may_close.wait(30)
        if self.error is not None:
            raise self.error
        self.closed += 1


class SlowUploads(InMemoryStore):
    """Store whose uploads of checkpoints end once they may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_upload = threading.Event()

    @override
    def upload_artifact(self, source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        if kind is ArtifactKind.checkpoint:
            assert self.may_upload.wait(30)
        return super().upload_artifact(source, uri, kind, **facts)


async def test_a_shutdown_while_a_session_is_closed_waits_for_its_uploads() -> None:
    compute, backend, store = Compute(), Stubborn(), SlowUploads()
    sessions = Sessions(backend, compute, store, TrainerSettings())  # type: ignore[arg-type]
    session = await sessions.open("fast", trainer_requests.spec(FAST))
    await session.train(0, trainer_requests.samples(2))
    uri = S3Uri.parse(f"{FAST}/checkpoints/step-000001")
    session.uploads.submit(UploadJob(ArtifactKind.checkpoint, 1, uri, {"a": b"x"}, None))
    backend.may_close.clear()
    closing = asyncio.ensure_future(sessions.close("fast"))
    assert await asyncio.to_thread(backend.closing.wait, 30)
    assert (await sessions.drain(0), sessions.unsaved_steps()) == (1, [1])
    backend.may_close.set()
    await closing
    assert (await sessions.drain(0), sessions.unsaved_steps()) == (1, [1])
    store.may_upload.set()
    assert (await sessions.drain(30), sessions.unsaved_steps()) == (0, [])
    compute.close()


@pytest.mark.parametrize("returns", [False, True], ids=["stays away", "returns"])
async def test_a_session_that_could_not_be_closed_is_closed_later(returns: bool) -> None:
    compute, backend, store = Compute(), Stubborn(), InMemoryStore()
    sessions = Sessions(backend, compute, store, TrainerSettings())  # type: ignore[arg-type]
    first = await sessions.open("fast", trainer_requests.spec(FAST))
    backend.error = RuntimeError("the device is lost")
    sessions.keep_only([])
    await until(lambda: not sessions._removals)
    assert sessions.names() == ["fast"]
    backend.error = None
    sessions.keep_only(["fast"] if returns else [])
    if returns:
        second = await sessions.open("fast", trainer_requests.spec(FAST))
        assert second is not first
        assert (await second.train(0, trainer_requests.samples(2))).step == 1
    await until(lambda: not sessions._removals)
    assert (backend.closed, len(sessions.all())) == (1, int(returns))
    compute.close()


async def test_two_sessions_that_cannot_be_closed_at_the_same_time_stay_open() -> None:
    compute, backend, store = Compute(), Stubborn(), InMemoryStore()
    sessions = Sessions(backend, compute, store, TrainerSettings(slots=2))  # type: ignore[arg-type]
    for name in ("fast", "faster"):
        await sessions.open(name, trainer_requests.spec(f"s3://bucket/runs/team/{name}"))
    backend.error = RuntimeError("the device is lost")
    backend.may_close.clear()
    closing = [asyncio.ensure_future(sessions.close(name)) for name in ("fast", "faster")]
    await asyncio.sleep(0)
    backend.may_close.set()
    assert await asyncio.gather(*closing, return_exceptions=True) == [backend.error] * 2
    assert sessions.names() == ["fast", "faster"]
    compute.close()


async def test_a_session_opens_after_the_uploads_of_the_former_one() -> None:
    compute, store = Compute(), SlowUploads()
    sessions = Sessions(Counted(), compute, store, TrainerSettings(shutdown_seconds=0.05))  # type: ignore[arg-type]
    session = await sessions.open("fast", trainer_requests.spec(FAST))
    await session.train(0, trainer_requests.samples(2))
    sessions.keep_only([])
    await until(lambda: not sessions._removals)
    sessions.keep_only(["fast", "faster"])
    with pytest.raises(ProblemError, match="WaitingForArtifacts") as refused:
        await sessions.open("fast", trainer_requests.spec(FAST))
    assert refused.value.status == 503
    await sessions.open("faster", trainer_requests.spec("s3://bucket/runs/team/faster"))
    store.may_upload.set()
    assert await sessions.drain(30) == 0
    assert (await sessions.open("fast", trainer_requests.spec(FAST))).state.step == 1
    compute.close()
