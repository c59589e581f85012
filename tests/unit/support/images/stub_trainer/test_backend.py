"""The stub's policies follow from seed and batches alone, and its checkpoints hold all of its state."""

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.artifact_files import Files, TempFolder
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.runtime.compute_thread import finish
from rlrun_trainer.runtime.settings import TrainerSettings

from tests.support.images.stub_trainer.backend import StubBackend
from tests.support.trainer_requests import samples, spec

KINDS = ("adapter", "weights")


def digest(files: Files) -> str:
    if isinstance(files, TempFolder):
        data = (files.path / "model.safetensors").read_bytes()
        files.remove()
    else:
        data = files["adapter_model.safetensors"]
    return hashlib.sha256(data).hexdigest()


def write(files: Files, folder: Path) -> Path:
    if isinstance(files, TempFolder):
        return shutil.copytree(files.path, folder)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


class Run:
    """A run alone on a stub."""

    def __init__(self, model_dir: Path, **changes: Any) -> None:
        self.spec = spec("s3://bucket/run", **changes)
        self.backend = StubBackend(TrainerSettings(model_dir=model_dir))
        self.backend.open_slot("run", self.spec)

    def train(self, *steps: int) -> list[str]:
        """Digests of the policies after these steps; every step has a batch of its own."""
        return [self.digest_after(step) for step in steps]

    def digest_after(self, step: int) -> str:
        self.metrics = finish(self.backend.train("run", self.spec, samples(4, seed=step), step))
        return digest(self.backend.policy_files("run"))

    def snapshot(self, folder: Path) -> Path:
        return write(self.backend.snapshot("run", CheckpointProgress(2, "uid-1", {"cursor": 1}, 1)), folder)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_runs_have_equal_policies(model_dir: Path, kind: str) -> None:
    digests = Run(model_dir, kind=kind).train(0, 1, 2)
    assert Run(model_dir, kind=kind).train(0, 1, 2) == digests
    assert len(set(digests)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{"seed": 4}, {"learning_rate": 0.5}])
def test_other_seeds_and_settings_give_other_policies(model_dir: Path, kind: str, changes: Mapping[str, Any]) -> None:
    ours, theirs = (Run(model_dir, kind=kind, **more).train(0, 1) for more in ({}, changes))
    assert not set(ours) & set(theirs)


def test_other_batches_give_other_policies(model_dir: Path) -> None:
    assert Run(model_dir).train(0, 1)[-1] != Run(model_dir).train(0, 2)[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resume", [True, False])
def test_a_restored_run_equals_the_uninterrupted_one(model_dir: Path, tmp_path: Path, kind: str, resume: bool) -> None:
    first = Run(model_dir, kind=kind, warmup_steps=4, kl_penalty={"beta": 0.5})
    first.train(0, 1)
    saved = first.snapshot(tmp_path / "saved")
    digests = first.train(2, 3)
    second = Run(model_dir, kind=kind, warmup_steps=4, kl_penalty={"beta": 0.5}, seed=99)
    progress = second.backend.restore("run", saved, resume)
    assert progress == CheckpointProgress(2, "uid-1", {"cursor": 1}, 1)
    assert second.train(2, 3) == digests
    assert {key: second.metrics[key] for key in ("loss/mean", "optim/lr", "kl_penalty/beta")} == {
        key: first.metrics[key] for key in ("loss/mean", "optim/lr", "kl_penalty/beta")
    }
    names = [
        sorted(path.name for path in run.snapshot(tmp_path / name).iterdir())
        for name, run in (("a", first), ("b", second))
    ]
    # The reference of a resumed run is the base model; that of a warm start is a copy of what it started from.
    assert (names[0] == names[1]) is resume


@pytest.mark.parametrize("file", ["rng.safetensors", "optimizer.safetensors", "adapter_model.safetensors"])
@pytest.mark.parametrize("damage", [b"", b"\0" * 20, None])
def test_a_damaged_checkpoint_is_refused(model_dir: Path, tmp_path: Path, file: str, damage: bytes | None) -> None:
    run = Run(model_dir)
    saved = run.snapshot(tmp_path / "saved")
    if damage is None:
        (saved / file).unlink()
    else:
        (saved / file).write_bytes(damage)
    with pytest.raises(ProblemError, match="The checkpoint is damaged" if damage is not None else f"has no {file}"):
        run.backend.restore("run", saved, True)


def test_the_loss_falls(model_dir: Path) -> None:
    run = Run(model_dir)
    losses = []
    for step in range(5):
        run.train(step)
        losses.append(run.metrics["loss/mean"])
    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 5


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="RLModel's source") as caught:
        StubBackend(TrainerSettings(model_dir=tmp_path))
    assert caught.value.problem.reason == "ModelMissing"
