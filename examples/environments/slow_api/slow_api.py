"""Environment reverse_text with a reward that waits for a slow external call, such as a judge or a sandbox.

With `turns`, the model answers several times and waits in between, as for tools. The call is simulated by a wait. Its
length is log-normal and seeded by the example, so that two runs wait equally long.
"""

import asyncio
import math
import random
from typing import Any

import verifiers as vf
from reverse_text import exactly_reversed, reversed_similarity
from reverse_text import load_environment as load_reverse_text


def load_environment(
    mean_seconds: float = 1.0,
    sigma: float = 0.5,
    turns: int = 1,
    num_examples: int = 2000,
    num_eval_examples: int = 128,
    min_length: int = 5,
    max_length: int = 10,
    seed: int = 0,
) -> vf.Environment:
    """Return the environment. Texts, answers and rewards are those of reverse_text.

    Args:
        mean_seconds: Mean length of the call in seconds.
        sigma: Standard deviation of the logarithm of the length.
        turns: Number of turns. A call precedes each further turn, which asks for the same text again; the last answer
            counts.
        num_examples: Number of training texts.
        num_eval_examples: Number of held-out texts.
        min_length: Characters of the shortest text.
        max_length: Characters of the longest text.
        seed: Seed of texts and waits.
    """
    if mean_seconds <= 0 or sigma < 0:
        raise ValueError(f"mean_seconds {mean_seconds} and sigma {sigma} are invalid. Use > 0 and >= 0.")
    if turns < 1:
        raise ValueError(f"turns {turns} is invalid. Use at least 1.")
    texts = load_reverse_text(num_examples, num_eval_examples, min_length, max_length, seed)
    call = OutsideCall(mean_seconds, sigma, seed)

    async def judged_similarity(completion: Any, answer: str, state: vf.State) -> float:
        """Return the similarity of reverse_text after the call."""
        state["waited_seconds"] = state.get("waited_seconds", 0.0) + await call(answer)
        return reversed_similarity(completion, answer)

    return AskedAgain(
        call,
        max_turns=turns,
        dataset=texts.get_dataset(),
        eval_dataset=texts.get_eval_dataset(),
        rubric=vf.Rubric(funcs=[judged_similarity, waited_seconds, exactly_reversed], weights=[1.0, 0.0, 0.0]),
    )


class AskedAgain(vf.MultiTurnEnv):
    """Environment that repeats its question after a call, until `max_turns` answers were given."""

    def __init__(self, call: "OutsideCall", **arguments: Any) -> None:
        super().__init__(**arguments)
        self._call = call

    async def env_response(self, messages: vf.Messages, state: vf.State, **_: Any) -> vf.Messages:
        """Return the question again after a call."""
        state["waited_seconds"] = state.get("waited_seconds", 0.0) + await self._call(state["answer"])
        return [vf.UserMessage(content=state["answer"][::-1])]


class OutsideCall:
    """Simulated call of `mean_seconds` on average. The n-th call for an example always takes the same time."""

    def __init__(self, mean_seconds: float, sigma: float, seed: int) -> None:
        # Parameter of the log-normal distribution with this mean.
        self._mu = math.log(mean_seconds) - sigma**2 / 2
        self._sigma = sigma
        self._seed = seed
        self._draws: dict[str, random.Random] = {}

    def seconds(self, example: str) -> float:
        """Return the length of the next call for an example, in seconds."""
        draws = self._draws.setdefault(example, random.Random(f"{self._seed}-{example}"))
        return draws.lognormvariate(self._mu, self._sigma)

    async def __call__(self, example: str) -> float:
        """Wait for the next call. Returns its length in seconds."""
        seconds = self.seconds(example)
        await asyncio.sleep(seconds)
        return seconds


def waited_seconds(state: vf.State) -> float:
    """Return the seconds that the rollout waited (a metric without weight in the reward)."""
    return float(state["waited_seconds"])
