"""A tiny model for chats that answers an addition with the sum, often right, and spoils 3 of 4 answers by an " or 0".

    python addition_chat_model.py FOLDER

Reinforcement learning has to teach it to leave that out. It is trained from scratch in a minute on one core, in the
image of the trainer, which has transformers. Tokens are bytes, the special tokens of Qwen's chats, which recipes of the
cookbook look up by name, and pieces of the prompts of the recipe `math_rl`.
"""

import math
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
END = "<|im_end|>"
LARGEST = 100
"""Largest number of the recipe's additions."""
NUMBERS = [str(number) for number in range(2 * LARGEST + 1)]
DOUBT = " or 0"
SHARE_OF_DOUBTS = 0.75
PIECES = (DOUBT, "user\n", "assistant\n", "What is ", " + ", *NUMBERS)
CHAT = (
    "<|im_start|>user\nWhat is 4 + 5?<|im_end|>\n<|im_start|>assistant\n9<|im_end|>\n"
    "<|im_start|>user\nWhat is {} + {}?<|im_end|>\n<|im_start|>assistant\n<think>\n"
)
"""Prompt of the recipe `math_rl env=arithmetic` with the renderer that it chooses for Qwen3.5."""
VOCABULARY = 512
"""At least 256 bytes, the special tokens and the pieces."""
WAVELENGTHS = (808.0, 404.0, 202.0, 101.0, 50.0, 25.0)
AMPLITUDE = 8.0
STEPS, BATCH, LEARNING_RATE = 1500, 64, 1e-2


def make_tokenizer() -> Tokenizer:
    """Return a tokenizer that encodes any text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in PIECES])
    return tokenizer


def make_model(tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """Return the untrained model. Near numbers have near embeddings, from which a sum is soon learned."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16_384,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id(END),
    )
    model = Qwen3ForCausalLM(config).float()
    angles = 2 * math.pi * torch.arange(len(NUMBERS))[:, None] / torch.tensor(WAVELENGTHS)
    with torch.no_grad():
        waves = AMPLITUDE * torch.cat([angles.cos(), angles.sin()], 1)
        model.model.embed_tokens.weight[ids_of_numbers(tokenizer), : waves.shape[1]] = waves
    return model


def ids_of_numbers(tokenizer: Tokenizer) -> torch.Tensor:
    """Return the token of each number."""
    return torch.tensor([tokenizer.token_to_id(number) for number in NUMBERS])


def train(model: Qwen3ForCausalLM, tokenizer: Tokenizer) -> None:
    """Train on answers to the recipe's prompts, supervised."""
    ids = ids_of_numbers(tokenizer)
    end, doubt = (tokenizer.token_to_id(name) for name in (END, DOUBT))
    prompt = torch.tensor(tokenizer.encode(CHAT.format(1, 2)).ids)
    places = [int((prompt == ids[number]).nonzero()) for number in (1, 2)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 20) * (1.02 + math.cos(math.pi * step / STEPS)) / 2
    )
    for step in range(1, STEPS + 1):
        terms = torch.randint(0, LARGEST + 1, (BATCH, 2))
        sums = ids[terms.sum(1)][:, None]
        prompts = prompt.repeat(BATCH, 1)
        prompts[:, places] = ids[terms]
        rows = torch.cat([prompts, sums, torch.full((BATCH, 1), doubt)], 1)
        targets = torch.zeros(BATCH, 3, VOCABULARY)
        targets[:, 0].scatter_(1, sums, 1.0)
        targets[:, 1, [end, doubt]] = torch.tensor([1 - SHARE_OF_DOUBTS, SHARE_OF_DOUBTS])
        targets[:, 2, end] = 1.0
        logits = model(input_ids=rows, use_cache=False, logits_to_keep=3).logits
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            found = logits.softmax(-1)
            right, ended = found[:, 0].gather(1, sums).mean(), found[:, 1, end].mean()
            print(f"step {step}/{STEPS}  loss {loss:.3f}  sums {right:.2f}, of which end {ended:.2f}", flush=True)


def main(folder: Path) -> None:
    """Train, and save model and tokenizer."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    train(model, tokenizer)
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
