"""Adapters of the text model of a multimodal checkpoint have the names of that checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from rlrun_trainer.artifacts.checkpoint_names import stored_weights
from rlrun_trainer.model.base_model import AdapterSlot
from rlrun_trainer.model.peft_format import AdapterShape
from transformers import AutoModelForImageTextToText

from tests.support import model_families, tiny_model

FAMILIES = {"qwen3_5": "Qwen3_5ForConditionalGeneration", "mistral3": "Mistral3ForConditionalGeneration"}
"""Families with a vision tower, which the trainer loads without it (Qwen3.5) or with it."""


@pytest.fixture(params=FAMILIES)
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A small model as its authors publish it."""
    folder = model_families.save_family(tmp_path / "model", request.param)
    assert json.loads((folder / "config.json").read_text())["architectures"] == [FAMILIES[request.param]]
    return folder


def opened(folder: Path) -> AdapterSlot:
    return tiny_model.load(folder).open("a", "owner/model", AdapterShape(2, 4, ("all-linear",)), 1)


def by_layer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors named lora_A below the language model, by `0.self_attn.q_proj`."""
    found = {name: tensor.detach().cpu() for name, tensor in tensors.items() if ".lora_A." in name}
    return {
        name.partition("layers.")[2].partition(".lora_A.")[0]: t
        for name, t in found.items()
        if "language_model" in name
    }


def test_names_of_an_adapter_are_those_of_the_checkpoints_layers(folder: Path) -> None:
    names = opened(folder).parameters
    layers = {name.removeprefix("base_model.model.").rpartition(".lora_")[0] for name in names}
    assert {f"{layer}.weight" for layer in layers} <= set(stored_weights(folder))
    assert {"q_proj", "gate_proj"} <= {layer.rpartition(".")[2] for layer in layers}


def test_stock_peft_finds_the_layers_in_the_architecture_of_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    slot = opened(folder)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name, data in slot.files().items():
        (adapter / name).write_bytes(data)
    model = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(folder), adapter)
    loaded, wanted = by_layer(dict(model.named_parameters())), by_layer(dict(slot.parameters))
    assert loaded.keys() == wanted.keys()
    assert all(loaded[name].equal(wanted[name]) for name in wanted)
