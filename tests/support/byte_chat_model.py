"""A tiny random model whose tokens are bytes, with the special tokens of Qwen's chats.

    python byte_chat_model.py FOLDER

Recipes of the cookbook look up these tokens by name. It runs in the image of the trainer, which has transformers.
"""

import sys
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
VOCABULARY = 320
"""At least 256 bytes and the special tokens."""


def save(folder: Path) -> None:
    """Save model and tokenizer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>").save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.token_to_id("<|im_end|>"),
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


if __name__ == "__main__":
    save(Path(sys.argv[1]))
