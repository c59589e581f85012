"""Parameters of known models, and where configurations come from."""

import json
from pathlib import Path
from typing import Any

import pytest
from rlrun_cli.inputs.model_config import architecture, read_config, read_hub_config
from rlrun_cli.terminal.errors import CliError

from tests.support.config_hub import QWEN3_8B, config_file, config_hub

COMMIT = "b" * 40
SOURCE = f"hf://Qwen/Qwen3-8B@{COMMIT}"


def qwen3(hidden: int, layers: int, heads: int, kv_heads: int, width: int, tied: bool = False) -> dict[str, Any]:
    return {
        **QWEN3_8B,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": width,
        "tie_word_embeddings": tied,
    }


MIXTURE = {**qwen3(2048, 48, 32, 4, 6144), "num_experts": 128, "moe_intermediate_size": 768, "decoder_sparse_step": 1}
LLAMA_70B = {key: value for key, value in qwen3(8192, 80, 64, 8, 28672).items() if key != "head_dim"} | {
    "vocab_size": 128256
}


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (qwen3(1024, 28, 16, 8, 3072, tied=True), 0.596),
        (QWEN3_8B, 8.19),
        (qwen3(5120, 64, 64, 8, 25600), 32.8),
        (LLAMA_70B, 70.6),
        (MIXTURE, 30.5),
        ({"text_config": QWEN3_8B, "vision_config": {"hidden_size": 1}}, 8.19),
    ],
    ids=["Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B", "Llama-3.1-70B", "Qwen3-30B-A3B", "in a multimodal model"],
)
def test_parameters_are_those_that_the_model_was_published_with(config: dict[str, Any], billions: float) -> None:
    found = architecture(config)
    assert found is not None
    assert found.parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_adapters_train_no_routers_and_no_routed_experts() -> None:
    dense, mixture = architecture(qwen3(2048, 48, 32, 4, 6144)), architecture(MIXTURE)
    assert dense is not None
    assert mixture is not None
    attention = 16 * 48 * (2 * (2048 + 4096) + 2 * (2048 + 512))
    assert mixture.adapter_parameters(16) == attention
    assert dense.adapter_parameters(16) == attention + 16 * 48 * 3 * (2048 + 6144)


def test_experts_have_an_adapter_of_their_own_and_most_files_have_the_factor_of_gate_and_up_twice() -> None:
    mixture = architecture(MIXTURE)
    assert mixture is not None
    of_one = 16 * ((2048 + 2 * 768) + (768 + 2048))
    assert mixture.expert_adapter_parameters(16) == (48 * 128 * of_one, 48 * 128 * (of_one + 16 * 2048))


def test_only_layers_with_attention_keep_keys_and_values() -> None:
    linear = {f"linear_{name}": size for name, size in (
        ("num_key_heads", 16), ("key_head_dim", 128), ("num_value_heads", 32), ("value_head_dim", 128),
    )}  # fmt: skip
    kinds = ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 9
    found = architecture({**QWEN3_8B, **linear, "layer_types": kinds})
    assert found is not None
    assert (found.layers, found.attention_layers) == (36, 9)


@pytest.mark.parametrize(
    "config",
    [
        {}, {"hidden_size": 8}, {**QWEN3_8B, "kv_lora_rank": 512}, {**QWEN3_8B, "num_attention_heads": 0},
        {**QWEN3_8B, "hidden_size": "wide"}, {**QWEN3_8B, "layer_types": ["linear_attention"] * 36},
    ],
)  # fmt: skip
def test_other_architectures_are_not_guessed(config: dict[str, Any]) -> None:
    assert architecture(config) is None


@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "divisible"),
    [(32, 8, 12288, [1, 2, 4, 8, 16]), (14, 2, 4864, [1, 2]), (40, 8, 17408, [1, 2, 4, 8]), (24, 3, 1024, [1])],
)
def test_tensor_parallelism_divides_heads_and_widths(
    heads: int, kv_heads: int, width: int, divisible: list[int]
) -> None:
    found = architecture(qwen3(5120, 4, heads, kv_heads, width))
    assert found is not None
    assert [n for n in (1, 2, 4, 8, 16) if found.is_divisible(n)] == divisible


def test_a_configuration_is_read_from_a_file_or_the_folder_with_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    assert read_config(tmp_path) == read_config(tmp_path / "config.json") == QWEN3_8B
    for text, message in (("{", "is not JSON"), ("[]", "is not a JSON object")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(CliError, match=message):
            read_config(tmp_path)
    with pytest.raises(CliError, match="cannot read"):
        read_config(tmp_path / "none.json")


def test_the_hub_has_the_configuration_of_the_commit() -> None:
    with config_hub(config_file("Qwen/Qwen3-8B", COMMIT, QWEN3_8B), token="secret") as url:
        assert read_hub_config(SOURCE, {"HF_ENDPOINT": url, "HF_TOKEN": "secret"}) == QWEN3_8B
        with pytest.raises(CliError, match="Unauthorized") as caught:
            read_hub_config(SOURCE, {"HF_ENDPOINT": url, "HF_TOKEN": "wrong"})
        assert "wrong" not in str(caught.value)
    with pytest.raises(CliError, match="cannot read"):
        read_hub_config(SOURCE, {"HF_ENDPOINT": url})


def test_the_token_stays_at_the_hub_when_a_request_is_redirected() -> None:
    (path, content), *_ = config_file("Qwen/Qwen3-8B", COMMIT, QWEN3_8B).items()
    asked: list[str | None] = []
    with (
        config_hub({"/blob": content}, asked=asked) as elsewhere,
        config_hub({path: "/renamed", "/renamed": f"{elsewhere}/blob"}, token="secret") as hub,
    ):
        assert read_hub_config(SOURCE, {"HF_ENDPOINT": hub, "HF_TOKEN": "secret"}) == QWEN3_8B
    assert asked == [None], "a content network is not the hub"
