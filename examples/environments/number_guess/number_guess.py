"""Guess a hidden number; every wrong guess is answered with `higher` or `lower`.

With `letters` the numbers are written as letters (a is 1, z is 26), so that even a model that knows nothing but letters
can play. The first number of an answer is the guess, or its first letter where it has no number.
"""

import re
import string
from typing import Any

import verifiers as vf
from datasets import Dataset

LETTERS = string.ascii_lowercase
EVAL_SHARE = 4
"""One number in so many is held out."""


def load_environment(limit: int = 26, max_turns: int = 6, letters: bool = False, seed: int = 0) -> vf.Environment:
    """The environment: each number from 1 to `limit` is an example.

    Args:
        limit: the largest number, at least 4; with letters at most 26.
        max_turns: guesses that the policy has.
        letters: write numbers as letters.
        seed: which numbers are held out.
    """
    if limit < EVAL_SHARE or (letters and limit > len(LETTERS)):
        raise ValueError(f"limit {limit} does not fit: use at least {EVAL_SHARE}, and with letters at most 26")
    if max_turns < 1:
        raise ValueError(f"max_turns {max_turns} does not fit: use at least 1")
    numbers = range(1, limit + 1)
    held_out = {n for n in numbers if (n + seed) % EVAL_SHARE == 0}
    return NumberGuess(
        dataset=_rows([n for n in numbers if n not in held_out], limit, max_turns, letters),
        eval_dataset=_rows(sorted(held_out), limit, max_turns, letters),
        rubric=vf.Rubric(funcs=[guessed, guesses], weights=[1.0, 0.0]),
        max_turns=max_turns,
    )


class NumberGuess(vf.MultiTurnEnv):
    """Answers guesses with hints, until one is right."""

    async def setup_state(self, state: vf.State) -> None:
        """No guess was made yet."""
        state["guesses"] = []

    async def add_model_response(self, state: vf.State, prompt_messages: vf.Messages, response: Any) -> None:
        """Note the guess."""
        await super().add_model_response(state, prompt_messages, response)
        state["guesses"].append(guess_of(str(response.message.content or "")))

    @vf.stop
    async def found(self, state: vf.State) -> bool:
        """The last guess is right."""
        return bool(state["guesses"]) and state["guesses"][-1] == state["info"]["number"]

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """The hint."""
        return [vf.UserMessage(content=hint(state["guesses"][-1], state["info"]["number"]))]


def guess_of(text: str) -> int | None:
    """The first number in a text, or the place in the alphabet of its first letter; None without either."""
    match = re.search(r"\d{1,9}", text) or re.search(r"[a-z]", text.lower())
    if match is None:
        return None
    found = match.group()
    return int(found) if found.isdigit() else LETTERS.index(found) + 1


def hint(guess: int | None, number: int) -> str:
    """What the player is told."""
    if guess is None:
        return "guess"
    return "higher" if guess < number else "lower"


def guessed(state: vf.State) -> float:
    """Found: from 1 (at once) down to 0.5 (with the last guess). Else up to 0.25, for how near the last guess was."""
    made, info = state["guesses"], state["info"]
    if made and made[-1] == info["number"]:
        return 1.0 - 0.5 * (len(made) - 1) / max(info["max_turns"] - 1, 1)
    if not made or made[-1] is None:
        return 0.0
    return 0.25 * max(0.0, 1.0 - abs(made[-1] - info["number"]) / info["limit"])


def guesses(state: vf.State) -> float:
    """How many guesses were made (a metric, no part of the reward)."""
    return float(len(state["guesses"]))


def _rows(numbers: list[int], limit: int, max_turns: int, letters: bool) -> Dataset:
    prompt = f"a to {LETTERS[limit - 1]}" if letters else f"Guess a number from 1 to {limit}. Answer with it alone."
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": prompt}],
                "answer": LETTERS[n - 1] if letters else str(n),
                "info": {"number": n, "limit": limit, "max_turns": max_turns},
            }
            for n in numbers
        ]
    )
