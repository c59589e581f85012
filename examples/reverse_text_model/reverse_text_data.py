"""Texts to reverse and the score of a reversal: the whole task, without any library.

The environment scores rollouts with this module, the script of the example model draws training texts from it, and the
evaluation of a trained adapter measures with it, so that all three have the same task.

A text is one to three made-up words of consonant-vowel syllables ("mira tolu kef"). A hash of the text decides its
split, so that training and held-out texts are disjoint for every seed and size of a dataset.
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
"""One of this many texts belongs to the eval split."""


def split_of(text: str) -> Split:
    """Return the split of a text."""
    digest = hashlib.blake2b(text.encode(), digest_size=4).digest()
    return "eval" if int.from_bytes(digest) % EVAL_SHARE == 0 else "train"


def draw_text(rng: random.Random, length: int) -> str:
    """Draw a text of `length` characters from `ALPHABET`, without a space at either end."""
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
    """Yield distinct texts of a split, endlessly; lengths are uniform in min_length..max_length.

    Raises ValueError for lengths without enough distinct texts.
    """
    if not 4 <= min_length <= max_length:
        raise ValueError(
            f"min_length {min_length} and max_length {max_length} are invalid. Use 4 <= min_length <= max_length."
        )
    rng = random.Random(f"{split}-{seed}")
    seen: set[str] = set()
    while True:
        text = draw_text(rng, rng.randint(min_length, max_length))
        if split_of(text) == split and text not in seen:
            seen.add(text)
            yield text


def dataset(n: int, seed: int, split: Split, min_length: int, max_length: int) -> list[str]:
    """Return the first `n` of `texts`."""
    source = texts(seed, split, min_length, max_length)
    return [next(source) for _ in range(n)]


def similarity(completion: str, text: str) -> float:
    """Return the share of characters of the reversed text at their place in `completion`, between 0 and 1.

    Surplus characters count as wrong. A copy of the text scores about 0.1 by chance.
    """
    wanted = text[::-1]
    right = sum(a == b for a, b in zip(completion, wanted, strict=False))
    return right / max(len(completion), len(wanted), 1)
