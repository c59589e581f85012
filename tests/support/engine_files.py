"""Weights and adapters of random numbers that vLLM loads, written without torch."""

import json
from array import array
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from random import Random

from tests.support.images.stub_trainer.safetensors_file import encode, floats

Shapes = Mapping[str, Sequence[int]]


def write_adapter(folder: Path, config: Mapping[str, int], rank: int, seed: int = 0, *, has_head: bool = False) -> Path:
    """Write a LoRA adapter in peft's format for the query projections of a Qwen3 with this `config.json`, and for its
    head if `has_head` is True.
    """
    folder.mkdir(parents=True)
    hidden, width = config["hidden_size"], config["num_attention_heads"] * config["head_dim"]
    shapes: dict[str, Sequence[int]] = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        shapes |= {f"{name}.lora_A.weight": (rank, hidden), f"{name}.lora_B.weight": (width, rank)}
    targets = ["q_proj", *(["lm_head"] if has_head else [])]
    if has_head:
        name = "base_model.model.lm_head"
        shapes |= {f"{name}.lora_A.weight": (rank, hidden), f"{name}.lora_B.weight": (config["vocab_size"], rank)}
    _write(folder / "adapter_model.safetensors", shapes, seed)
    settings = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write_weights(folder: Path, config: Mapping[str, int], seed: int = 0) -> Path:
    """Write the weights of a Qwen3 with this `config.json` and tied embeddings."""
    folder.mkdir(parents=True)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, Sequence[int]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
    }
    for layer in range(config["num_hidden_layers"]):
        parts: dict[str, Sequence[int]] = {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
            "self_attn.q_norm": (head,), "self_attn.k_norm": (head,),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
    _write(folder / "model.safetensors", shapes, seed)
    return folder


def _write(file: Path, shapes: Shapes, seed: int) -> None:
    random = Random(seed)
    tensors = {
        name: floats(tuple(shape), array("f", (random.uniform(-0.05, 0.05) for _ in range(prod(shape)))))
        for name, shape in shapes.items()
    }
    file.write_bytes(encode(tensors, {"format": "pt"}))
