"""A tokenizer of 29 words for tiny models."""

from pathlib import Path
from string import ascii_lowercase

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast


def save_tokenizer(folder: Path) -> Path:
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *ascii_lowercase])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    return folder
