"""The learning rate of each step, compared with the schedulers of prime-rl."""

import math
from typing import Any

import pytest
from rlrun_trainer.optimization.learning_rate import learning_rate

from tests.support import trainer_requests


def rates(steps: int, earlier: int = 0, **settings: Any) -> list[float]:
    spec = trainer_requests.spec("s3://bucket/run", **settings)
    return [learning_rate(spec, step, earlier + step) for step in range(steps)]


def test_the_rate_rises_linearly_to_its_peak() -> None:
    assert rates(6, learning_rate=0.8, warmup_steps=3) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert rates(3, learning_rate=0.8, warmup_steps=1) == pytest.approx([0.4, 0.8, 0.8])
    assert rates(5, learning_rate=1.0) == [1.0] * 5


def of_prime_rl(step: int, peak: float, low: float, warmup: int, decay: int | None, steps: int) -> float:
    """`setup_linear_scheduler`, or without `decay` `setup_cosine_scheduler`, of src/prime_rl/trainer/scheduler.py in
    PrimeIntellect-ai/prime-rl at commit 559b4477, with the closed forms of torch's LinearLR and CosineAnnealingLR.
    """

    def linear(start: float, end: float, total: int, epoch: int) -> float:
        return peak * (start + (end - start) * (min(epoch, total) / total if total else 0))

    factor = low / peak if low > 0 else 1e-8
    if step < warmup:
        return linear(factor, 1.0, warmup, step)
    if decay is None:
        return low + (peak - low) * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2
    start = steps - decay
    return peak if step < start or not decay else linear(1.0, factor, decay - 1, step - start)


@pytest.mark.parametrize("low", [0.0, 0.03])
@pytest.mark.parametrize("warmup", [0, 1, 10])
@pytest.mark.parametrize("decay", [None, 0, 1, 10, 990])
def test_decreasing_rates_are_those_of_prime_rl(low: float, warmup: int, decay: int | None) -> None:
    shape = {"schedule": "cosine"} if decay is None else {"schedule": "linear", "decay_steps": decay}
    found = rates(
        1000, learning_rate=0.8, max_steps=1000, warmup_steps=warmup, min_learning_rate=low, **shape
    )  # fmt: skip
    wanted = [of_prime_rl(step, 0.8, low, warmup, decay, 1000) for step in range(1000)]
    assert found == pytest.approx(wanted, abs=1e-7)


def test_a_linear_rate_falls_from_the_warmup_to_the_last_step_unless_it_is_told_when() -> None:
    found = rates(5, learning_rate=0.8, max_steps=5, warmup_steps=2, schedule="linear")
    assert found == pytest.approx([0.0, 0.4, 0.8, 0.4, 0.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_warm_start_begins_at_the_peak_and_falls_within_its_own_steps(schedule: str) -> None:
    found = rates(9, earlier=50, learning_rate=0.8, max_steps=9, warmup_steps=4, schedule=schedule)
    assert found[:5] == [0.8] * 5
    assert found[5:] == sorted(found[5:], reverse=True)
    assert found[-1] < 0.2
