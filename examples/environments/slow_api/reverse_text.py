"""Environment to reverse a text, character by character: one turn, rewarded by similarity to the reversed text.

The texts are made from a seed, so nothing is downloaded. Training and held-out texts are disjoint.
"""

from typing import Any

import verifiers as vf
from datasets import Dataset
from reverse_text_data import Split, dataset, similarity


def load_environment(
    num_examples: int = 2000,
    num_eval_examples: int = 128,
    min_length: int = 5,
    max_length: int = 10,
    seed: int = 0,
) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of training texts.
        num_eval_examples: Number of held-out texts.
        min_length: Characters of the shortest text.
        max_length: Characters of the longest text.
        seed: Seed of the texts.
    """
    rubric = vf.Rubric(funcs=[reversed_similarity, exactly_reversed], weights=[1.0, 0.0])
    return vf.SingleTurnEnv(
        dataset=_rows(dataset(num_examples, seed, "train", min_length, max_length), "train"),
        eval_dataset=_rows(dataset(num_eval_examples, seed, "eval", min_length, max_length), "eval"),
        rubric=rubric,
    )


def reversed_similarity(completion: Any, answer: str) -> float:
    """Return the similarity of the completion to the reversed text, between 0 and 1."""
    return similarity(_text_of(completion), answer[::-1])


def exactly_reversed(completion: Any, answer: str) -> float:
    """Return 1 if every character is right (a metric without weight in the reward)."""
    return float(_text_of(completion) == answer)


def _rows(texts: list[str], split: Split) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": text}], "answer": text[::-1], "info": {"split": split}}
            for text in texts
        ]
    )


def _text_of(completion: Any) -> str:
    return str(completion[-1]["content"] or "") if completion else ""
