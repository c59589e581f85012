"""reverse_text with a reward that waits for a slow outside call, as a judge or a sandbox would make it wait.

Nothing is called: the wait is simulated. Its lengths are log-normal, most of them short and some long, and seeded by
the example, so that two runs wait alike.
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
    num_examples: int = 2000,
    num_eval_examples: int = 128,
    min_length: int = 5,
    max_length: int = 10,
    seed: int = 0,
) -> vf.Environment:
    """The environment; texts, answers and rewards are those of reverse_text.

    Args:
        mean_seconds: mean length of the call.
        sigma: how uneven the lengths are: the standard deviation of their logarithm.
        num_examples: texts to train on.
        num_eval_examples: held-out texts.
        min_length: characters of the shortest text.
        max_length: characters of the longest text.
        seed: the same seed makes the same texts and the same waits.
    """
    if mean_seconds <= 0 or sigma < 0:
        raise ValueError(f"mean_seconds {mean_seconds} and sigma {sigma} do not fit: use mean_seconds > 0, sigma >= 0")
    texts = load_reverse_text(num_examples, num_eval_examples, min_length, max_length, seed)
    call = OutsideCall(mean_seconds, sigma, seed)

    async def judged_similarity(completion: Any, answer: str, state: vf.State) -> float:
        """reverse_text's similarity, once the call has answered."""
        state["waited_seconds"] = await call(answer)
        return reversed_similarity(completion, answer)

    return vf.SingleTurnEnv(
        dataset=texts.get_dataset(),
        eval_dataset=texts.get_eval_dataset(),
        rubric=vf.Rubric(funcs=[judged_similarity, waited_seconds, exactly_reversed], weights=[1.0, 0.0, 0.0]),
    )


class OutsideCall:
    """A call that takes `mean_seconds` on average. The n-th one for an example always takes the same time."""

    def __init__(self, mean_seconds: float, sigma: float, seed: int) -> None:
        # Of a log-normal distribution with this mean; see any table of its moments.
        self._mu = math.log(mean_seconds) - sigma**2 / 2
        self._sigma = sigma
        self._seed = seed
        self._draws: dict[str, random.Random] = {}

    def seconds(self, example: str) -> float:
        """How long the next call for this example takes."""
        draws = self._draws.setdefault(example, random.Random(f"{self._seed}-{example}"))
        return draws.lognormvariate(self._mu, self._sigma)

    async def __call__(self, example: str) -> float:
        """Wait; returns for how long, in seconds."""
        seconds = self.seconds(example)
        await asyncio.sleep(seconds)
        return seconds


def waited_seconds(state: vf.State) -> float:
    """How long the reward waited (a metric, no part of the reward)."""
    return float(state["waited_seconds"])
