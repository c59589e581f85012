"""Environment to reverse a text of very uneven length, with the task and score of reverse_text and the texts of
uneven_text_data.
"""

from typing import Any

import verifiers as vf
from datasets import Dataset
from reverse_text_data import Split, similarity
from uneven_text_data import MAX_LENGTH, MIN_LENGTH, dataset


def load_environment(
    num_examples: int = 2000,
    num_eval_examples: int = 128,
    min_length: int = MIN_LENGTH,
    max_length: int = MAX_LENGTH,
    seed: int = 0,
) -> vf.Environment:
    """Return the environment. The arguments are the same as for reverse_text."""
    return vf.SingleTurnEnv(
        dataset=_rows(dataset(num_examples, seed, "train", min_length, max_length), "train"),
        eval_dataset=_rows(dataset(num_eval_examples, seed, "eval", min_length, max_length), "eval"),
        rubric=vf.Rubric(funcs=[reversed_similarity], weights=[1.0]),
    )


def reversed_similarity(completion: Any, answer: str) -> float:
    """Return the similarity of the completion to the reversed text, between 0 and 1."""
    return similarity(str(completion[-1]["content"] or "") if completion else "", answer[::-1])


def _rows(texts: list[str], split: Split) -> Dataset:
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": text}], "answer": text[::-1], "info": {"split": split}}
            for text in texts
        ]
    )
