"""Outcome of groups that no step trains on."""

import pytest
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.record import SampleStatus
from rlrun_orchestrator.data.ended_groups import EndedGroup, UntrainedGroups
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import GroupOutcome

from tests.support.ended_groups import group


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (GroupOutcome.usable, SampleStatus.stale),
        (GroupOutcome.filtered, SampleStatus.filtered),
        (GroupOutcome.errored, SampleStatus.errored),
    ],
)
def test_each_outcome_has_a_status(outcome: GroupOutcome, status: SampleStatus) -> None:
    assert EndedGroup.from_untrained(group(outcome=outcome)).status is status


def test_the_cause_is_the_filter_or_the_first_error() -> None:
    filtered, errored = group(outcome=GroupOutcome.filtered), group(outcome=GroupOutcome.errored)
    filtered.filter_reason = FilterReason.low_variance
    errored.rollouts[1].error = Problem(reason="RolloutFailed", message="it broke")
    assert EndedGroup.from_untrained(filtered).cause == "low_variance"
    assert EndedGroup.from_untrained(errored).cause == "RolloutFailed"


def test_groups_beyond_the_limit_are_counted_until_they_are_taken() -> None:
    groups = UntrainedGroups(2)
    for number in range(4):
        groups.add(group(number))
    groups.add(group(5, rollouts=0))
    found, omitted = groups.take()
    assert ([ended.group.id for ended in found], omitted) == (["g0", "g1"], 4)
    assert groups.take() == ([], 0)
