"""Tiny random configurations of the families of models that users train."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedConfig,
)

from tests.support.tiny_tokenizer import save_tokenizer

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "initializer_range": 0.15,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False, "use_cache": False,
    "sliding_window": 16, "attention_chunk_size": 16,
    # Mixtures of experts.
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4,
    "num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "moe_k": 2, "moe_intermediate_size": 16,
    "expert_ffn_hidden_size": 16, "shared_expert_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 32, "n_shared_experts": 1, "num_shared_experts": 1,
    "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "intermediate_size_mlp": 96,
    # Latent attention, and indexers that choose the tokens it reads.
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16,
    "index_topk": 8, "index_n_heads": 16, "index_head_dim": 16, "o_groups": 2, "o_lora_rank": 16,
    # Linear attention, convolution and mamba.
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_num_heads": 4, "linear_head_dim": 16, "linear_conv_kernel_dim": 4, "mamba_n_heads": 8, "mamba_num_heads": 8,
    "mamba_d_head": 16, "mamba_head_dim": 16, "mamba_d_state": 16, "mamba_d_ssm": 128, "ssm_state_size": 16,
    "mamba_expand": 2, "mamba_n_groups": 1, "n_groups": 1, "mamba_chunk_size": 16, "chunk_size": 16,
    # Gemma's embeddings of each layer.
    "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "global_head_dim": 16,
    "num_kv_shared_layers": 0,
}  # fmt: skip
"""Values of the fields that a configuration has."""
SMALL_VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "depth": 1, "num_attention_heads": 2,
    "num_heads": 2, "head_dim": 16, "num_key_value_heads": 2, "patch_size": 14, "image_size": 28, "num_channels": 3,
    "out_hidden_size": 64, "global_head_dim": 16, "vision_output_dim": 32, "projector_input_dim": 32,
    "projector_output_dim": 32, "projection_dim": 32,
}  # fmt: skip
ROPE_OF_IMAGES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
HYBRID = ["linear_attention", "full_attention"] * 2
FAMILIES: dict[str, dict[str, Any]] = {
    # Dense, with attention only.
    "llama": {}, "qwen2": {}, "qwen3": {}, "mistral": {}, "ministral3": {}, "gemma2": {}, "gemma3_text": {},
    "gemma4_text": {"attention_k_eq_v": True}, "phi3": {"original_max_position_embeddings": 256}, "olmo3": {},
    "glm4": {}, "smollm3": {},
    "granite": {"logits_scaling": 2.0}, "exaone4": {}, "cohere2": {}, "hunyuan_v1_dense": {}, "nemotron": {},
    "seed_oss": {"residual_dropout": 0.3, "attention_dropout": 0.3},
    "starcoder2": {"residual_dropout": 0.3, "embedding_dropout": 0.3, "attention_dropout": 0.3},
    # Mixtures of experts.
    "mixtral": {"router_jitter_noise": 0.3}, "qwen3_moe": {}, "olmoe": {}, "phimoe": {"input_jitter_noise": 0.3},
    "gpt_oss": {}, "glm4_moe": {}, "ernie4_5_moe": {}, "minimax_m2": {}, "hy_v3": {}, "mimo_v2_flash": {},
    "llama4_text": {},
    # Latent attention, and attention to chosen tokens.
    "deepseek_v3": {}, "glm4_moe_lite": {}, "mistral4": {}, "deepseek_v32": {}, "glm_moe_dsa": {},
    "deepseek_v4": {"num_key_value_heads": 1, "compress_rates": {
        "compressed_sparse_attention": 4, "heavily_compressed_attention": 16}},
    # Linear attention, convolution and mamba.
    "qwen3_next": {}, "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "falcon_h1": {"lm_head_multiplier": 0.5}, "bamba": {},
    "nemotron_h": {}, "granitemoehybrid": {"layer_types": HYBRID, "shared_intermediate_size": 32}, "kimi_linear": {},
    # Text models of checkpoints with images.
    "gemma3": {}, "gemma4": {}, "qwen2_5_vl": {"rope_parameters": ROPE_OF_IMAGES}, "qwen3_vl": {}, "qwen3_vl_moe": {},
    "qwen3_5": {}, "qwen3_5_moe": {}, "mistral3": {}, "glm46v": {"rope_parameters": ROPE_OF_IMAGES}, "kimi_k25": {},
    "llama4": {}, "internvl": {},
    "minimax_m3_vl": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2,
        "index_block_size": 8, "index_topk_blocks": 2, "dense_intermediate_size": 96, "shared_intermediate_size": 32},
}  # fmt: skip
"""Fields of each family that differ from `SMALL`, or from the family's defaults."""
LATENT = ("kv_lora_rank", "qk_nope_head_dim")
"""Fields of latent attention, which has a key of its own for each head."""


def save_family(folder: Path, family: str, **changes: Any) -> Path:
    """Save a random model of the family with four layers, and with towers if models of the family have them."""
    torch.manual_seed(0)
    config = config_of(family, **{**FAMILIES[family], **changes})
    has_images = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    (AutoModelForImageTextToText if has_images else AutoModelForCausalLM).from_config(config).save_pretrained(folder)
    return save_tokenizer(folder)


def config_of(family: str, **changes: Any) -> PreTrainedConfig:
    """Return a configuration of the family's default architecture, reduced to a few thousand weights."""
    made = CONFIG_MAPPING[family]
    default = made().to_dict()
    if "text_config" not in default:
        return made(**_text(default, **changes))
    text = default["text_config"]
    fields: dict[str, Any] = {"text_config": {"model_type": text["model_type"], **_text(text, **changes)}}
    vision = default.get("vision_config") or {}
    if vision:
        small = {name: value for name, value in SMALL_VISION.items() if name in vision}
        fields["vision_config"] = {"model_type": vision["model_type"], **small}
    if "audio_config" in default:
        fields["audio_config"] = None
    fields |= {name: 63 for name in default if name.endswith(("_token_id", "_token_index"))}
    return made(**fields)


def _text(default: dict[str, Any], **changes: Any) -> dict[str, Any]:
    fields = {name: value for name, value in SMALL.items() if name in default}
    if all(name in default for name in LATENT):
        fields |= {"num_key_value_heads": 4}
        fields.pop("head_dim", None)
    for name in ("layer_types", "layers_block_type"):
        if kinds := default.get(name):
            fields[name] = (list(dict.fromkeys(kinds)) * 4)[:4]
    return fields | changes
