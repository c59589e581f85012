"""The control of the demo fails if a run without learning gains."""

import math
import struct
from typing import Any

import pytest
import yaml
from rlrun.api.run import RLRun

from demo.install import EXAMPLES
from demo.negative_control import control_run, failed_claims, gain

EXAMPLE = yaml.safe_load((EXAMPLES / "reverse-text.yaml").read_text())


def float32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def report(**changes: float) -> dict[str, float]:
    return {
        "reward_first": 0.42, "reward_last": 0.44, "base_reward_greedy": 0.2732, "adapter_reward_greedy": 0.2732,
    } | changes  # fmt: skip


def test_control_differs_from_the_run_in_name_and_learning_rate_only() -> None:
    control = control_run(EXAMPLE, "control")
    ours, theirs = (RLRun.model_validate(run).spec.model_dump() for run in (control, EXAMPLE))
    assert {key for key, value in ours.items() if value != theirs[key]} == {"learning_rate"}
    assert control["metadata"]["name"] == "control"
    assert EXAMPLE["metadata"]["name"] == "reverse-text"


def test_learning_rate_changes_no_weight() -> None:
    rate = control_run(EXAMPLE, "control")["spec"]["learningRate"]
    assert float32(rate) > 0
    assert float32(float32(1e-6) + rate) == float32(1e-6)


def test_control_without_a_gain_holds() -> None:
    assert failed_claims(report()) == []
    assert gain(report()) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("planted", "claim"),
    [
        ({"reward_last": 0.75}, "the reward rises by at most"),
        ({"reward_last": math.nan}, "the reward rises by at most"),
        ({"adapter_reward_greedy": 0.88}, "like its base model"),
        ({"adapter_reward_greedy": 0.1}, "like its base model"),
        ({"adapter_reward_greedy": math.nan}, "like its base model"),
    ],
)
def test_planted_gain_is_found(planted: dict[str, Any], claim: str) -> None:
    [failed] = failed_claims(report(**planted))
    assert claim in failed
