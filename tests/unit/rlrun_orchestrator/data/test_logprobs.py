"""Summary of log-probabilities."""

import math

from rlrun_orchestrator.data.logprobs import logprob_summary
from rlrun_orchestrator.data.trajectories import TokenSequence


def sequence(*logprobs: float) -> TokenSequence:
    """Sampled tokens, each after one that was not."""
    mask = [False, True] * len(logprobs)
    values = [value for logprob in logprobs for value in (0.0, logprob)]
    return TokenSequence(list(range(len(mask))), mask, values)


def test_sampled_tokens_of_all_sequences_count() -> None:
    found = logprob_summary([sequence(-1.0, -6.0), sequence(-0.5, -0.5)])
    assert found is not None
    assert (found.mean, found.min, found.p05, found.low) == (-2.0, -6.0, -6.0, 0.25)


def test_the_5th_percentile_is_above_the_lowest_of_many_tokens() -> None:
    found = logprob_summary([sequence(*(-float(n) for n in range(100)))])
    assert found is not None
    assert (found.min, found.p05) == (-99.0, -95.0)


def test_minus_five_is_not_low() -> None:
    found = logprob_summary([sequence(-5.0, -5.1)])
    assert found is not None
    assert found.low == 0.5


def test_without_tokens_or_finite_values_there_is_none() -> None:
    assert logprob_summary([]) is None
    assert logprob_summary([TokenSequence([1], [False], [0.0])]) is None
    assert logprob_summary([sequence(-math.inf, -1.0)]) is None
