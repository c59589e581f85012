"""Environment to guess a hidden number; a wrong guess gets the answer `higher` or `lower`.

With `letters`, numbers are written as letters (a is 1, z is 26), for models that know only letters. The guess is the
first number of a message, or its first letter if it has no number.
"""

import re
import string
from typing import Any

import verifiers as vf
from datasets import Dataset

LETTERS = string.ascii_lowercase
EVAL_SHARE = 4
"""One of this many numbers is held out."""


def load_environment(limit: int = 26, max_turns: int = 6, letters: bool = False, seed: int = 0) -> vf.Environment:
    """Return the environment. Each number from 1 to `limit` is an example.

    Args:
        limit: Largest number, at least 4; with letters at most 26.
        max_turns: Number of guesses.
        letters: Write numbers as letters.
        seed: Selects the held-out numbers.
    """
    if limit < EVAL_SHARE or (letters and limit > len(LETTERS)):
        raise ValueError(f"limit {limit} is invalid. Use at least {EVAL_SHARE}, and with letters at most 26.")
    if max_turns < 1:
        raise ValueError(f"max_turns {max_turns} is invalid. Use at least 1.")
    numbers = range(1, limit + 1)
    held_out = {n for n in numbers if (n + seed) % EVAL_SHARE == 0}
    return NumberGuess(
        dataset=_rows([n for n in numbers if n not in held_out], limit, max_turns, letters),
        eval_dataset=_rows(sorted(held_out), limit, max_turns, letters),
        rubric=vf.Rubric(funcs=[guessed, guesses], weights=[1.0, 0.0]),
        max_turns=max_turns,
    )


class NumberGuess(vf.MultiTurnEnv):
    """Multi-turn environment that answers guesses with hints."""

    async def setup_state(self, state: vf.State) -> None:
        """Initialize the list of guesses."""
        state["guesses"] = []

    async def add_model_response(self, state: vf.State, prompt_messages: vf.Messages, response: Any) -> None:
        """Record the guess."""
        await super().add_model_response(state, prompt_messages, response)
        state["guesses"].append(guess_of(str(response.message.content or "")))

    @vf.stop
    async def found(self, state: vf.State) -> bool:
        """Return true if the last guess is right."""
        return bool(state["guesses"]) and state["guesses"][-1] == state["info"]["number"]

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """Return the hint."""
        return [vf.UserMessage(content=hint(state["guesses"][-1], state["info"]["number"]))]


def guess_of(text: str) -> int | None:
    """Return the first number in a text, or the position of its first letter in the alphabet, or None."""
    match = re.search(r"\d{1,9}", text) or re.search(r"[a-z]", text.lower())
    if match is None:
        return None
    found = match.group()
    return int(found) if found.isdigit() else LETTERS.index(found) + 1


def hint(guess: int | None, number: int) -> str:
    """Return the answer to a guess."""
    if guess is None:
        return "guess"
    return "higher" if guess < number else "lower"


def guessed(state: vf.State) -> float:
    """Return 1 (success at the first guess) to 0.5 (success at the last guess). After a wrong last guess, return up to
    0.25 if it is close.
    """
    made, info = state["guesses"], state["info"]
    if made and made[-1] == info["number"]:
        return 1.0 - 0.5 * (len(made) - 1) / max(info["max_turns"] - 1, 1)
    if not made or made[-1] is None:
        return 0.0
    return 0.25 * max(0.0, 1.0 - abs(made[-1] - info["number"]) / info["limit"])


def guesses(state: vf.State) -> float:
    """Return the number of guesses (a metric without weight in the reward)."""
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
