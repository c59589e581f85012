"""Names of layers as engines find them, from the files of the checkpoint."""

import json
from array import array
from pathlib import Path

import pytest
from rlrun_trainer.artifacts.checkpoint_names import CheckpointNames, stored_weights

from tests.support.images.stub_trainer.safetensors_file import encode, floats

LAYERS = ("model.layers.0.self_attn.q_proj", "model.layers.1.linear_attn.in_proj_qkv", "lm_head")


def stored(decoder: str, head: str | None = None) -> list[str]:
    """Names of the weights of a checkpoint whose text model has this beginning, with a vision tower."""
    towers = ["visual.blocks.0.attn.qkv.weight", "vision_tower.layers.0.self_attn.q_proj.weight"]
    inner = ["layers.0.self_attn.q_proj.weight", "layers.1.linear_attn.in_proj_qkv.weight"]
    return [*towers, *(decoder + name for name in inner), *([f"{head}.weight"] if head else [])]


@pytest.mark.parametrize(
    ("weights", "decoder", "head"),
    [
        (stored("model.", "lm_head"), "model.", "lm_head"),
        (stored("model.language_model.", "lm_head"), "model.language_model.", "lm_head"),  # Qwen3.5, Qwen3-VL
        (stored("model.language_model."), "model.language_model.", "lm_head"),
        (stored("language_model.model.", "language_model.lm_head"), "language_model.model.", "language_model.lm_head"),
        (stored("thinker.model.", "thinker.lm_head"), "thinker.model.", "thinker.lm_head"),
        (["vision_tower.layers.0.self_attn.q_proj.weight"], "model.", "lm_head"),
        ([], "model.", "lm_head"),
    ],
)
def test_names_are_those_of_the_checkpoint(weights: list[str], decoder: str, head: str) -> None:
    names = CheckpointNames.of(LAYERS, weights)
    assert [names.of_layer(layer) for layer in LAYERS] == [
        f"{decoder}layers.0.self_attn.q_proj",
        f"{decoder}layers.1.linear_attn.in_proj_qkv",
        head,
    ]
    assert names.of_layer("model.layers.0.q.lora_A.a.weight") == f"{decoder}layers.0.q.lora_A.a.weight"
    assert names.of_layer("lm_head.lora_B.a.weight") == f"{head}.lora_B.a.weight"


@pytest.mark.parametrize("decoder", ["language_model.model.", "model.language_model."])
def test_a_model_in_memory_with_towers_has_the_names_of_its_checkpoint(decoder: str) -> None:
    # Mistral 3 has `model.language_model.` in memory, and `language_model.model.` in its files.
    own = "model.language_model.layers.0.self_attn.q_proj"
    tower = "model.vision_tower.layers.0.self_attn.q_proj"
    names = CheckpointNames.of((tower, own), stored(decoder))
    assert names.of_layer(own) == f"{decoder}layers.0.self_attn.q_proj"
    assert names.of_layer(tower) == tower


def test_one_layer_that_the_checkpoint_stores_tells_the_names_of_the_others() -> None:
    names = CheckpointNames.of(LAYERS, ["model.language_model.layers.1.linear_attn.in_proj_qkv.weight"])
    assert names.of_layer(LAYERS[0]) == "model.language_model.layers.0.self_attn.q_proj"


def test_names_are_read_from_the_index_or_from_the_files(tmp_path: Path) -> None:
    one = encode({"b.weight": floats((1,), array("f", [0.0]))}, {"format": "pt"})
    (tmp_path / "model-00001.safetensors").write_bytes(one)
    assert stored_weights(tmp_path) == ["b.weight"]
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a.weight": "x", "b.weight": "x"}})
    )
    assert stored_weights(tmp_path) == ["a.weight", "b.weight"]


@pytest.mark.parametrize("data", [b"1", b"no safetensors file"])
def test_a_damaged_file_is_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(ValueError, match=r"model\.safetensors is not a safetensors file"):
        stored_weights(tmp_path)
