"""Sessions of different runs do not wait for each other."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from typing_extensions import override

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
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
