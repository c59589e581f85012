"""Results of a run that learns."""

from types import SimpleNamespace
from typing import Any

from bench.learning_environment import family_rewards


def record(reward: float | None, error: Any = None, **metrics: float) -> Any:
    return SimpleNamespace(reward=reward, error=error, metrics=metrics)


def test_rewards_are_means_by_family_and_end() -> None:
    first = [
        record(0.0, a=1.0, b=0.0, num_turns=1.0),
        record(0.5, a=1.0),
        record(0.2, b=1.0),
        record(1.0, "failed", a=1.0),
    ]
    last = [record(1.0, a=1.0), record(0.4, b=1.0), record(None, b=1.0)]
    assert family_rewards({"first": first, "last": last}, ["a", "b"]) == {
        "a": {"first": 0.25, "last": 1.0},
        "b": {"first": 0.2, "last": 0.4},
    }
