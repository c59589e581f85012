"""Records of groups: what a person needs to judge them."""

import math
from array import array

import pytest
from rlrun.protocol.environment import FunctionReward, GroupResult, RolloutResult
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.object_file import decode_index
from rlrun.storage.samples.record import SampleSplit, SampleStatus
from rlrun.storage.samples.scan import scan
from rlrun_orchestrator.data.example_buffer import Example
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import GroupState, Rollout
from rlrun_orchestrator.data.scoring import measured_group
from rlrun_orchestrator.data.trajectories import SampledSpan, TokenSequence, Trajectory
from rlrun_orchestrator.storage.sample_records import StepRollouts, encode_rollouts, group_records, logprob_summary

from tests.support.ended_groups import group, rollout, step_rollouts


def test_a_trained_rollout() -> None:
    scored = group()
    functions = {"overlap": FunctionReward(value=0.5, weight=2.0)}
    scored.rollouts = [rollout(1, rewards=functions, generation_ms=120.0, stop_condition="done")]
    (record,) = group_records(scored, 4, SampleSplit.train)
    assert (record.status, record.cause, record.reward, record.advantage) == (SampleStatus.trained, None, 1.0, 0.5)
    assert (record.policy_version, record.staleness) == (2, 1)
    assert record.rewards == functions
    assert record.tokens is not None
    assert (record.tokens.prompt, record.tokens.completion, record.turns) == (2, 3, 1)
    assert record.logprob is not None
    assert (record.logprob.mean, record.logprob.min, record.logprob.low) == (-2.5, -6.0, pytest.approx(1 / 3, abs=1e-4))
    assert (record.ms.generate, record.ms.score, record.ms.group) == (120.0, None, 500.0)
    assert record.prompt == [{"role": "user", "content": "reverse: hello"}]
    assert record.completion == [{"role": "assistant", "content": "olleh"}]
    assert (record.answer, record.info, record.stop_condition) == ("olleh", {"mail": "m"}, "done")


def test_a_failed_rollout_keeps_its_error_in_any_group() -> None:
    scored = group()
    error = Problem(reason="RewardFunctionError", message="boom")
    scored.rollouts[1] = Rollout(scored.rollouts[1].result, Trajectory([], 0), 0, False, error)
    scored.filter_reason = FilterReason.low_reward
    for scored.state in (GroupState.trained, GroupState.filtered):
        sound, failed = group_records(scored, 4, SampleSplit.train)
        assert (sound.status, sound.cause) == (scored.state, "low_reward")
        assert (failed.status, failed.cause, failed.error) == (SampleStatus.errored, "RewardFunctionError", error)
        assert failed.logprob is None


def test_values_of_an_environment_are_limited() -> None:
    scored = group()
    many = {f"metric {n}": float(n) for n in range(100)} | {"odd": math.inf}
    scored.rollouts = [rollout(1, rollout_id="x" * 500, stop_condition="s" * 500, metrics=many, reward=math.nan)]
    (record,) = group_records(scored, 4, SampleSplit.train)
    assert (len(record.rollout), len(record.stop_condition or ""), len(record.metrics)) == (128, 64, 64)
    assert record.reward is None


def test_a_rollout_with_a_prompt_of_its_own() -> None:
    scored = group()
    scored.rollouts = [rollout(1, prompt="another one", completion="a text")]
    (record,) = group_records(scored, 4, SampleSplit.train)
    assert record.prompt == [{"role": "user", "content": "another one"}]
    assert record.completion == [{"role": "assistant", "content": "a text"}]


def test_an_environment_that_reports_no_example() -> None:
    scored = group()
    scored.content = None
    record, _ = group_records(scored, 4, SampleSplit.train)
    assert (record.prompt, record.answer, record.info, record.rewards) == ([], None, None, {})


def test_a_measured_group_has_neither_advantage_nor_tokens() -> None:
    results = [RolloutResult(rollout_id="r0", reward=1.0), RolloutResult(rollout_id="r1", reward=math.nan)]
    answer = GroupResult(group_id="g", rollouts=results, seconds=0.1)
    ended = measured_group(answer, Example("exam", 3), 4)
    sound, failed = group_records(ended, 4, SampleSplit.eval)
    assert (sound.status, sound.example, sound.reward) == (SampleStatus.measured, 3, 1.0)
    assert (sound.advantage, sound.tokens, sound.turns, sound.staleness) == (None, None, None, None)
    assert (failed.status, failed.cause, failed.reward) == (SampleStatus.errored, "RewardNotFinite", None)


@pytest.mark.parametrize(
    ("split", "environment", "file"),
    [
        (SampleSplit.train, None, "step-000004.jsonl.zst"),
        (SampleSplit.filtered, None, "step-000004.filtered.jsonl.zst"),
        (SampleSplit.eval, "exam", "step-000004.eval-exam.jsonl.zst"),
        (SampleSplit.val, "my exam", "step-000004.val-my-exam.3a02c13e.jsonl.zst"),
    ],
)
def test_each_use_has_an_object(split: SampleSplit, environment: str | None, file: str) -> None:
    groups = step_rollouts(4, groups=3).groups
    data, summary = encode_rollouts(StepRollouts(4, split, groups, environment, omitted=5), [])
    assert (summary.file, summary.size, summary.omitted) == (file, len(data), 5)
    assert (summary.step, summary.split, summary.environment) == (4, split, environment)
    assert summary.groups == [("reverse", 7, 0.5), ("reverse", 8, 0.5), ("reverse", 9, 0.5)]
    assert len(decode_index(data).groups) == 3
    assert len(scan(data).records) == 6


def sequence(*logprobs: float) -> TokenSequence:
    """Sampled tokens, each after one that was not."""
    values = array("f", [value for logprob in logprobs for value in (0.0, logprob)])
    spans = [SampledSpan(place, place + 1, 0) for place in range(1, len(values), 2)]
    return TokenSequence(array("i", range(len(values))), values, spans)


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
    assert logprob_summary([TokenSequence(array("i", [1]), array("f", [0.0]))]) is None
    assert logprob_summary([sequence(-math.inf, -1.0)]) is None
