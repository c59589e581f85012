"""Write words in the opposite order, asked by a plain OpenAI client: an environment without verifiers.

All that the server wants is an object with a `dataset` and a method `rollout`. The base URL is this rollout's own, so
the client needs no header and may make as many requests as it likes.
"""

import random
from typing import Any

from openai import AsyncOpenAI

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"


def load_environment(
    num_examples: int = 1000, num_eval_examples: int = 64, words: int = 3, seed: int = 0
) -> "OppositeOrder":
    """The environment.

    Args:
        num_examples: texts to train on.
        num_eval_examples: held-out texts, of other words.
        words: words of a text, at least 2.
        seed: the same seed makes the same texts.
    """
    if words < 2:
        raise ValueError(f"words {words} has no opposite order: use at least 2")
    return OppositeOrder(_rows("train", num_examples, words, seed), _rows("eval", num_eval_examples, words, seed))


class OppositeOrder:
    """The examples, and what one rollout does."""

    def __init__(self, dataset: list[dict[str, Any]], eval_dataset: list[dict[str, Any]]) -> None:
        self.dataset = dataset
        self.eval_dataset = eval_dataset
        self._client: AsyncOpenAI | None = None

    async def rollout(
        self, example: dict[str, Any], *, base_url: str, api_key: str, model: str, sampling: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask once; the reward is the share of words at their right place."""
        if self._client is None:
            self._client = AsyncOpenAI(base_url=base_url, api_key=api_key)
        # Copies of a client share its connections; each goes to the URL of its own rollout.
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
    """Share of words that stand at their place; words too many count like wrong ones."""
    given, wanted = text.split(), answer.split()
    return sum(a == b for a, b in zip(given, wanted, strict=False)) / max(len(given), len(wanted), 1)


def _rows(split: str, count: int, words: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(f"{split}-{seed}")
    rows = []
    for _ in range(count):
        # Words of the held-out texts end in a consonant, and so occur in no other text.
        drawn = [
            rng.choice(CONSONANTS) + rng.choice(VOWELS) + (rng.choice(CONSONANTS) if split == "eval" else "")
            for _ in range(words)
        ]
        rows.append({"prompt": " ".join(drawn), "answer": " ".join(reversed(drawn))})
    return rows
