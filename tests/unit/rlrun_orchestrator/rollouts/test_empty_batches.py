"""When a run without usable groups waits, warns and ends."""

import math
import random

import pytest
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun_orchestrator.config import OrchestratorSettings
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import GroupState
from rlrun_orchestrator.rollouts.empty_batches import EMPTY_BATCHES, EmptyBatchMonitor

from tests.support.ended_groups import group

STEPS = 1000
SEEDS = 200
SIZES = [4, 16, 128]
"""Groups of a batch: 32 rollouts with 8 per example, the default of 128, and 1,024."""


FILTERED_GROUPS = OrchestratorSettings().most_filtered_groups


def make_monitor(size: int, first_pause: float = 1.0) -> EmptyBatchMonitor:
    return EmptyBatchMonitor(size, first_pause, FILTERED_GROUPS)


def fail(monitor: EmptyBatchMonitor, groups: int, now: float = 0.0) -> None:
    for _ in range(groups):
        monitor.record_group(group(state=GroupState.errored), now)


def drop(monitor: EmptyBatchMonitor, groups: int, reason: FilterReason = FilterReason.all_zero) -> None:
    filtered = group(state=GroupState.filtered)
    filtered.filter_reason = reason
    for _ in range(groups):
        monitor.record_group(filtered, 0.0)


def longest_streak(order: random.Random, share: float, usable: int) -> int:
    """Return the longest sequence of unusable groups before each of `usable` usable ones: the largest of that many
    geometric lengths, drawn from the distribution of the largest.
    """
    return int(math.log(-math.expm1(math.log(order.random()) / usable)) / math.log(1.0 - share))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("share", [0.02, 0.05, 0.07])
def test_a_hard_task_that_has_usable_groups_is_never_ended(share: float, size: int) -> None:
    """A usable group resets the monitor, so the longest sequence between two of them decides."""
    for seed in range(SEEDS):
        monitor = make_monitor(size)
        streak = longest_streak(random.Random(f"{share}/{size}/{seed}"), share, STEPS * size)
        for _ in range(2):
            drop(monitor, streak)
            assert monitor.failure is None, f"seed {seed}: ended after {streak} filtered groups in a row"
            monitor.record_group(group(state=GroupState.ready), 0.0)
            assert monitor.problem is None


@pytest.mark.parametrize("size", SIZES)
def test_a_task_where_every_group_is_filtered_is_ended(size: int) -> None:
    monitor = make_monitor(size)
    drop(monitor, FILTERED_GROUPS - 1)
    assert monitor.failure is None
    drop(monitor, 1)
    assert monitor.failure is not None
    assert monitor.failure.exit_code == ExitCode.CONFIGURATION
    assert monitor.failure.problem.reason == Reason.EMPTY_BATCHES
    assert "all_zero" in monitor.failure.problem.message
    assert monitor.may_dispatch(0.0), "filtered groups cost no pause"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("errors", [2, 1], ids=["all errors", "half errors"])
def test_ten_batches_of_errors_end_the_run_with_the_last_one(size: int, errors: int) -> None:
    monitor = make_monitor(size)
    monitor.last_error = Problem(reason="RewardFunctionError", message="KeyError: 'answer'")
    for _ in range(EMPTY_BATCHES * size // 2):
        assert monitor.failure is None
        fail(monitor, errors)
        drop(monitor, 2 - errors)
    assert monitor.failure is not None
    assert "KeyError" in monitor.failure.problem.message
    assert f"({EMPTY_BATCHES} batches)" in monitor.failure.problem.message


def test_a_usable_group_begins_the_count_anew() -> None:
    monitor = make_monitor(4)
    for _ in range(3):
        fail(monitor, EMPTY_BATCHES * 4 - 1)
        monitor.record_group(group(state=GroupState.ready), 0.0)
        drop(monitor, FILTERED_GROUPS - 1)
        monitor.record_group(group(state=GroupState.ready), 0.0)
        assert (monitor.failure, monitor.problem) == (None, None)


def test_few_errors_among_filtered_groups_do_not_end_the_run_sooner() -> None:
    monitor = make_monitor(4)
    for _ in range(30):
        drop(monitor, 3)
        fail(monitor, 1)
    assert monitor.failure is None


def test_each_batch_of_errors_is_reported_and_delays_the_next_groups() -> None:
    monitor = make_monitor(4, first_pause=30.0)
    fail(monitor, 3)
    assert monitor.problem is None
    assert monitor.may_dispatch(0.0)
    fail(monitor, 1)
    assert monitor.problem is not None
    assert (monitor.may_dispatch(29.0), monitor.may_dispatch(30.0)) == (False, True)
    fail(monitor, 4, now=30.0)
    assert (monitor.may_dispatch(89.0), monitor.may_dispatch(90.0)) == (False, True)
    fail(monitor, 4, now=90.0)
    assert (monitor.may_dispatch(149.0), monitor.may_dispatch(150.0)) == (False, True), "ten batches take minutes"
    monitor.record_group(group(state=GroupState.ready), 91.0)
    assert monitor.may_dispatch(91.0)


def test_groups_with_equal_rewards_are_reported_as_such() -> None:
    monitor, left_out = make_monitor(4), group(state=GroupState.ready, rollouts=1)
    left_out.rollouts[0].left_out = True
    for _ in range(4):
        monitor.record_group(left_out, 0.0)
    assert monitor.problem is not None
    assert "within every group, all rewards are equal" in monitor.problem.message
    drop(monitor, 4, FilterReason.high_reward)
    assert "(high_reward, zero_advantage)" in monitor.problem.message


def test_a_batch_of_filtered_groups_is_reported_with_the_rule() -> None:
    monitor = make_monitor(4, first_pause=30.0)
    drop(monitor, 4, FilterReason.high_reward)
    assert monitor.problem is not None
    assert "high_reward" in monitor.problem.message
    assert monitor.may_dispatch(0.0)


@pytest.mark.parametrize("errors", [0, 1])
def test_an_old_error_is_no_cause_of_groups_that_are_filtered(errors: int) -> None:
    monitor = make_monitor(4)
    monitor.last_error = Problem(reason="RolloutTimeout", message="it took 600 s")
    fail(monitor, errors)
    drop(monitor, FILTERED_GROUPS, FilterReason.zero_advantage)
    assert monitor.failure is not None
    message = monitor.failure.problem.message
    assert "are equal (zero_advantage)" in message
    assert ("it took 600 s" in message) == bool(errors)
