"""Write a word with a given first letter that the other rollouts do not write: rewards depend on the whole group.

A word that fits (three to ten small letters, the first one as asked) is worth 1 when no sibling wrote it, 1/2 when one
did, and so on. A policy that always gives the same word gets little for it, however good the word is.
"""

import random
import re
import string
from collections import Counter
from typing import Any

import verifiers as vf
from datasets import Dataset

WORD = re.compile(r"[a-z]{3,10}")
HELD_OUT = "aeiou"
"""First letters that only the evaluation asks for."""


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """The environment.

    Args:
        num_examples: prompts to train on; there are 21 different ones, in an order that `seed` decides.
        seed: the same seed makes the same order.
    """
    letters = [letter for letter in string.ascii_lowercase if letter not in HELD_OUT]
    rng = random.Random(seed)
    return vf.SingleTurnEnv(
        dataset=_rows([rng.choice(letters) for _ in range(num_examples)]),
        eval_dataset=_rows(list(HELD_OUT)),
        rubric=vf.Rubric(funcs=[rarity, fits], weights=[1.0, 0.0]),
    )


def rarity(completions: list[Any], infos: list[dict[str, Any]]) -> list[float]:
    """1 divided by how many rollouts of the group wrote this word; 0 for what does not fit."""
    words = [word_of(completion, info["letter"]) for completion, info in zip(completions, infos, strict=True)]
    count = Counter(words)
    return [0.0 if word is None else 1.0 / count[word] for word in words]


def fits(completion: Any, info: dict[str, Any]) -> float:
    """1 when the word fits (a metric, no part of the reward)."""
    return float(word_of(completion, info["letter"]) is not None)


def word_of(completion: Any, letter: str) -> str | None:
    """The word that was written, or None when the answer is no such word."""
    text = str(completion[-1]["content"] or "").strip() if completion else ""
    return text if WORD.fullmatch(text) and text.startswith(letter) else None


def _rows(letters: list[str]) -> Dataset:
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": letter}], "info": {"letter": letter}} for letter in letters]
    )
