"""Environment to sort names alphabetically over several turns; each turn after the first adds names.

The names are made from a seed, so nothing is downloaded. Names have lower-case letters and answers separate them with
single spaces, for models that know only letters and spaces.
"""

import random
from collections.abc import Sequence
from typing import Any

import verifiers as vf
from datasets import Dataset

CONSONANTS = "bcdfghjklmnpqrstvwxyz"
VOWELS = "aeiou"


def load_environment(
    num_examples: int = 1000,
    num_eval_examples: int = 64,
    turns: int = 2,
    min_names: int = 2,
    max_names: int = 3,
    seed: int = 0,
) -> vf.Environment:
    """Return the environment.

    Args:
        num_examples: Number of training conversations.
        num_eval_examples: Number of held-out conversations, with other names.
        turns: Answers of the policy in each conversation.
        min_names: Minimum number of names in a turn.
        max_names: Maximum number of names in a turn.
        seed: Seed of the names.
    """
    if turns < 1 or not 1 <= min_names <= max_names:
        raise ValueError(
            f"turns {turns}, min_names {min_names} and max_names {max_names} are invalid. Use turns >= 1 and "
            "1 <= min_names <= max_names."
        )
    return AlphabetSort(
        dataset=_rows("train", num_examples, turns, min_names, max_names, seed),
        eval_dataset=_rows("eval", num_eval_examples, turns, min_names, max_names, seed),
        rubric=vf.Rubric(funcs=[sorted_share, all_sorted], weights=[1.0, 0.0]),
        max_turns=turns,
    )


class AlphabetSort(vf.MultiTurnEnv):
    """Multi-turn environment that answers each sorted list with more names."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """Return the next names."""
        names = state["info"]["turns"][len(state["trajectory"])]
        return [vf.UserMessage(content=" ".join(names))]


def sorted_share(completion: Any, info: dict[str, Any]) -> float:
    """Return the share of names at their place, averaged over the turns. A missing turn counts as 0."""
    wanted = expected(info["turns"])
    given = _answers(completion)[: len(wanted)]
    return sum(placed(answer, names) for answer, names in zip(given, wanted, strict=False)) / len(wanted)


def all_sorted(completion: Any, info: dict[str, Any]) -> float:
    """Return 1 if every turn is right (a metric without weight in the reward)."""
    return float([answer.split() for answer in _answers(completion)] == expected(info["turns"]))


def expected(turns: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the right answer of each turn: all names so far, sorted."""
    return [sorted(name for names in turns[: i + 1] for name in names) for i in range(len(turns))]


def placed(answer: str, names: Sequence[str]) -> float:
    """Return the share of names at their place in the answer. Surplus words count as wrong."""
    words = answer.lower().split()
    right = sum(a == b for a, b in zip(words, names, strict=False))
    return right / max(len(words), len(names), 1)


def _answers(completion: Any) -> list[str]:
    return [str(message["content"] or "") for message in completion if message["role"] == "assistant"]


def _rows(split: str, count: int, turns: int, fewest: int, most: int, seed: int) -> Dataset:
    # The splits share no name, because held-out names have odd lengths.
    rng = random.Random(f"{split}-{seed}")
    rows = []
    for _ in range(count):
        drawn: list[str] = []
        sizes = [rng.randint(fewest, most) for _ in range(turns)]
        while len(drawn) < sum(sizes):
            name = "".join(rng.choice(CONSONANTS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 2)))
            name += rng.choice(CONSONANTS) if split == "eval" else ""
            if name not in drawn:
                drawn.append(name)
        parts = [[drawn.pop() for _ in range(size)] for size in sizes]
        rows.append({"prompt": [{"role": "user", "content": " ".join(parts[0])}], "info": {"turns": parts}})
    return Dataset.from_list(rows)
