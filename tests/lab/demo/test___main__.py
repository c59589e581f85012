"""Claims and summary of the demo, from the figures of a committed run."""

import json
from typing import Any

import pytest

from demo.__main__ import before_training, failed_claims, summary
from demo.install import ROOT


@pytest.fixture
def report() -> dict[str, Any]:
    """The figures of the run that the README shows, without its control."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "images" / "demo.json").read_text())
    return found | {"control": None}


def control(**changes: float) -> dict[str, float]:
    return {
        "reward_first": 0.43, "reward_last": 0.42, "base_reward_greedy": 0.2732, "base_reward_sampled": 0.4293,
        "adapter_reward_greedy": 0.2732, "adapter_reward_sampled": 0.4293,
    } | changes  # fmt: skip


def test_demo_says_what_the_model_knew_before_training(report: dict[str, Any], capsys: Any) -> None:
    line = before_training(report)
    assert "0.273 greedy and 0.429 sampled" in line
    summary(report, [])
    assert f"before training    {line}" in capsys.readouterr().out


def test_demo_reports_the_agreement_of_engine_and_trainer_on_a_trained_adapter(
    report: dict[str, Any], capsys: Any
) -> None:
    warm = report["warm_start"]
    assert warm["mismatch_kl_on_policy_steps"] >= 5
    summary(report, [])
    assert f"on policy at most {warm['mismatch_kl_on_policy']:.1e} in" in capsys.readouterr().out
    [failed] = failed_claims(report | {"warm_start": warm | {"mismatch_kl_on_policy": 2e-6}})
    assert "on-policy mismatch KL" in failed


def test_demo_without_a_control_says_so(report: dict[str, Any], capsys: Any) -> None:
    assert failed_claims(report) == []
    summary(report, [])
    assert "negative control   not run (make demo CONTROL=1)" in capsys.readouterr().out


def test_control_that_gains_fails_the_demo(report: dict[str, Any], capsys: Any) -> None:
    assert failed_claims(report | {"control": control()}) == []
    failures = failed_claims(report | {"control": control(reward_last=0.75)})
    assert failures == ["without learning the reward rises by at most 0.1"]
    summary(report | {"control": control()}, [])
    assert "0.430 -> 0.420 without learning" in capsys.readouterr().out
