"""Texts to reverse, and how close a reversal came: the whole task, without any library.

The environment scores rollouts with it, the script that makes the example model draws its training texts from it and
the evaluation of a trained adapter measures with it, so that all three mean the same task.

A text is one to three made-up words of consonant-vowel syllables ("mira tolu kef"). Every text belongs to exactly one
split, decided by a hash of the text itself: no seed and no size of a dataset can make training and held-out texts meet.
"""

import hashlib
import random
from collections.abc import Iterator
from typing import Literal

Split = Literal["train", "eval"]

ALPHABET = " abcdefghijklmnopqrstuvwxyz"
CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"
EVAL_SHARE = 8
"""One text in so many belongs to the eval split."""


def split_of(text: str) -> Split:
    """The split that `text` belongs to, whoever drew it."""
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return "eval" if int.from_bytes(digest) % EVAL_SHARE == 0 else "train"


def draw_text(rng: random.Random, length: int) -> str:
    """A text of exactly `length` characters from `ALPHABET`, neither beginning nor ending with a space."""
    text = ""
    while len(text) < length:
        word = ""
        for _ in range(rng.randint(1, 3)):
            word += rng.choice(CONSONANTS) + rng.choice(VOWELS)
        if rng.random() < 0.3:
            word += rng.choice(CONSONANTS)
        text += (" " if text else "") + word
    text = text[:length]
    return text[:-1] + rng.choice(VOWELS) if text.endswith(" ") else text


def texts(seed: int, split: Split, min_length: int, max_length: int) -> Iterator[str]:
    """Distinct texts of that split, without end; lengths are drawn evenly from min_length..max_length.

    Raises ValueError when the lengths leave no room for distinct texts.
    """
    if not 4 <= min_length <= max_length:
        raise ValueError(
            f"min_length {min_length} and max_length {max_length} do not fit: use 4 <= min_length <= max_length"
        )
    rng = random.Random(f"{split}-{seed}")
    seen: set[str] = set()
    while True:
        text = draw_text(rng, rng.randint(min_length, max_length))
        if split_of(text) == split and text not in seen:
            seen.add(text)
            yield text


def dataset(n: int, seed: int, split: Split, min_length: int, max_length: int) -> list[str]:
    """The first `n` of `texts`."""
    source = texts(seed, split, min_length, max_length)
    return [next(source) for _ in range(n)]


def similarity(completion: str, text: str) -> float:
    """Between 0 and 1: the share of characters of the reversed text that stand at their place in `completion`.

    Characters too many count like wrong ones. A copy of the text gets about 0.1, by chance.
    """
    wanted = text[::-1]
    right = sum(a == b for a, b in zip(completion, wanted, strict=False))
    return right / max(len(completion), len(wanted), 1)
