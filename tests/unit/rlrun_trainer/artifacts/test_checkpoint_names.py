"""Names of layers as engines find them, from the files of the checkpoint."""

import json
from array import array
from pathlib import Path

import pytest
from rlrun_trainer.artifacts.checkpoint_names import CheckpointNames, StoredExperts, stored_weights

from tests.support.images.stub_trainer.safetensors_file import encode, floats


def in_memory(weight: str) -> str | None:
    """Names as a text model in memory has them; `joined` is part of another tensor there."""
    if "joined" in weight:
        return None
    return weight.replace("model.language_model.", "model.").replace("shared_mlp", "shared_experts")


FIRST, SECOND = (f"model.language_model.layers.{layer}.mlp.experts" for layer in (0, 1))
JOINED = {
    # An order in which the files have no reason to be.
    f"{FIRST}.0.up_proj.weight": ("model.layers.0.mlp.experts.gate_up_proj", 1),
    f"{FIRST}.0.gate_proj.weight": ("model.layers.0.mlp.experts.gate_up_proj", 0),
    f"{FIRST}.0.down_proj.weight": ("model.layers.0.mlp.experts.down_proj", 0),
    f"{SECOND}.gate_up_proj": ("model.layers.1.mlp.experts.gate_up_proj", 0),
    f"{SECOND}.down_proj": ("model.layers.1.mlp.experts.down_proj", 0),
}
"""Weights of experts with the parameter in memory of each, and its place in it."""
NAMES = CheckpointNames.of(
    [
        "model.language_model.layers.0.self_attn.q_proj.bias",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        "model.language_model.layers.0.mlp.shared_mlp.up_proj.weight",
        "model.language_model.layers.0.mlp.joined.weight",
        *JOINED,
        f"{FIRST}.1.up_proj.weight",
        "lm_head.weight",
    ],
    in_memory,
    JOINED.__getitem__,
)
QUERIES, SHARED = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.shared_experts.up_proj"


def test_names_are_those_of_the_checkpoint() -> None:
    assert NAMES.of_layer(QUERIES) == "model.language_model.layers.0.self_attn.q_proj"
    assert NAMES.of_layer(SHARED) == "model.language_model.layers.0.mlp.shared_mlp.up_proj"
    assert NAMES.of_layer("lm_head") == "lm_head"
    assert NAMES.of_layer("model.layers.9.unknown") == "model.layers.9.unknown"


def test_experts_have_the_projections_of_the_first_one_in_the_order_of_rows() -> None:
    assert NAMES.experts == {
        "model.layers.0.mlp.experts": StoredExperts(
            FIRST, {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
        ),
        "model.layers.1.mlp.experts": StoredExperts(SECOND, {}),
    }


def test_stock_peft_gets_the_prefix_of_the_checkpoint_and_names_in_memory() -> None:
    assert NAMES.for_peft(QUERIES) == "model.language_model.layers.0.self_attn.q_proj"
    assert NAMES.for_peft(SHARED) == SHARED
    assert NAMES.for_peft("lm_head") == "lm_head"


def test_layers_that_the_checkpoint_stores_in_another_form_lack_a_name() -> None:
    assert NAMES.lack("model.layers.0.mlp.joined")
    assert not NAMES.lack(QUERIES)
    unknown = CheckpointNames.of([], in_memory, JOINED.__getitem__)
    assert not unknown.lack(QUERIES), "without safetensors files there is nothing to compare"


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
