"""The sizes in the `config.json` of public models, for the estimates that the documentation shows."""

from collections.abc import Mapping
from typing import Any

from tests.support.config_hub import QWEN3_8B


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool = False) -> dict[str, Any]:
    return {
        **QWEN3_8B,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "tie_word_embeddings": tied,
    }


MODELS: Mapping[str, dict[str, Any]] = {
    "Qwen3-0.6B": _qwen3(1024, 28, 16, 3072, tied=True),
    "Qwen3-1.7B": _qwen3(2048, 28, 16, 6144, tied=True),
    "Qwen3-4B": _qwen3(2560, 36, 32, 9728, tied=True),
    "Qwen3-8B": QWEN3_8B,
    "Qwen3-14B": _qwen3(5120, 40, 40, 17408),
    "Qwen3-32B": _qwen3(5120, 64, 64, 25600),
    "Qwen3-30B-A3B": {
        **_qwen3(2048, 48, 32, 6144),
        "num_key_value_heads": 4,
        "moe_intermediate_size": 768,
        "num_experts": 128,
    },
}
