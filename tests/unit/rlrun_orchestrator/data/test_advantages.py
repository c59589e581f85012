"""Advantages of a group, compared with the functions of the trainers that they come from."""

import math
import random
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.api.run_sections.training import Advantage, LengthPenalty
from rlrun_orchestrator.data.advantages import group_advantages, penalized_rewards


def mean_of_prime_rl(rewards: list[float]) -> list[float]:
    """`GRPOAlgorithm` of src/prime_rl/orchestrator/algo/grpo.py in PrimeIntellect-ai/prime-rl at commit 559b4477."""
    return [reward - statistics.fmean(rewards) for reward in rewards]


def std_of_verl(rewards: list[float]) -> list[float]:
    """`compute_grpo_outcome_advantage` of verl/trainer/ppo/core_algos.py in volcengine/verl with its epsilon of 1e-6:
    equation 3 of arXiv 2402.03300 with torch.std, the sample standard deviation.
    """
    return [(reward - statistics.fmean(rewards)) / (statistics.stdev(rewards) + 1e-6) for reward in rewards]


def none_of_prime_rl(rewards: list[float]) -> list[float]:
    """`compute_advantages` of src/prime_rl/orchestrator/advantage.py in prime-rl 0.5.0 without a configuration."""
    return rewards


def max_rl_of_prime_rl(rewards: list[float]) -> list[float]:
    """`MaxRLAlgorithm` of src/prime_rl/orchestrator/algo/max_rl.py at commit 559b4477 (arXiv 2602.02710)."""
    mean = statistics.fmean(rewards)
    return [0.0 if mean <= 0 else (reward - mean) / mean for reward in rewards]


@pytest.mark.parametrize(
    ("how", "theirs"),
    [
        (Advantage.mean, mean_of_prime_rl),
        (Advantage.std, std_of_verl),
        (Advantage.none, none_of_prime_rl),
        (Advantage.max_rl, max_rl_of_prime_rl),
    ],
)
def test_an_advantage_is_that_of_its_source(how: Advantage, theirs: Callable[[list[float]], list[float]]) -> None:
    dice = random.Random(1)
    draws = (lambda: float(dice.random() < 0.3), dice.random, lambda: dice.gauss(0, 3), lambda: 0.0, lambda: 1.0)
    for _ in range(1000):
        draw = dice.choice(draws)
        rewards = [draw() for _ in range(dice.randint(2, 16))]
        assert group_advantages(rewards, how) == pytest.approx(theirs(rewards), rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("how", [Advantage.mean, Advantage.std, Advantage.max_rl])
@pytest.mark.parametrize("reward", [0.1, 1 / 3, 0.7, 1e-3, 1e9 / 3, -0.7])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13])
def test_equal_rewards_have_no_advantage_in_spite_of_rounding(how: Advantage, reward: float, size: int) -> None:
    assert group_advantages([reward] * size, how) == [0.0] * size


def test_a_mean_that_is_a_rounding_error_is_no_scale() -> None:
    assert set(group_advantages([0.1, 0.2, -0.3], Advantage.max_rl)) == {0.0}


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_advantages_sum_to_zero_and_keep_the_differences(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert math.isclose(math.fsum(advantages), 0.0, abs_tol=1e-9)
    assert math.isclose(advantages[0] - advantages[-1], rewards[0] - rewards[-1], abs_tol=1e-9)


@pytest.mark.parametrize("how", Advantage)
def test_advantages_of_a_reward_that_is_not_finite_raise(how: Advantage) -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([0.0, math.nan], how)


def test_the_length_penalty_is_that_of_prime_rl() -> None:
    """`GRPOAlgorithm` of src/prime_rl/orchestrator/algo/grpo.py in PrimeIntellect-ai/prime-rl at commit 559b4477."""
    dice = random.Random(2)
    for _ in range(1000):
        size = dice.randint(1, 16)
        rewards = [dice.choice([0.0, 1.0, dice.uniform(-1, 2)]) for _ in range(size)]
        output, total, turns = ([dice.randint(0, most) for _ in range(size)] for most in (500, 1000, 5))
        total = [one + other for one, other in zip(output, total, strict=True)]
        how = LengthPenalty(output_tokens_weight=dice.random(), input_tokens_weight=dice.random(), turns_weight=0)
        wanted = []
        for reward, out, all_ in zip(rewards, output, total, strict=True):
            longest_input = max(max(a - o for a, o in zip(total, output, strict=True)), 1)
            share = how.output_tokens_weight * out / max(max(output), 1)
            share += how.input_tokens_weight * (all_ - out) / longest_input
            wanted.append(reward - sum(rewards) / size * share)
        lengths = [(out, all_ - out, turn) for out, all_, turn in zip(output, total, turns, strict=True)]
        assert penalized_rewards(rewards, lengths, how) == pytest.approx(wanted, abs=1e-6)
    by_turns = LengthPenalty(output_tokens_weight=0, input_tokens_weight=0, turns_weight=0.5)
    assert penalized_rewards([1.0, 0.0], [(9, 9, 1), (1, 1, 4)], by_turns) == [1 - 0.5 * 0.5 / 4, -0.25]
