"""A tiny random model, shared by the trainer's tests."""

import os
from pathlib import Path
from typing import Any

import torch
from rlrun.protocol.train_batch import Sample
from rlrun_trainer.model.base_model import BaseModel, load_base
from rlrun_trainer.model.peft_format import AdapterShape
from rlrun_trainer.runtime.process_group import ProcessGroup
from rlrun_trainer.runtime.settings import TrainerSettings
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.support.tiny_tokenizer import save_tokenizer
from tests.support.trainer_requests import ALPHA, MODEL, RANK, TARGETS, VOCABULARY, samples, spec

__all__ = ["MODEL", "TARGETS", "VOCABULARY", "samples", "spec"]

DEVICE = os.environ.get("RLRUN_TEST_DEVICE", "cpu")
"""Where the models of the tests run: cpu or cuda."""
SHAPE = AdapterShape(rank=RANK, alpha=ALPHA, target_modules=TARGETS)


def save_model(folder: Path, seed: int = 0) -> Path:
    """A Qwen3 with hidden size 64 and 2 layers; its weights are large enough for uneven probabilities."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.15,
        attention_dropout=0.3,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return save_tokenizer(folder)


def save_moe(folder: Path, seed: int = 0) -> Path:
    """A mixture of four experts, two for each token."""
    torch.manual_seed(seed)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        num_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(folder)
    return save_tokenizer(folder)


def load(folder: Path, slots: int = 2, world: ProcessGroup | None = None, **settings: Any) -> BaseModel:
    # Results are compared to the last digits, also where a GPU would compute in bfloat16.
    chosen = {"dtype": "float32", **settings}
    return load_base(TrainerSettings(model_dir=folder, slots=slots, device=DEVICE, threads=1, **chosen), world)


def plain_logprobs(base: BaseModel, sample: Sample, temperature: float = 1.0) -> torch.Tensor:
    """log p of every token but the first, by the model's ordinary forward pass on this sample alone: [T - 1]."""
    ids = torch.tensor([list(sample.token_ids)], device=base.device)
    logits = base.model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None]).squeeze(-1).cpu()
