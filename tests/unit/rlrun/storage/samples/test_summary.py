"""Summaries of objects."""

import pytest
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun.storage.samples.summary import StepSamples, quantile, summarize

from tests.support.sample_records import record


def summary(step: int = 3, omitted: int = 0, **rewards: list[float]) -> StepSamples:
    written = [[record(group, f"r{n}", reward=r) for n, r in enumerate(found)] for group, found in rewards.items()]
    encoded = encode_samples(step, SampleSplit.train, written)
    return summarize(encoded.index, environment=None, file="step.jsonl.zst", size=len(encoded.data), omitted=omitted)


def test_rewards_and_groups_of_a_step() -> None:
    found = summary(g0=[0.0, 1.0], g1=[1.0, 1.0])
    assert found.counts == {SampleStatus.trained: 4}
    assert found.groups == [("reverse", 7, 0.5), ("reverse", 7, 1.0)]
    assert found.reward is not None
    assert found.reward.mean == 0.75
    assert found.reward.standard_error == pytest.approx(0.25)
    assert found.reward.quantiles[0] == 0.0
    assert found.reward.quantiles[-1] == 1.0


def test_failed_rollouts_count_and_have_no_reward() -> None:
    failed = record("g0", "r1", status=SampleStatus.errored, reward=0.0)
    encoded = encode_samples(3, SampleSplit.train, [[record(), failed], [failed.model_copy(update={"group": "g1"})]])
    found = summarize(encoded.index, environment=None, file="f", size=1, omitted=0)
    assert found.counts == {SampleStatus.trained: 1, SampleStatus.errored: 2}
    assert found.groups == [("reverse", 7, 0.5)]
    assert found.reward is not None
    assert (found.reward.mean, found.reward.standard_error) == (0.5, None)


def test_a_step_without_rewards() -> None:
    assert summary().reward is None


def test_quantiles_are_interpolated() -> None:
    assert quantile([0.0, 1.0, 2.0, 3.0], 0.5) == 1.5
    assert quantile([4.0], 0.95) == 4.0
