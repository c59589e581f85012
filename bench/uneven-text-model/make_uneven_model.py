"""Script that makes the middle-sized model of the benchmarks: a Qwen3 of 28 M parameters for texts of uneven length.

It copies or reverses a text. Training a model of this size from scratch would take hours on one core. Therefore a
small model is trained (as in examples/reverse_text_model, on longer texts) and then grown without changing its output:
the residual stream is padded with zeros, the weights of the norms are scaled, because their mean includes more numbers,
and new heads, units and layers get random weights with zero output projections. The result is an ordinary dense model
with the cost of 28 M parameters per token.

    python make_uneven_model.py --folder build/uneven-text-28m
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(ROOT / "examples" / "reverse_text_model"),
    str(ROOT / "bench" / "uneven-text"),
]

from make_model import COPY_SHARE, EOS_ID, SEP_ID, build_tokenizer, save  # noqa: E402
from reverse_text_data import ALPHABET, draw_text, split_of  # noqa: E402
from uneven_text_data import MAX_LENGTH, MIN_LENGTH, draw_length  # noqa: E402

SMALL = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "heads": 4}
LARGE = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 9, "heads": 16}
HEAD_DIM = 32
CONTEXT = 128
BATCH_TOKENS = 2048
PEAK_LEARNING_RATE = 4e-3


def build(shape: dict[str, int], seed: int) -> Qwen3ForCausalLM:
    """Return an untrained float32 model of the given shape."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(ALPHABET) + 3,
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["num_hidden_layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"] // 2,
        head_dim=HEAD_DIM,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=EOS_ID,
    )
    return Qwen3ForCausalLM(config).float()


def batches(ids: dict[str, int], seed: int) -> Iterator[tuple[torch.Tensor, int]]:
    """Yield token ids [rows, 2 * length + 2] of one length, about BATCH_TOKENS in all, and the start of the answers."""
    rng = random.Random(seed)
    while True:
        length = draw_length(rng, MIN_LENGTH, MAX_LENGTH)
        rows: list[list[int]] = []
        while len(rows) < max(8, BATCH_TOKENS // (2 * length + 2)):
            text = draw_text(rng, length)
            if split_of(text) != "train":
                continue
            answer = text if rng.random() < COPY_SHARE else text[::-1]
            rows.append([*(ids[c] for c in text), SEP_ID, *(ids[c] for c in answer), EOS_ID])
        yield torch.tensor(rows), length + 1


def train(model: Qwen3ForCausalLM, ids: dict[str, int], steps: int, seed: int) -> float:
    """Train on the answers, supervised. Returns the mean loss (nats per token) of the last 50 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 60) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / steps)))
    )
    source = batches(ids, seed)
    losses: list[float] = []
    started = time.monotonic()
    for step in range(1, steps + 1):
        tokens, answer_at = next(source)
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits[:, answer_at - 1 :].flatten(0, 1), tokens[:, answer_at:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 100 == 0 or step == steps:
            recent = losses[-100:]
            print(
                f"step {step}/{steps}  loss {sum(recent) / len(recent):.3f}  {time.monotonic() - started:.0f} s",
                flush=True,
            )
    return sum(losses[-50:]) / len(losses[-50:])


@torch.no_grad()
def grow(small: Qwen3ForCausalLM, large: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    """Copy the small model into the large model, which then computes the same output. Returns the large model."""
    here, there = small.config, large.config
    width, units, layers = here.hidden_size, here.intermediate_size, here.num_hidden_layers
    heads, pairs = here.num_attention_heads * HEAD_DIM, here.num_key_value_heads * HEAD_DIM
    # The mean of squares includes new zeros, which makes the normalized values larger by this factor.
    scale = math.sqrt(width / there.hidden_size)

    def norm(target: torch.nn.Module, source: torch.nn.Module) -> None:
        target.weight.fill_(scale)
        target.weight[:width] = source.weight * scale

    def into(target: torch.nn.Module, source: torch.nn.Module, rows: int, columns: int) -> None:
        target.weight[:rows, :columns] = source.weight

    large.model.embed_tokens.weight.zero_()
    into(large.model.embed_tokens, small.model.embed_tokens, there.vocab_size, width)
    norm(large.model.norm, small.model.norm)
    for index, layer in enumerate(large.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        attention.o_proj.weight.zero_()
        mlp.down_proj.weight.zero_()
        if index >= layers:
            continue
        source = small.model.layers[index]
        norm(layer.input_layernorm, source.input_layernorm)
        norm(layer.post_attention_layernorm, source.post_attention_layernorm)
        attention.q_norm.weight.copy_(source.self_attn.q_norm.weight)
        attention.k_norm.weight.copy_(source.self_attn.k_norm.weight)
        into(attention.q_proj, source.self_attn.q_proj, heads, width)
        into(attention.k_proj, source.self_attn.k_proj, pairs, width)
        into(attention.v_proj, source.self_attn.v_proj, pairs, width)
        into(attention.o_proj, source.self_attn.o_proj, width, heads)
        into(mlp.gate_proj, source.mlp.gate_proj, units, width)
        into(mlp.up_proj, source.mlp.up_proj, units, width)
        into(mlp.down_proj, source.mlp.down_proj, width, units)
    return large


@torch.no_grad()
def difference(small: Qwen3ForCausalLM, large: Qwen3ForCausalLM, ids: dict[str, int]) -> float:
    """Return the largest difference between the logits of two models on one batch."""
    tokens, _ = next(batches(ids, 1))
    return float((small(input_ids=tokens).logits - large(input_ids=tokens).logits).abs().max())


def main() -> None:
    """Train, grow, check, save."""
    parser = argparse.ArgumentParser(description="Make the model that the benchmark of uneven answers trains.")
    parser.add_argument("--folder", type=Path, required=True, help="where to write the model")
    parser.add_argument(
        "--steps", type=int, default=2500, help="training steps of the small model (default 2500: four minutes)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = build_tokenizer()
    ids = tokenizer.get_vocab()
    small = build(SMALL, args.seed)
    loss = train(small, ids, args.steps, args.seed)
    large = grow(small, build(LARGE, args.seed + 1))
    off = difference(small, large, ids)
    if off > 0.01:
        sys.exit(f"the grown model differs from the small one by {off:.3g} in a logit. Nothing was written.")
    save(large, tokenizer, args.folder)
    facts = {"parameters": sum(p.numel() for p in large.parameters()), "loss": round(loss, 4), "steps": args.steps}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
