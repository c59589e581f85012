"""Adapters of the text model of a multimodal checkpoint have the names of that checkpoint."""

import json
from pathlib import Path

import pytest
from peft import PeftModel
from rlrun_trainer.model.peft_format import AdapterShape
from safetensors import safe_open
from transformers import AutoModelForImageTextToText, Qwen3_5Config, Qwen3_5ForConditionalGeneration

from tests.support import tiny_model

TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4,
    "num_position_embeddings": 16, "spatial_merge_size": 1,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Qwen3.5 with a vision tower, as its authors publish it."""
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=TEXT, vision_config=VISION))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_names_of_an_adapter_are_those_of_the_checkpoints_layers(folder: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3_5ForConditionalGeneration"]
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        stored = set(file.keys())
    base = tiny_model.load(folder)
    slot = base.open("a", "owner/qwen", AdapterShape(2, 4, ("all-linear",)), 1)
    layers = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in slot.parameters}
    assert {f"{layer}.weight" for layer in layers} <= stored
    assert {"q_proj", "in_proj_qkv", "gate_proj"} <= {layer.rpartition(".")[2] for layer in layers}


def test_stock_peft_finds_the_layers_in_the_architecture_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    slot = tiny_model.load(folder).open("a", "owner/qwen", AdapterShape(2, 4, ("all-linear",)), 1)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name, data in slot.files().items():
        (adapter / name).write_bytes(data)
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(folder), adapter)
    loaded = {name: p for name, p in model.named_parameters() if "lora_A" in name and "language_model" in name}
    wanted = {name.replace(".weight", ".default.weight"): p for name, p in slot.parameters.items() if "lora_A" in name}
    assert loaded.keys() == wanted.keys()
    assert all((loaded[name].cpu() == wanted[name].cpu()).all() for name in wanted)
