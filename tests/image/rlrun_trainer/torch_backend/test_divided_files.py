"""Checkpoints and policies of all weights, whose files all processes write."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import torch
from rlrun.protocol.policy import PolicyKind
from rlrun.service.errors import ProblemError
from rlrun.storage.manifest import ArtifactKind, Manifest, weights_digest
from rlrun.storage.store import build_manifest
from rlrun_trainer.artifacts.artifact_files import Files, TempFolder
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.checkpoint_names import stored_weights
from rlrun_trainer.runtime.process_group import ProcessGroup
from rlrun_trainer.torch_backend import full_weights
from rlrun_trainer.torch_backend.checkpoint_format import restore, snapshot
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor
from rlrun_trainer.torch_backend.divided_files import DividedFolder, StoredTensors, divide, write_index
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tests.support import model_families, tiny_model
from tests.support.two_processes import on_both

PROGRESS = CheckpointProgress(1, "uid", {})


def path_of(files: Files) -> Path:
    assert isinstance(files, TempFolder)
    return files.path


def test_processes_write_whole_layers_of_about_the_same_size() -> None:
    sizes = {"model.embed_tokens.weight": 100, "lm_head.weight": 100}
    sizes |= {f"model.layers.{i}.{name}.weight": size for i in range(10) for name, size in (("q", 20), ("up", 60))}
    writers = divide(sizes, 3)
    assert writers["model.embed_tokens.weight"] == writers["lm_head.weight"]
    for i in range(10):
        assert writers[f"model.layers.{i}.q.weight"] == writers[f"model.layers.{i}.up.weight"]
    written = [sum(size for name, size in sizes.items() if writers[name] == rank) for rank in range(3)]
    assert max(written) <= 1.1 * sum(sizes.values()) / 3
    assert set(divide(sizes, 1).values()) == {0}
    moments = {f"{name}/exp_avg": size for name, size in sizes.items()}
    assert {name.partition("/")[0]: rank for name, rank in divide(moments, 3).items()} == writers


@pytest.mark.parametrize("save", [tiny_model.save_model, tiny_model.save_moe])
def test_both_processes_write_a_checkpoint_that_one_process_reads(tmp_path: Path, save: Callable[..., Path]) -> None:
    model_dir = save(tmp_path / "model")
    kept = tmp_path / "kept"

    def work(world: ProcessGroup) -> list[str]:
        base = tiny_model.load(model_dir, world=world, scratch=tmp_path / "scratch")
        slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
        for number, parameter in enumerate(slot.parameters.values()):
            parameter.grad = torch.full_like(parameter, 1.0 + number)
        slot.optimizer.step()
        with torch.no_grad():
            for number, parameter in enumerate(slot.parameters.values()):
                parameter.fill_(number)
        files = snapshot(base, slot, PROGRESS)
        if not world.is_leader:
            return []
        path_of(files).rename(kept)
        return sorted(path.name for path in kept.glob("*.safetensors"))

    names, none = on_both(work)
    assert (names, none) == (
        [f"{kind}-0000{i}-of-00002.safetensors" for kind in ("model", "optimizer") for i in (1, 2)]
        + ["rng.safetensors"],
        [],
    )
    assert (
        type(AutoModelForCausalLM.from_pretrained(kept)).__name__
        == type(AutoModelForCausalLM.from_pretrained(model_dir)).__name__
    )

    alone = tiny_model.load(model_dir, scratch=tmp_path / "scratch")
    slot = alone.open_weights("run", tiny_model.MODEL, 0, compared=False)
    restore(alone, slot, kept)
    for number, parameter in enumerate(slot.parameters.values()):
        assert torch.equal(parameter, torch.full_like(parameter, number))
        moment = slot.optimizer.state[parameter]["exp_avg"]
        assert torch.allclose(moment, torch.full_like(parameter, 0.1 * (1.0 + number)))
    again = snapshot(alone, slot, PROGRESS)
    for file in ("model.safetensors", "optimizer.safetensors"):
        ours, theirs = StoredTensors(path_of(again), file), StoredTensors(kept, file)
        assert sorted(ours.names()) == sorted(theirs.names())
        assert all(torch.equal(ours.read(name), theirs.read(name)) for name in ours.names())


@pytest.mark.parametrize("save", [tiny_model.save_model, tiny_model.save_moe])
def test_both_processes_write_a_policy_that_equals_the_one_of_one_process(
    tmp_path: Path, save: Callable[..., Path]
) -> None:
    model_dir = save(tmp_path / "model")

    def trained(world: ProcessGroup) -> CollectiveExecutor:
        crew = CollectiveExecutor(
            tiny_model.load(model_dir, world=world, dtype="bfloat16", scratch=tmp_path / "scratch")
        )
        slot = crew.base.open_weights("run", tiny_model.MODEL, 0, compared=False)
        with torch.no_grad():
            for number, parameter in enumerate(slot.parameters.values()):
                parameter.mul_(1 + number / 7)
        return crew

    def work(world: ProcessGroup) -> list[str]:
        crew, digests = trained(world), []
        if not world.is_leader:
            crew.follow()
            return []
        for number in (1, 2):
            files = crew.policy_files("run")
            folder = path_of(files).rename(tmp_path / f"policy {number}")
            empty = Manifest(kind=ArtifactKind.policy, files=[], created_at=datetime.now(UTC))
            digests.append(weights_digest(build_manifest(folder, empty).files, PolicyKind.weights))
        crew.stop()
        return digests

    (first, again), none = on_both(work)
    assert none == []
    assert first == again
    files = trained(ProcessGroup()).policy_files("run")
    policy, alone = tmp_path / "policy 1", path_of(files)
    weights = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    assert sorted(path.name for path in policy.glob("*.safetensors*")) == [*weights, "model.safetensors.index.json"]
    sizes = [(policy / name).stat().st_size for name in weights]
    assert max(sizes) < 0.7 * sum(sizes)
    ours, theirs = StoredTensors(policy, "model.safetensors"), StoredTensors(alone, "model.safetensors")
    assert sorted(ours.names()) == sorted(theirs.names()) == sorted(stored_weights(policy))
    for name in ours.names():
        assert ours.read(name).dtype == theirs.read(name).dtype == torch.bfloat16
        assert torch.equal(ours.read(name), theirs.read(name))
    for name in ("config.json", "tokenizer.json"):
        assert (policy / name).read_bytes() == (alone / name).read_bytes()
    stock, whole = (AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (policy, alone))
    assert stock.keys() == whole.keys()
    assert all(torch.equal(stock[name], whole[name]) for name in whole)


def test_only_processes_of_the_first_node_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_dir = tiny_model.save_model(tmp_path / "model")

    def work(world: ProcessGroup) -> list[str]:
        written: list[str] = []

        def save(tensors: dict[str, torch.Tensor], path: Path, **arguments: object) -> None:
            written.append(path.name)
            save_file(tensors, path, **arguments)

        monkeypatch.setattr("rlrun_trainer.torch_backend.divided_files.save_file", save)
        base = tiny_model.load(model_dir, world=replace(world, local_size=1), scratch=tmp_path / "scratch")
        slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
        files = snapshot(base, slot, PROGRESS)
        folder = path_of(files) if world.is_leader else None
        restore(base, slot, folder)
        return written

    assert on_both(work) == [["model.safetensors", "optimizer.safetensors"], []]


@pytest.mark.parametrize("family", ["glm4_moe", "gemma4_text"])
def test_buffers_are_in_a_checkpoint(tmp_path: Path, family: str) -> None:
    model_dir = model_families.save_family(tmp_path / "model", family)
    base = tiny_model.load(model_dir, slots=1, scratch=tmp_path / "scratch")
    slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
    names = [name for name, _ in base.model.named_buffers() if name in base.model.state_dict()]
    assert names
    files = snapshot(base, slot, PROGRESS)
    restore(base, slot, path_of(files))
    policy = full_weights.write_model(base, slot, torch.bfloat16)
    assert policy is not None
    for folder in (path_of(files), policy.path):
        assert set(StoredTensors(folder, "model.safetensors").names()) == set(stored_weights(model_dir))


def test_the_index_of_a_checkpoint_names_its_own_files_only(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "../a.bin"}}')
    save_file({"a": torch.ones(1)}, tmp_path / "model-00001-of-00001.safetensors")
    write_index(tmp_path)
    assert json.loads(index.read_text())["weight_map"] == {"a": "model-00001-of-00001.safetensors"}
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    write_index(tmp_path)
    assert not index.exists()


def test_a_missing_file_is_noticed(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "optimizer-00001-of-00002.safetensors")
    with pytest.raises(ProblemError, match="or not all of its parts"):
        StoredTensors(tmp_path, "optimizer.safetensors")
    save_file({}, tmp_path / "optimizer-00002-of-00002.safetensors")
    assert StoredTensors(tmp_path, "optimizer.safetensors").names() == ["a"]


def test_a_full_disk_of_one_process_fails_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    def work(world: ProcessGroup) -> None:
        divided = DividedFolder(world, tmp_path)
        if not world.is_leader:
            monkeypatch.setattr("rlrun_trainer.torch_backend.divided_files.save_file", full)
        divided.write("model.safetensors", {"a": torch.ones(1)})

    for error in on_both(work):
        assert "TrainerDiskFull" in error
        assert "No space left" in error


def test_a_disk_that_is_full_after_the_weights_fails_both_before_the_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other process would wait for the first one, which has ended the checkpoint."""
    model_dir = tiny_model.save_model(tmp_path / "model")

    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    def work(world: ProcessGroup) -> None:
        base = tiny_model.load(model_dir, world=world, scratch=tmp_path / "scratch")
        slot = base.open_weights("run", tiny_model.MODEL, 0, compared=False)
        # Only the first process calls it.
        monkeypatch.setattr(full_weights, "copy_companions", full)
        snapshot(base, slot, PROGRESS)

    for error in on_both(work):
        assert "TrainerDiskFull" in error
        assert "No space left" in error
