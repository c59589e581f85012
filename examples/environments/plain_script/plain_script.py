"""Environment without verifiers: a plain OpenAI client asks for words in reverse order.

The server needs an object with a `dataset` and a method `rollout`. Each rollout has its own base URL, so the client
needs no header and may send any number of requests.
"""

import random
from typing import Any

from openai import AsyncOpenAI

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"


def load_environment(
    num_examples: int = 1000, num_eval_examples: int = 64, words: int = 3, seed: int = 0
) -> "OppositeOrder":
    """Return the environment.

    Args:
        num_examples: Number of training texts.
        num_eval_examples: Number of held-out texts, made of other words.
        words: Words of a text, at least 2.
        seed: Seed of the texts.
    """
    if words < 2:
        raise ValueError(f"words {words} is too few for an order. Use at least 2.")
    return OppositeOrder(_rows("train", num_examples, words, seed), _rows("eval", num_eval_examples, words, seed))


class OppositeOrder:
    """Environment with a dataset and a method that makes a rollout of one example."""

    def __init__(self, dataset: list[dict[str, Any]], eval_dataset: list[dict[str, Any]]) -> None:
        self.dataset = dataset
        self.eval_dataset = eval_dataset
        self._client: AsyncOpenAI | None = None

    async def rollout(
        self, example: dict[str, Any], *, base_url: str, api_key: str, model: str, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Send one request. The reward is the share of words at their place."""
        if self._client is None:
            self._client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        # Copies of a client share its connections but use the URL of their own rollout.
        client = self._client.with_options(base_url=base_url)
        messages = [{"role": "user", "content": example["prompt"]}]
        reply = await client.chat.completions.create(model=model, messages=messages, **sampling)
        text = reply.choices[0].message.content or ""
        return {
            "reward": share(text, example["answer"]),
            "metrics": {"exact": float(text.split() == example["answer"].split())},
            "completion": [{"role": "assistant", "content": text}],
        }


def share(text: str, answer: str) -> float:
    """Return the share of words at their place. Surplus words count as wrong."""
    given, wanted = text.split(), answer.split()
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(given), len(wanted), 1)


def _rows(split: str, count: int, words: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{split}-{seed}")
    rows = []
    for _ in range(count):
        # Words of held-out texts end in a consonant, so they occur in no training text.
        drawn = [
            rng.choice(CONSONANTS) + rng.choice(VOWELS) + (rng.choice(CONSONANTS) if split == "eval" else "")
            for _ in range(words)
        ]
        rows.append({"prompt": " ".join(drawn), "answer": " ".join(reversed(drawn))})
    return rows
