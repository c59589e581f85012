"""A trainer that is killed loses at most about `recovery_seconds` of a run's device time, also without checkpoints."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from rlrun.constants import LATER
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import AccessDenied, Unreachable
from rlrun_trainer.artifacts.checkpoint_facts import (
    TRAINER,
    CheckpointProgress,
    json_files,
    progress_of,
    read_facts,
    read_orchestrator_state,
)
from rlrun_trainer.runtime.compute_thread import Compute, Units
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.training_session import TrainingSession

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_trainer.sessions.test_shutdown_budget import CountingBackend

RUN_URI = "s3://bucket/runs/team/uid-1"
LAYOUT = RunLayout(S3Uri.parse(RUN_URI))
STEP_SECONDS = 4.0
OPENING_SECONDS = 1.0
LIMIT = 10.0
"""A copy is due after every third step."""


class Saving(CountingBackend):
    """A model whose steps take STEP_SECONDS, and whose checkpoints contain only the progress."""

    def __init__(self) -> None:
        self.now = 0.0
        self.opened: list[str] = []
        self.restored: list[int] = []
        self.on_step: Callable[[], None] = lambda: None
        self.full = False
        """True if the disk has no capacity for a snapshot."""

    def open_slot(self, name: str, *_: Any) -> tuple[()]:
        self.opened.append(name)
        self.now += OPENING_SECONDS
        self.is_initial = True
        return ()

    def close_slot(self, name: str) -> None:
        self.opened.remove(name)

    def train(self, *_: Any) -> Units[dict[str, float]]:
        yield
        self.now += STEP_SECONDS
        self.on_step()
        return {"loss": 0.0}

    def snapshot(self, name: str, progress: CheckpointProgress) -> dict[str, bytes]:
        if self.full:
            raise ProblemError.of(LATER, "TrainerDiskFull", "no space left on device")
        return self.policy_files() | json_files(progress, {}, 0, None, "base")

    def restore(self, name: str, folder: Path, resume: bool, optimizer: bool = True) -> CheckpointProgress:
        assert resume
        assert self.is_initial
        self.is_initial = False
        progress = progress_of(read_facts(folder), read_orchestrator_state(folder))
        self.restored.append(progress.step)
        return progress


class Trainer:
    """A trainer process whose device has a clock of its own."""

    def __init__(self, store: InMemoryStore, **settings: Any) -> None:
        self.backend = Saving()
        self.compute = Compute(lambda: self.backend.now)
        given = TrainerSettings(**{"recovery_seconds": LIMIT} | settings)
        self.sessions = Sessions(self.backend, self.compute, store, given)  # type: ignore[arg-type]

    async def open(self, **spec: Any) -> TrainingSession:
        return await self.sessions.open("run", trainer_requests.spec(RUN_URI, **spec))

    async def make_steps(self, until: int) -> list[int]:
        """Make the steps up to `until`, and return the steps of which copies are made."""
        session, copied = self.sessions.get("run"), []
        while (step := session.state.step) < until:
            result = await session.train(step, trainer_requests.samples(2), f"batch {step}")
            copied += [result.step] * result.recovery_copy
            await settled(session)
        return copied


async def settled(session: TrainingSession) -> None:
    if session._copying is not None:
        await session._copying
    assert await session.uploads.drain(30) == 0


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Trainer]]:
    made: list[Trainer] = []

    def trainer(*arguments: Any, **settings: Any) -> Trainer:
        made.append(Trainer(*arguments, **settings))
        return made[-1]

    yield trainer
    for one in made:
        one.compute.close()


Make = Callable[..., Trainer]


def steps_in(store: InMemoryStore, folder: S3Uri) -> list[int]:
    return [int(name.removeprefix("step-")) for name in store.list_folders(folder)]


async def test_a_copy_is_made_after_the_device_time_and_is_invisible(make: Make) -> None:
    store = InMemoryStore()
    trainer = make(store)
    session = await trainer.open()
    assert await trainer.make_steps(10) == [3, 6, 9]
    assert steps_in(store, LAYOUT.recovery) == [6, 9]
    state = session.state
    assert (state.checkpoints, state.adapters, state.uploads_pending, state.problem) == ([], [], 0, None)
    facts = json.loads(store.get_bytes(LAYOUT.recovery_copy(9) / TRAINER))
    assert (facts["step"], facts["run_uid"], facts["orchestrator_step"]) == (9, "uid-1", 0)
    assert facts["made"]["batch_id"] == "batch 8"
    manifest = store.read_manifest(LAYOUT.recovery_copy(9))
    assert manifest is not None
    assert (manifest.kind, manifest.step, manifest.run_uid) == (ArtifactKind.recovery, 9, "uid-1")


async def test_device_time_counts_since_the_newest_checkpoint(make: Make) -> None:
    store = InMemoryStore()
    trainer = make(store)
    session = await trainer.open()
    assert await trainer.make_steps(2) == []
    await session.save_checkpoint(2, {"cursor": 2})
    assert await trainer.make_steps(6) == [5]
    await session.save_checkpoint(6, {"cursor": 6})
    await settled(session)
    assert steps_in(store, LAYOUT.recovery) == []
    assert await trainer.make_steps(9) == [9]
    facts = json.loads(store.get_bytes(LAYOUT.recovery_copy(9) / TRAINER))
    assert facts["orchestrator_step"] == 6, "the newest state of the orchestrator that the trainer knows"


@pytest.mark.parametrize("settings", [{"recovery_seconds": 0.0}, {"recovery_seconds": 1000.0}])
async def test_without_enough_device_time_no_copy_is_made(make: Make, settings: dict[str, float]) -> None:
    store = InMemoryStore()
    trainer = make(store, **settings)
    await trainer.open()
    assert await trainer.make_steps(9) == []
    assert steps_in(store, LAYOUT.recovery) == []


async def test_the_last_step_has_no_copy_because_its_checkpoint_follows(make: Make) -> None:
    trainer = make(InMemoryStore())
    await trainer.open(max_steps=3)
    assert await trainer.make_steps(3) == []


async def test_a_copy_that_cannot_be_made_is_made_after_a_later_step(make: Make) -> None:
    store = InMemoryStore()
    trainer = make(store)
    session = await trainer.open()
    trainer.backend.full = True
    assert await trainer.make_steps(3) == [3]
    assert steps_in(store, LAYOUT.recovery) == []
    trainer.backend.full = False
    assert await trainer.make_steps(4) == [4]
    assert steps_in(store, LAYOUT.recovery) == [4]
    assert session.state.problem is None


async def test_a_copy_that_s3_refuses_is_invisible_and_the_next_step_is_copied_instead(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryStore()
    trainer, upload = make(store), store.upload_artifact

    def refuse_copies(source: Any, uri: S3Uri, kind: ArtifactKind, **facts: Any) -> Manifest:
        if kind is ArtifactKind.recovery:
            raise AccessDenied("no right for recovery/")
        return upload(source, uri, kind, **facts)

    monkeypatch.setattr(store, "upload_artifact", refuse_copies)
    session = await trainer.open()
    session.uploads.wait = lambda _: 3600.0
    await trainer.make_steps(2)
    assert (await session.train(2, trainer_requests.samples(2))).recovery_copy
    assert session._copying is not None
    await session._copying
    assert (session.uploads.pending, session.state.uploads_pending, session.state.problem) == (1, 0, None)
    await session.save_adapter(3, {})
    await settled(session)
    monkeypatch.setattr(store, "upload_artifact", upload)
    assert await trainer.make_steps(4) == [4]


async def test_no_copies_are_made_while_s3_is_away(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = InMemoryStore()
    trainer, upload = make(store), store.upload
    session = await trainer.open()

    def away(*_: Any, **__: Any) -> Manifest:
        raise Unreachable("away")

    monkeypatch.setattr(store, "upload", away)
    assert await trainer.make_steps(6) == []
    assert session.state.problem is not None
    monkeypatch.setattr(store, "upload", upload)


async def test_a_step_during_shutdown_is_not_copied(make: Make) -> None:
    trainer = make(InMemoryStore())
    session = await trainer.open()
    await trainer.make_steps(2)
    trainer.backend.on_step = session.reject_steps
    assert await trainer.make_steps(3) == []


async def test_a_copy_contains_the_step_that_it_names(make: Make) -> None:
    """The next step may come before the copy."""
    store = InMemoryStore()
    trainer = make(store)
    session = await trainer.open()
    await trainer.make_steps(2)
    assert (await session.train(2, trainer_requests.samples(2))).recovery_copy
    assert (await session.train(3, trainer_requests.samples(2))).recovery_copy
    await settled(session)
    assert steps_in(store, LAYOUT.recovery) == [4]
    assert json.loads(store.get_bytes(LAYOUT.recovery_copy(4) / TRAINER))["step"] == 4


async def test_a_closed_session_makes_no_copy(make: Make) -> None:
    store = InMemoryStore()
    trainer = make(store)
    session = await trainer.open()
    await trainer.make_steps(2)
    assert (await session.train(2, trainer_requests.samples(2))).recovery_copy
    await trainer.sessions.close("run")
    await settled(session)
    assert steps_in(store, LAYOUT.recovery) == []


async def test_the_next_trainer_starts_from_the_newest_copy(make: Make) -> None:
    store = InMemoryStore()
    first = make(store)
    session = await first.open()
    await first.make_steps(2)
    await session.save_checkpoint(2, {"cursor": 2})
    await first.make_steps(9)
    second = make(store)
    state = (await second.open(resume_from=str(LAYOUT.checkpoint(2)))).state
    assert (state.step, state.policy.version) == (8, 8)
    assert (state.orchestrator_state, state.orchestrator_state_step) == ({"cursor": 2}, 2)
    assert state.last is not None
    assert (state.last.batch_id, state.last.recovery_copy) == ("batch 7", False)
    assert second.backend.restored == [8]
    assert await second.make_steps(12) == [11]
    assert steps_in(store, LAYOUT.recovery) == [8, 11]


async def test_a_newer_checkpoint_wins_and_a_trainer_that_makes_no_copies_starts_from_them(make: Make) -> None:
    store = InMemoryStore()
    first = make(store)
    session = await first.open()
    await first.make_steps(5)
    assert steps_in(store, LAYOUT.recovery) == [3]
    assert session.uploads.copies is not None
    session.uploads.copies = None  # the checkpoint is complete, and the trainer dies before it deletes the copy
    assert (await make(store, recovery_seconds=0.0).open()).state.step == 3
    await session.save_checkpoint(5, {})
    await settled(session)
    assert (await make(store).open(resume_from=str(LAYOUT.checkpoint(5)))).state.step == 5


@pytest.mark.parametrize("resume_from", [None, 1])
@pytest.mark.parametrize("recovery_seconds", [0.0, LIMIT])
async def test_a_checkpoint_that_is_complete_since_the_orchestrator_chose_wins(
    make: Make, resume_from: int | None, recovery_seconds: float
) -> None:
    """It deletes all copies up to its step, so that no other state of these steps is left."""
    store = InMemoryStore()
    first = make(store)
    session = await first.open()
    for step in (1, 5):
        await first.make_steps(step)
        await session.save_checkpoint(step, {"cursor": step})
    await settled(session)
    assert steps_in(store, LAYOUT.recovery) == []
    second = make(store, recovery_seconds=recovery_seconds)
    session = await second.open(resume_from=resume_from and str(LAYOUT.checkpoint(resume_from)))
    state = session.state
    assert (state.step, state.checkpoints) == (5, [5])
    assert (state.orchestrator_state, state.orchestrator_state_step) == ({"cursor": 5}, 5)
    assert (await session.save_checkpoint(5, {})).uploads_pending == 0, "its checkpoint is the session's own"
    assert session.uploads.usable_checkpoint == 5
    await second.sessions.rescue(30)
    assert second.sessions.unsaved_steps() == []


@pytest.mark.parametrize(("recovery_seconds", "step"), [(0.0, 0), (LIMIT, None)])
async def test_only_a_trainer_that_makes_no_copies_starts_without_the_right_to_them(
    make: Make, monkeypatch: pytest.MonkeyPatch, recovery_seconds: float, step: int | None
) -> None:
    """An older rlrun-server does not know the folder."""
    store, trainer = InMemoryStore(), make(InMemoryStore(), recovery_seconds=recovery_seconds)
    trainer.sessions._store = store
    listed = store.list_folders

    def refuse(uri: S3Uri, *arguments: Any, **options: Any) -> list[str]:
        if uri == LAYOUT.recovery:
            raise AccessDenied("rlrun-server signs no requests for recovery/")
        return listed(uri, *arguments, **options)

    monkeypatch.setattr(store, "list_folders", refuse)
    if step is None:
        with pytest.raises(ProblemError, match="S3AccessDenied"):
            await trainer.open()
    else:
        assert (await trainer.open()).state.step == step


async def test_a_session_does_not_start_from_an_older_state_because_memory_was_short(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(3)
    second = make(store)

    def fail(*_: Any) -> CheckpointProgress:
        raise ProblemError.of(507, "TrainerOutOfMemory", "the checkpoint does not fit")

    monkeypatch.setattr(second.backend, "restore", fail)
    with pytest.raises(ProblemError) as refused:
        await second.open()
    assert (refused.value.status, second.backend.opened) == (507, [])


@pytest.mark.parametrize("file", [TRAINER, MANIFEST])
async def test_a_newer_checkpoint_that_lost_a_file_is_skipped(make: Make, file: str) -> None:
    store = InMemoryStore()
    first = make(store)
    session = await first.open()
    for step in (1, 2, 4):
        await first.make_steps(step)
        if step != 4:
            await session.save_checkpoint(step, {})
    store.publish(str(LAYOUT.checkpoint(4)), {TRAINER: b"{}"}, ArtifactKind.checkpoint)
    del store.objects[str(LAYOUT.checkpoint(4) / file)]
    second = make(store)
    state = (await second.open(resume_from=str(LAYOUT.checkpoint(1)))).state
    assert (state.step, second.backend.opened) == (2, ["run"])


def damage(store: InMemoryStore, step: int) -> None:
    store.objects[str(LAYOUT.recovery_copy(step) / "adapter_model.safetensors")] = b"Weights"


def lose_file(store: InMemoryStore, step: int) -> None:
    del store.objects[str(LAYOUT.recovery_copy(step) / TRAINER)]


def lose_manifest(store: InMemoryStore, step: int) -> None:
    del store.objects[str(LAYOUT.recovery_copy(step) / MANIFEST)]


def write_other_kind(store: InMemoryStore, step: int) -> None:
    files = {name: store.get_bytes(LAYOUT.recovery_copy(step) / name) for name in (TRAINER, "adapter_config.json")}
    store.publish(str(LAYOUT.recovery_copy(step)), files, ArtifactKind.checkpoint)


def write_other_run(store: InMemoryStore, step: int) -> None:
    files = json_files(CheckpointProgress(step, "uid-2", {}), {}, 0, None, "base")
    store.publish(str(LAYOUT.recovery_copy(step)), files, ArtifactKind.recovery)


FAULTS = pytest.mark.parametrize("fault", [damage, lose_file, lose_manifest, write_other_kind, write_other_run])


@FAULTS
async def test_an_unusable_copy_is_skipped_and_later_deleted(
    make: Make, fault: Callable[[InMemoryStore, int], None], caplog: pytest.LogCaptureFixture
) -> None:
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(6)
    fault(store, 6)
    second = make(store)
    assert (await second.open()).state.step == 3
    assert f"{LAYOUT.recovery_copy(6)} cannot be used" in caplog.text
    assert second.backend.opened == ["run"]
    await second.make_steps(6)
    assert steps_in(store, LAYOUT.recovery) == [3, 6]
    assert (await make(store).open()).state.step == 6


@FAULTS
async def test_without_a_usable_copy_a_session_starts_from_its_checkpoint(
    make: Make, fault: Callable[[InMemoryStore, int], None]
) -> None:
    store = InMemoryStore()
    first = make(store)
    session = await first.open()
    await first.make_steps(1)
    await session.save_checkpoint(1, {})
    await first.make_steps(7)
    assert steps_in(store, LAYOUT.recovery) == [4, 7]
    for step in (4, 7):
        fault(store, step)
    second = make(store)
    assert (await second.open(resume_from=str(LAYOUT.checkpoint(1)))).state.step == 1
    assert await second.make_steps(4) == [4]
    assert steps_in(store, LAYOUT.recovery) == [4]
    assert (await make(store).open(resume_from=str(LAYOUT.checkpoint(1)))).state.step == 4


async def test_a_session_does_not_start_from_an_older_state_because_s3_is_away(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(3)
    store.fail = Unreachable("away")
    second = make(store)
    with pytest.raises(ProblemError) as refused:
        await second.open()
    assert (refused.value.status, second.backend.opened) == (503, [])


async def test_a_checkpoint_of_another_process_is_not_taken_for_that_of_the_copy(make: Make) -> None:
    """The other process completed it after the orchestrator had chosen an older one."""
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(3)
    store.publish(str(LAYOUT.checkpoint(3)), {"weights": b"of another process"}, ArtifactKind.checkpoint)
    session = await make(store).open(resume_from=str(LAYOUT.checkpoint(1)))
    assert session.state.step == 3
    assert (await session.save_checkpoint(3, {})).uploads_pending == 1


async def test_a_checkpoint_of_the_step_of_the_copy_is_made(make: Make) -> None:
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(3)
    second = make(store)
    session = await second.open()
    state = await session.save_checkpoint(3, {"cursor": 3})
    assert state.uploads_pending == 1
    await settled(session)
    assert session.state.checkpoints == [3]
    facts = json.loads(store.get_bytes(LAYOUT.checkpoint(3) / TRAINER))
    assert (facts["step"], facts["orchestrator_step"]) == (3, 3)
    assert steps_in(store, LAYOUT.recovery) == []


async def test_a_shutdown_saves_and_reports_only_steps_that_no_copy_contains(make: Make) -> None:
    store = InMemoryStore()
    first = make(store)
    await first.open()
    await first.make_steps(3)
    assert first.sessions.unsaved_steps() == [], "the copy contains the step"
    second = make(store)
    session = await second.open()
    await second.sessions.rescue(30)
    assert (second.sessions.unsaved_steps(), session.state.checkpoints) == ([], [])

    third = make(store)
    session = await third.open()
    await third.make_steps(4)
    assert third.sessions.unsaved_steps() == [4]
    await third.sessions.rescue(30)
    await settled(session)
    assert (third.sessions.unsaved_steps(), session.state.checkpoints) == ([], [4])
