"""A trainer knows whether a last checkpoint fits into its grace period, and says so before and after it is stopped."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer import process
from rlrun_trainer.artifacts.upload_queue import UploadJob, UploadQueue
from rlrun_trainer.runtime.compute_thread import Compute, Units
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.shutdown_budget import exceeds_grace_period
from typing_extensions import override

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.support.waiting import until

RUN_URI = "s3://bucket/runs/team/uid-1"


@pytest.mark.parametrize(
    ("step", "checkpoint", "budget", "fits"),
    [(10, None, 5, True), (0, 50, 50, True), (10, 40, 50, True), (11, 40, 50, False), (0, 51, 50, False)],
)
def test_the_newest_step_and_checkpoint_must_fit(
    step: float, checkpoint: float | None, budget: float, fits: bool
) -> None:
    problem = exceeds_grace_period(step, checkpoint, budget)
    assert (problem is None) is fits
    if problem is not None:
        assert problem.reason == Reason.CHECKPOINT_EXCEEDS_GRACE_PERIOD
        assert f"checkpoint {checkpoint} s" in problem.message
        assert "terminationGracePeriodSeconds" in problem.message


async def test_the_duration_of_a_checkpoint_is_that_of_snapshot_and_upload() -> None:
    ticks = iter(range(0, 1000, 7))
    queue = UploadQueue(InMemoryStore(), trainer_requests.spec(RUN_URI), 4, 2**30, 3, clock=lambda: float(next(ticks)))
    for kind in (ArtifactKind.adapter, ArtifactKind.checkpoint):
        assert queue.checkpoint_seconds is None
        uri = S3Uri.parse(f"{RUN_URI}/{kind}s/step-000001")
        queue.submit(UploadJob(kind, 1, uri, {"a": b"x"}, None, snapshot_seconds=2.0))
        assert await queue.drain(30) == 0
    assert queue.checkpoint_seconds == 9.0


class SlowStore(InMemoryStore):
    """A store whose uploads of checkpoints wait until they may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()

    @override
    def upload_artifact(self, source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        if kind == ArtifactKind.checkpoint:
            assert self.may_end.wait(60)
        return super().upload_artifact(source, uri, kind, **facts)


class CountingBackend:
    """A model that learns nothing."""

    vocab_size = trainer_requests.VOCABULARY
    warnings: Sequence[Problem] = ()

    def open_slot(self, *_: Any) -> Sequence[Problem]:
        return ()

    def close_slot(self, *_: Any) -> None:
        pass

    def train(self, *_: Any) -> Units[dict[str, float]]:
        yield
        return {"loss": 0.0}

    def policy_files(self, *_: Any) -> dict[str, bytes]:
        return {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}

    snapshot = policy_files

    def stop(self) -> None:
        pass


@pytest.fixture
async def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sessions with one open session after a step, their store, and what the trainer says when it ends."""
    monkeypatch.setenv("RLRUN_TERMINATION_LOG", str(tmp_path / "termination-log"))
    compute, store = Compute(), SlowStore()
    sessions = Sessions(CountingBackend(), compute, store, TrainerSettings())  # type: ignore[arg-type]
    session = await sessions.open("run", trainer_requests.spec(RUN_URI))
    await session.train(0, trainer_requests.samples(2), "batch")

    def message() -> dict[str, str] | None:
        file = tmp_path / "termination-log"
        return json.loads(file.read_text()) if file.exists() else None

    yield sessions, store, message
    store.may_end.set()
    await sessions.drain(30)
    compute.close()


Opened = tuple[Sessions, SlowStore, Callable[[], dict[str, str] | None]]


async def test_a_checkpoint_that_is_complete_in_time_is_not_mentioned(opened: Opened) -> None:
    sessions, store, message = opened
    store.may_end.set()
    await process._shut_down(sessions, TrainerSettings(shutdown_seconds=30))
    assert sessions.get("run").state.checkpoints == [1]
    assert message() is None


async def test_a_checkpoint_that_did_not_fit_is_the_last_word_of_the_trainer(opened: Opened) -> None:
    sessions, _, message = opened
    await process._shut_down(sessions, TrainerSettings(shutdown_seconds=0.2))
    said = message()
    assert said is not None
    assert said["reason"] == "CheckpointExceedsGracePeriod"
    assert "could not complete the checkpoint of step 1 within 0 s" in said["message"]


async def test_a_session_tells_that_a_checkpoint_would_not_fit(opened: Opened) -> None:
    sessions, store, _ = opened
    session = sessions.get("run")
    session._settings = TrainerSettings(shutdown_seconds=0.0)
    assert session.state.shutdown is None, "nothing is known yet"
    store.may_end.set()
    await session.save_checkpoint(1, {})
    await until(lambda: session.state.checkpoints == [1])
    problem = session.state.shutdown
    assert problem is not None
    assert problem.reason == "CheckpointExceedsGracePeriod"
