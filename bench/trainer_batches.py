"""Random models and batches for the benchmark of the trainer."""

import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from rlrun.protocol.train_batch import Sample
from transformers import Qwen3Config, Qwen3ForCausalLM

MIN_LENGTH, MAX_LENGTH = 4, 48
"""Minimum and maximum length of a text in characters, as in bench/uneven-text."""


@dataclass(frozen=True)
class Shape:
    """Dimensions of a Qwen3 model and of its batch."""

    title: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    pairs: int
    head_dim: int
    vocabulary: int
    samples: int
    budget: int
    """Maximum number of tokens of a micro-batch, including padding."""

    def config(self, context: int = 128) -> Qwen3Config:
        """Return the configuration of transformers for sequences of at most `context` tokens."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.pairs,
            head_dim=self.head_dim,
            max_position_embeddings=context,
            tie_word_embeddings=True,
        )

    def save(self, folder: Path, context: int = 128, dtype: torch.dtype = torch.float32) -> Path:
        """Write the model with random weights. Returns the folder."""
        torch.manual_seed(0)
        Qwen3ForCausalLM(self.config(context)).to(dtype).save_pretrained(folder)
        return folder


SHAPES = {
    "tiny": Shape("0.45 M parameters, 128 samples of 10 to 98 tokens", 128, 256, 3, 4, 2, 32, 30, 128, 4096),
    "28m": Shape("28 M parameters, 64 samples of 10 to 98 tokens", 512, 1536, 9, 16, 8, 32, 30, 64, 4096),
    "deep": Shape("196 linear layers as in Qwen3-0.6B, narrow", 64, 128, 28, 4, 2, 16, 30, 16, 4096),
    "0.6b": Shape("Qwen3-0.6B shape", 1024, 3072, 28, 16, 8, 128, 151936, 1, 65536),
}


def uneven_samples(count: int, vocabulary: int, seed: int = 0) -> list[Sample]:
    """Return samples with equally long prompt and answer. Lengths are log-uniform from MIN_LENGTH to MAX_LENGTH."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = int(math.exp(rng.uniform(math.log(MIN_LENGTH), math.log(MAX_LENGTH + 1))))
        made.append(_sample(rng, length + 1, length + 1, vocabulary))
    return made


def long_sample(tokens: int, vocabulary: int, seed: int = 0) -> Sample:
    """Return one sequence of `tokens`, of which all but the first 512 are trainable."""
    return _sample(random.Random(seed), 512, tokens - 512, vocabulary)


def short_samples(tokens: int, vocabulary: int, seed: int = 0) -> list[Sample]:
    """Return samples of 256 to 4,096 tokens, log-uniform, with `tokens` in all; half of each is trainable."""
    rng, made, left = random.Random(seed), [], tokens
    while left:
        length = int(math.exp(rng.uniform(math.log(256), math.log(4096))))
        # A remainder too short for its own sample is added to the last one.
        length = left if left - length < 256 else length
        made.append(_sample(rng, length // 2, length - length // 2, vocabulary))
        left -= length
    return made


def _sample(rng: random.Random, prompt: int, answer: int, vocabulary: int) -> Sample:
    # A random model is nearly uniform: with these log-probabilities, ratios are near 1 and no token is masked.
    return Sample(
        token_ids=[rng.randrange(vocabulary) for _ in range(prompt + answer)],
        loss_mask=[False] * prompt + [True] * answer,
        logprobs=[0.0] * prompt + [-math.log(vocabulary)] * answer,
        advantage=rng.uniform(-1, 1),
        policy_version=0,
    )
