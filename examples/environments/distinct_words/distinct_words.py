"""Environment to write a word that the other rollouts of the group do not write: the reward depends on the group.

A valid word has three to ten lower-case letters, the first as requested. Its reward is 1 if no other rollout wrote it,
1/2 if one did, and so on. A policy that always writes the same word gets a small reward.
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
"""First letters that only the evaluation uses."""


def load_environment(num_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of training prompts; 21 of them are different.
        seed: Seed of their order.
    """
    letters = [letter for letter in string.ascii_lowercase if letter not in HELD_OUT]
    rng = random.Random(seed)
    return vf.SingleTurnEnv(
        dataset=_rows([rng.choice(letters) for _ in range(num_examples)]),
        eval_dataset=_rows(list(HELD_OUT)),
        rubric=vf.Rubric(funcs=[rarity, fits], weights=[1.0, 0.0]),
    )


def rarity(completions: list[Any], infos: list[dict[str, Any]]) -> list[float]:
    """Return 1 divided by the number of rollouts that wrote the same word; 0 for an invalid word."""
    words = [word_of(completion, info["letter"]) for completion, info in zip(completions, infos, strict=True)]
    count = Counter(words)
    return [0.0 if word is None else 1.0 / count[word] for word in words]


def fits(completion: Any, info: dict[str, Any]) -> float:
    """Return 1 for a valid word (a metric without weight in the reward)."""
    return float(word_of(completion, info["letter"]) is not None)


def word_of(completion: Any, letter: str) -> str | None:
    """Return the word of a completion, or None if it is not valid."""
    text = str(completion[-1]["content"] or "").strip() if completion else ""
    return text if WORD.fullmatch(text) and text.startswith(letter) else None


def _rows(letters: list[str]) -> Dataset:
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": letter}], "info": {"letter": letter}} for letter in letters]
    )
