"""An environment whose reward function raises on every `every`-th text: those rollouts are counted, never trained on."""

import hashlib
from typing import Any

import verifiers as vf
from datasets import Dataset


def load_environment(every: int = 4, num_examples: int = 64) -> vf.Environment:
    """Echo a word; the reward of every `every`-th word divides by zero."""

    def echo(prompt: Any, completion: Any, answer: str) -> float:
        number = hashlib.blake2b(answer.encode(), digest_size=2).digest()[0] % every
        return min(1.0, float(completion[-1]["content"] == answer) / number)

    words = [f"word{'abcdefghij'[i % 10]}{'abcdefghij'[i // 10 % 10]}" for i in range(num_examples)]
    rows = [{"prompt": [{"role": "user", "content": word}], "answer": word} for word in words]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[echo]))
