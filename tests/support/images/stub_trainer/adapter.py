"""Adapter of the stub in the format of stock peft, for decoders with the layers of Llama and Qwen."""

import json
import random
from array import array
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from rlrun.constants import UNPROCESSABLE, Reason
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import ADAPTER_WEIGHTS
from rlrun_trainer.artifacts.checkpoint_facts import ALL_LINEAR

from tests.support.images.stub_trainer.safetensors_file import Tensor, encode, floats

ADAPTER_CONFIG = "adapter_config.json"
SCALE = 1e-6
"""Size of a weight is at most 2**15 times this."""


def adapter_shapes(config: Mapping[str, Any], spec: SessionSpec) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the adapter's tensors, by names as in peft's files. Raises ProblemError (AdapterInvalid).

    `config` is the model's config.json.
    """
    sizes = _linear_layers(config)
    leaves = _resolve(spec.lora.target_modules, sizes)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(config["num_hidden_layers"]):
        for leaf in leaves:
            block, outputs, inputs = sizes[leaf]
            name = f"base_model.model.model.layers.{layer}.{block}.{leaf}"
            shapes[f"{name}.lora_A.weight"] = (spec.lora.rank, inputs)
            shapes[f"{name}.lora_B.weight"] = (outputs, spec.lora.rank)
    return dict(sorted(shapes.items()))


def adapter_tensors(shapes: Mapping[str, tuple[int, ...]], state: bytes) -> dict[str, Tensor]:
    """Return the adapter that a state stands for: equal states give equal tensors."""
    numbers = random.Random(state)
    tensors = {}
    for name, shape in shapes.items():
        steps = array("h", numbers.randbytes(2 * prod(shape)))
        tensors[name] = floats(shape, array("f", [step * SCALE for step in steps]))
    return tensors


def adapter_files(config: Mapping[str, Any], spec: SessionSpec, state: bytes) -> dict[str, bytes]:
    """Return the two files of the adapter."""
    tensors = adapter_tensors(adapter_shapes(config, spec), state)
    alpha = int(spec.lora_alpha) if float(spec.lora_alpha).is_integer() else spec.lora_alpha
    facts = {
        "base_model_name_or_path": spec.model,
        "bias": "none",
        "inference_mode": True,
        "lora_alpha": alpha,
        "lora_dropout": spec.lora.dropout,
        "peft_type": "LORA",
        "r": spec.lora.rank,
        "target_modules": _resolve(spec.lora.target_modules, _linear_layers(config)),
        "task_type": "CAUSAL_LM",
    }
    return {
        ADAPTER_WEIGHTS: encode(tensors, {"format": "pt"}),
        ADAPTER_CONFIG: (json.dumps(facts, indent=2, sort_keys=True) + "\n").encode(),
    }


def _linear_layers(config: Mapping[str, Any]) -> dict[str, tuple[str, int, int]]:
    """Return block, outputs and inputs of the linear layers by name."""
    hidden, inner, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    size = config.get("head_dim") or hidden // heads
    queries, keys = heads * size, config.get("num_key_value_heads", heads) * size
    return {
        "q_proj": ("self_attn", queries, hidden),
        "k_proj": ("self_attn", keys, hidden),
        "v_proj": ("self_attn", keys, hidden),
        "o_proj": ("self_attn", hidden, queries),
        "gate_proj": ("mlp", inner, hidden),
        "up_proj": ("mlp", inner, hidden),
        "down_proj": ("mlp", hidden, inner),
    }


def _resolve(targets: Sequence[str], layers: Mapping[str, object]) -> list[str]:
    unknown = [target for target in targets if target not in (ALL_LINEAR, *layers)]
    if unknown:
        raise ProblemError.of(
            UNPROCESSABLE,
            Reason.ADAPTER_INVALID,
            f"`lora.targetModules` has {', '.join(unknown)}: not linear layers of this model. Write `all-linear` for "
            f"all layers that can be trained and served, or choose from {', '.join(sorted(layers))}.",
        )
    return sorted(layers if ALL_LINEAR in targets else set(targets))
