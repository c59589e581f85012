"""An environment whose reward function fails on some of the answers."""

from typing import Any

import verifiers as vf
from datasets import Dataset

WORDS = ["apple", "river", "stone", "cloud"]


def reward(completion: Any, answer: str, **_: Any) -> float:
    """Raises ZeroDivisionError for answers of even length; else the share of characters in place."""
    text = completion[-1]["content"] if isinstance(completion, list) else completion
    if len(text) % 2 == 0:
        return 1 / 0
    return sum(a == b for a, b in zip(text, answer, strict=False)) / max(len(text), len(answer))


def load_environment(**_: Any) -> vf.Environment:
    """Four prompts, asked for backwards."""
    rows = [{"prompt": [{"role": "user", "content": word}], "answer": word[::-1]} for word in WORDS]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[reward], weights=[1.0]))
