"""The demo's second run fails if it does not start from the checkpoint, or if engine and trainer disagree."""

import math
from typing import Any

import pytest
import yaml
from rlrun.api.run import RLRun

from demo.install import EXAMPLES
from demo.warm_start import ON_POLICY, failed_claims, figures, warm_run

EXAMPLE = yaml.safe_load((EXAMPLES / "reverse-text.yaml").read_text())
FIRST = {"reward_first": 0.4, "reward_last": 0.8}
WARM = {"reward": 0.75, "mismatch_kl_on_policy": 3e-13, "mismatch_kl_on_policy_steps": 6}


def test_run_starts_from_the_checkpoint_and_samples_with_the_newest_policy() -> None:
    spec = RLRun.model_validate(warm_run(EXAMPLE, "warm", "reverse-text-step-000030-1a2b3c4d")).spec
    assert spec.checkpoint_id == "reverse-text-step-000030-1a2b3c4d"
    assert spec.max_async_level == 0
    assert "checkpointId" not in EXAMPLE["spec"]


def test_figures_are_of_the_worst_step_on_policy() -> None:
    lines: list[dict[str, Any]] = [
        {"step": 1, "reward/mean": 0.7, ON_POLICY: 1e-13},
        {"step": 2, "reward/mean": 0.8, ON_POLICY: 5e-13},
        {"step": 3, "reward/mean": 0.9},
    ]
    assert figures(lines) == {
        "steps": 3, "reward": 0.8, "mismatch_kl_on_policy": 5e-13, "mismatch_kl_on_policy_steps": 2,
    }  # fmt: skip
    with pytest.raises(KeyError, match="no step reported"):
        figures(lines[2:])


@pytest.mark.parametrize(
    ("planted", "claim"),
    [
        ({"reward": 0.41}, "starts from the checkpoint"),
        ({"reward": math.nan}, "starts from the checkpoint"),
        ({"mismatch_kl_on_policy": 2e-6}, "on-policy mismatch KL"),
        ({"mismatch_kl_on_policy": math.nan}, "on-policy mismatch KL"),
        ({"mismatch_kl_on_policy_steps": 4}, "on-policy mismatch KL"),
    ],
)
def test_planted_mistake_is_found(planted: dict[str, float], claim: str) -> None:
    assert failed_claims(FIRST, WARM) == []
    [failed] = failed_claims(FIRST, WARM | planted)
    assert claim in failed
