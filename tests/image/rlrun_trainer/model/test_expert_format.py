"""Adapters of routed experts in files, and back from the files of a checkpoint."""

from pathlib import Path

import pytest
import torch
from rlrun.service.errors import ProblemError
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.model.base_model import AdapterSlot, BaseModel
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.optimization.step import StepPlan, train_step
from rlrun_trainer.torch_backend import checkpoint_format
from safetensors.torch import load_file, save_file

from tests.support import model_families, tiny_model
from tests.support.adapter_files import EXPECTED, expected, written_by_trainer

PLAN = StepPlan(learning_rate=1e-2, micro_batch_tokens=64, max_grad_norm=1.0)
SHAPE = AdapterShape(4, 8.0, ("all-linear", "experts"))
TENSORS = expected()


@pytest.mark.parametrize("family", TENSORS)
def test_the_trainer_writes_the_tensors_that_the_engine_is_tested_with(tmp_path: Path, family: str) -> None:
    assert written_by_trainer(family, tmp_path) == TENSORS[family], f"write {EXPECTED.name} again, and test the engine"


def saved(base: BaseModel, slot: AdapterSlot, folder: Path) -> Path:
    files = checkpoint_format.snapshot(base, slot, CheckpointProgress(1, "uid", {}))
    assert isinstance(files, dict)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "nemotron_h"])
def test_a_checkpoint_continues_bit_for_bit(tmp_path: Path, family: str) -> None:
    base = tiny_model.load(model_families.save_family(tmp_path / "model", family))
    slot = base.open("a", tiny_model.MODEL, SHAPE, 0)
    for seed in range(2):
        train_step(base, slot, tiny_model.samples(8, seed), PLAN)
    folder = saved(base, slot, tmp_path / "checkpoint")
    train_step(base, slot, tiny_model.samples(8, 2), PLAN)
    again = base.open("b", tiny_model.MODEL, SHAPE, 9)
    checkpoint_format.restore(base, again, folder)
    train_step(base, again, tiny_model.samples(8, 2), PLAN)
    assert again.files() == slot.files()


@pytest.mark.parametrize(
    "change", ["a projection is missing", "a projection is too small", "a factor differs", "there are no experts"]
)
def test_a_checkpoint_of_other_experts_is_refused(tmp_path: Path, change: str) -> None:
    base = tiny_model.load(tiny_model.save_moe(tmp_path / "model"))
    folder = saved(base, base.open("a", tiny_model.MODEL, SHAPE, 0), tmp_path / "checkpoint")
    file = folder / "adapter_model.safetensors"
    name = "base_model.model.model.layers.1.mlp.experts.3.up_proj.lora_B.weight"
    tensors = load_file(file)
    if change == "a projection is missing":
        del tensors[name]
    elif change == "a factor differs":
        tensors[name.replace("lora_B", "lora_A")] += 1
    elif change == "a projection is too small":
        tensors[name] = tensors[name][1:].contiguous()
    else:
        tensors = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    save_file(tensors, file)
    with pytest.raises(ProblemError) as caught:
        checkpoint_format.restore(base, base.open("b", tiny_model.MODEL, SHAPE, 9), folder)
    assert caught.value.problem.reason == "CheckpointMismatch"


def test_gate_and_up_share_a_factor_which_single_experts_have_twice(tmp_path: Path) -> None:
    base = tiny_model.load(tiny_model.save_moe(tmp_path))
    slot = base.open("a", tiny_model.MODEL, AdapterShape(4, 8.0, ("experts",)), 0)
    tensors = slot.files()
    (tmp_path / "adapter.safetensors").write_bytes(tensors["adapter_model.safetensors"])
    stored = load_file(tmp_path / "adapter.safetensors")
    trained = slot.parameters["base_model.model.model.layers.0.mlp.experts.gate_up_proj.lora_A.weight"]
    assert trained.shape == (4, 4, 32)
    for expert in range(4):
        gate, up = (
            stored[f"base_model.model.model.layers.0.mlp.experts.{expert}.{name}.lora_A.weight"]
            for name in ("gate_proj", "up_proj")
        )
        assert torch.equal(gate, trained[expert].cpu())
        assert torch.equal(up, gate)
