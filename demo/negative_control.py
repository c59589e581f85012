"""Negative control of the demo: the same run with a learning rate that changes no weight must not gain.

A reward that rises without learning would come from the measurement: from easier prompts, from the order of the texts,
or from a base model that was not the one compared with.
"""

import copy
from collections.abc import Mapping
from typing import Any

LEARNING_RATE = 1e-30
"""The API requires a positive rate. A step of AdamW is about as large as the rate, and a float32 weight of 0.01 plus
1e-30 is the same number; the LoRA matrix that starts at zero ends below 1e-28, which changes no logit."""
GAIN_LIMIT = 0.1
"""Gain of the mean reward that chance explains: two means over 640 rollouts of 80 prompts differ by less."""
SAME_SCORE = 0.005
"""Difference between equal models on the same held-out prompts: none, but for the rounding of the report."""

Object = dict[str, Any]


def control_run(run: Object, name: str) -> Object:
    """Return an RLRun like `run`, with another name and LEARNING_RATE."""
    control = copy.deepcopy(run)
    control["metadata"]["name"] = name
    control["spec"]["learningRate"] = LEARNING_RATE
    return control


def gain(report: Mapping[str, Any]) -> float:
    """Return the gain of the mean reward, last steps minus first."""
    return float(report["reward_last"]) - float(report["reward_first"])


def failed_claims(report: Mapping[str, Any]) -> list[str]:
    """Return the claims about a control that do not hold. A number that is not finite holds none."""
    claims = {
        f"without learning the reward rises by at most {GAIN_LIMIT}": gain(report) <= GAIN_LIMIT,
        "without learning the adapter scores like its base model on held-out prompts, greedy": abs(
            report["adapter_reward_greedy"] - report["base_reward_greedy"]
        )
        <= SAME_SCORE,
    }
    return [claim for claim, holds in claims.items() if not holds]
