"""Texts to reverse with very different lengths: most are short and a few are very long, like answers in practice.

Lengths are log-uniform: a text of 4 to 8 characters is as likely as one of 24 to 48. An implementation that pads a
batch to its longest answer, or waits for it, wastes most of its work. Texts, splits and scores are otherwise the same
as in reverse_text.
"""

import math
import random
from collections.abc import Iterator

from reverse_text_data import Split, draw_text, split_of

MIN_LENGTH, MAX_LENGTH = 4, 48


def draw_length(rng: random.Random, min_length: int = MIN_LENGTH, max_length: int = MAX_LENGTH) -> int:
    """Draw a length between min_length and max_length whose logarithm is uniformly distributed."""
    low, high = math.log(min_length), math.log(max_length + 1)
    return min(max_length, int(math.exp(rng.uniform(low, high))))


def texts(seed: int, split: Split, min_length: int, max_length: int) -> Iterator[str]:
    """Yield distinct texts of a split, endlessly. Raises ValueError for lengths without enough distinct texts."""
    if not 4 <= min_length <= max_length:
        raise ValueError(
            f"min_length {min_length} and max_length {max_length} are invalid. Use 4 <= min_length <= max_length."
        )
    rng = random.Random(f"uneven-{split}-{seed}")
    seen: set[str] = set()
    while True:
        text = draw_text(rng, draw_length(rng, min_length, max_length))
        if split_of(text) == split and text not in seen:
            seen.add(text)
            yield text


def dataset(n: int, seed: int, split: Split, min_length: int, max_length: int) -> list[str]:
    """Return the first `n` of `texts`."""
    source = texts(seed, split, min_length, max_length)
    return [next(source) for _ in range(n)]
