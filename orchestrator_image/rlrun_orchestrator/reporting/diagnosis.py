"""Diagnosis of training problems from the metrics, with advice.

Each rule considers only the newest steps, so that a warning disappears with its cause. The thresholds are deliberately
extreme, because users ignore a warning that was wrong once.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

from rlrun.constants import Hint, TrainingIssue
from rlrun.protocol.problem import Problem

HISTORY = 60
"""Maximum number of newest steps that the rules consider."""

FLAT_STEPS = 10
"""Number of consecutive steps in which the mean reward must be about 0, or about 1, before this is reported. A single
batch may have such a mean by chance.
"""
FLAT_MARGIN = 0.01
"""Maximum distance of the mean reward from 0 or 1. One success in a hundred rollouts is enough to learn from."""

DIVERSITY_STEPS = 5
ZERO_VARIANCE_SHARE = 0.95
"""Fraction of groups with equal rewards, and therefore advantages of 0, from which a warning is shown. Fewer than one
group in twenty then gives a gradient, which is less than one group in a batch of 16.
"""
FILTERED_SHARE = 0.8
"""Fraction of generated rollouts that are filtered, from which a warning is shown. At this fraction, a step generates
five times the rollouts that it uses.
"""

COLLAPSE_STEPS = 5
COLLAPSE_FROM = 0.2
"""Minimum best reward for which a collapse is reported."""
COLLAPSE_TO = 0.5
"""Fraction of the best mean reward at which the reward counts as collapsed. Noise between batches of at least 64
rollouts does not halve a mean.
"""

MISMATCH_STEPS = 3
MISMATCH_KL = 0.1
"""Minimum reported mismatch in nats per token. Two matching implementations stay below 0.001, and a policy two steps
old below 0.01. At 0.1, ratios of 1.5 are common and the gradient belongs to a different policy.
"""
MASKED_SHARE = 0.3
"""Fraction of tokens left out because of their importance ratio, from which a warning is shown. At this fraction, a
third of the batch is lost.
"""

ENTROPY_STEPS = 5
ENTROPY_SHARE = 0.1
"""Fraction of the entropy at the beginning of the considered steps below which the entropy counts as collapsed."""
ENTROPY_NATS = 0.05
"""Entropy in nats per token below which it can count as collapsed. At this entropy, about one token in a hundred is
still uncertain.
"""
ENTROPY_GOOD_REWARD = 0.9
"""Reward above which a low entropy is expected, because the task is solved."""

STALL_STEPS = 3
STALL_FACTOR = 4.0
"""Minimum ratio of a stalled step's duration to the median of the earlier steps. Longer responses slow a run gradually;
this rule detects other causes.
"""
STALL_BEFORE = 10
"""Minimum number of earlier steps for the median."""
STALL_SECONDS = 10.0
"""Step duration in seconds below which stalls are never reported."""

LOST_STEPS = 10
LOST_SHARE = 0.05
"""Fraction of rollouts dropped because of their age above which a warning is shown. The longest rollouts are dropped
first, so examples with long rollouts then get noticeably less training.
"""

BOUND_STEPS = 10
BOUND_SHARE = 0.7
"""Fraction of the steps' time spent waiting for one side from which that side is reported as the bottleneck."""

Metrics = Mapping[str, float]
Rule = Callable[[Sequence[Metrics]], Problem | None]


def diagnose(history: Sequence[Metrics], *, rewards: bool = True) -> list[Problem]:
    """Return the current problems in the order of RULES or, if there are none, the hint about a throughput bottleneck,
    if any. `history` has the metrics of the newest steps, oldest first.

    `rewards` is False if the algorithm does not learn from rewards, so that the rules about rewards do not apply.
    """
    rules = RULES if rewards else [rule for rule in RULES if rule not in REWARD_RULES]
    problems = [problem for rule in rules if (problem := rule(history)) is not None]
    if not problems:
        # Show no throughput hint while a problem is reported.
        return [hint for hint in (find_bottleneck(history),) if hint is not None]
    # Flat rewards have no diversity either, so report them only once.
    if any(p.reason in (TrainingIssue.reward_flat_at_zero, TrainingIssue.reward_flat_at_one) for p in problems):
        problems = [p for p in problems if p.reason != TrainingIssue.no_reward_diversity]
    return problems


def flat_at_zero(history: Sequence[Metrics]) -> Problem | None:
    """Detect that no rollout gets a reward."""
    if not all(abs(value) <= FLAT_MARGIN for value in _newest(history, "reward/mean", FLAT_STEPS)):
        return None
    return _problem(
        TrainingIssue.reward_flat_at_zero,
        f"the mean reward has been 0 for {FLAT_STEPS} steps, so there is nothing to learn from. Read some rollouts of "
        "the run. If the task is too hard for this model, use easier examples or a stronger model, or start with "
        "algorithm.sftSteps. Otherwise, check that the reward function expects the format that the prompt asks for, "
        "and that the tools work as the prompt says",
    )


def flat_at_one(history: Sequence[Metrics]) -> Problem | None:
    """Detect that every rollout gets the full reward."""
    if not all(value >= 1.0 - FLAT_MARGIN for value in _newest(history, "reward/mean", FLAT_STEPS)):
        return None
    return _problem(
        TrainingIssue.reward_flat_at_one,
        f"the mean reward has been 1 for {FLAT_STEPS} steps: the task is solved, or the reward function is too "
        "lenient. Read some rollouts; if they are good, stop the run or use harder examples",
    )


def no_diversity(history: Sequence[Metrics]) -> Problem | None:
    """Detect that all rollouts of an example get the same reward."""
    shares = _newest(history, "batch/zero_variance", DIVERSITY_STEPS)
    if not all(share >= ZERO_VARIANCE_SHARE for share in shares):
        return None
    return _problem(
        TrainingIssue.no_reward_diversity,
        f"in the last {DIVERSITY_STEPS} steps, nearly every group had rollouts with equal rewards, and such groups "
        "give no gradient. Increase rolloutsPerExample or sampling.temperature, add examples of different difficulty, "
        "or reward partial success. With rewards of 0 and 1, also set buffer.onlineDifficultyFiltering and an "
        "oversamplingFactor above 1",
    )


def most_filtered(history: Sequence[Metrics]) -> Problem | None:
    """Detect that most generated rollouts are filtered."""
    filtered = _newest(history, "filtered_rollouts", DIVERSITY_STEPS)
    used = _newest(history, "batch/effective_batch_size", DIVERSITY_STEPS)
    total = math.fsum(filtered) + math.fsum(used) + _left_out(history, DIVERSITY_STEPS)
    if not filtered or any(math.isnan(v) for v in [*filtered, *used]) or total <= 0:
        return None
    if math.fsum(filtered) / total < FILTERED_SHARE:
        return None
    return _problem(
        TrainingIssue.most_groups_filtered,
        f"in the last {DIVERSITY_STEPS} steps, {100 * math.fsum(filtered) / total:.0f} % of the rollouts were filtered "
        "out because of their rewards. Choose examples whose difficulty suits the policy, or relax difficultyFilter "
        "and the thresholds of buffer",
    )


def reward_collapsed(history: Sequence[Metrics]) -> Problem | None:
    """Detect that the mean reward has fallen far below its best value."""
    rewards = [m["reward/mean"] for m in history if "reward/mean" in m]
    if len(rewards) < 2 * COLLAPSE_STEPS:
        return None
    means = [statistics.fmean(rewards[i : i + COLLAPSE_STEPS]) for i in range(len(rewards) - COLLAPSE_STEPS + 1)]
    best, newest = max(means), means[-1]
    if best < COLLAPSE_FROM or newest > COLLAPSE_TO * best:
        return None
    return _problem(
        TrainingIssue.reward_collapsed,
        f"the mean reward fell from {best:.3f} to {newest:.3f}. Return to the best checkpoint (checkpointId) with a "
        "lower learningRate, more rolloutsPerExample, a smaller maxOffPolicySteps, or a klPenalty",
    )


def mismatch(history: Sequence[Metrics]) -> Problem | None:
    """Detect that trainer and engine compute different probabilities for the same tokens."""
    newest = _newest(history, "mismatch_kl/all/mean", MISMATCH_STEPS)
    if not all(value >= MISMATCH_KL for value in newest):
        return None
    return _problem(
        TrainingIssue.policy_mismatch,
        f"the probabilities of trainer and engine have differed for {MISMATCH_STEPS} steps, in the newest step by "
        f"{newest[-1]:.2g} nats per token (mismatch_kl/all/mean). Lower learningRate and maxOffPolicySteps. If the "
        "difference persists with maxAsyncLevel 0, check inference.extraArgs for options that change the engine's "
        "numerics",
    )


def tokens_masked(history: Sequence[Metrics]) -> Problem | None:
    """Detect that a large share of the batch's tokens is excluded from the loss."""
    newest = _newest(history, "is_masked/mean", MISMATCH_STEPS)
    if not all(value >= MASKED_SHARE for value in newest):
        return None
    return _problem(
        TrainingIssue.tokens_masked,
        f"{100 * newest[-1]:.0f} % of the tokens are excluded from the loss, because their importance ratio is out of "
        "bounds. Lower maxOffPolicySteps and learningRate, or widen loss.ratioLow and loss.ratioHigh",
    )


def entropy(history: Sequence[Metrics]) -> Problem | None:
    """Detect that the policy has stopped exploring."""
    values = [m["entropy/all/mean"] for m in history if "entropy/all/mean" in m]
    if len(values) < 2 * ENTROPY_STEPS:
        return None
    first, newest = statistics.median(values[:ENTROPY_STEPS]), values[-ENTROPY_STEPS:]
    low = min(ENTROPY_NATS, ENTROPY_SHARE * first)
    rewards = _newest(history, "reward/mean", ENTROPY_STEPS)
    if not all(value < low for value in newest) or statistics.fmean(rewards or [0.0]) >= ENTROPY_GOOD_REWARD:
        return None
    return _problem(
        TrainingIssue.entropy_collapsed,
        f"the policy's entropy fell from {first:.3g} to {newest[-1]:.3g} nats per token although the reward is not "
        "high: the policy has stopped exploring. Return to an earlier checkpoint with a lower learningRate, a higher "
        "sampling.temperature, or a klPenalty",
    )


def steps_stalled(history: Sequence[Metrics]) -> Problem | None:
    """Detect that the newest steps take much longer than earlier ones."""
    seconds = [m["time/step"] for m in history if "time/step" in m]
    before, newest = seconds[:-STALL_STEPS], seconds[-STALL_STEPS:]
    if len(before) < STALL_BEFORE:
        return None
    usual = statistics.median(before)
    if not all(value > max(STALL_SECONDS, STALL_FACTOR * usual) for value in newest):
        return None
    parts = {
        "rollouts (time/generate_completions): check the environment and inference pods and completion_len": (
            "time/generate_completions"
        ),
        "the trainer (time/trainer): check its pod": "time/trainer",
    }
    where = max(parts, key=lambda part: history[-1].get(parts[part], 0.0))
    return _problem(
        TrainingIssue.throughput_stalled,
        f"the last {STALL_STEPS} steps took {statistics.fmean(newest):.0f} s each, compared with {usual:.1f} s before. "
        f"Most of that time was spent on {where}",
    )


def long_rollouts_lost(history: Sequence[Metrics]) -> Problem | None:
    """Detect that long rollouts are dropped because their policy versions are too old."""
    stale = _newest(history, "batch/stale_rollouts", LOST_STEPS)
    trained = _newest(history, "batch/effective_batch_size", LOST_STEPS)
    filtered = math.fsum(metrics.get("filtered_rollouts", 0.0) for metrics in history[-LOST_STEPS:])
    total = math.fsum(stale) + math.fsum(trained) + filtered + _left_out(history, LOST_STEPS)
    if math.isnan(total) or total <= 0 or math.fsum(stale) / total <= LOST_SHARE:
        return None
    return _problem(
        TrainingIssue.long_rollouts_lost,
        f"in the last {LOST_STEPS} steps, {100 * math.fsum(stale) / total:.0f} % of the rollouts were dropped, because "
        "they took longer than maxOffPolicySteps steps. The policy learns less from examples with long rollouts. "
        "Increase maxOffPolicySteps, or lower oversamplingFactor or sampling.maxTokens",
    )


def find_bottleneck(history: Sequence[Metrics]) -> Problem | None:
    """Return a hint if one side, rollouts or trainer, waits for the other most of the time, or else None."""
    newest = history[-BOUND_STEPS:]
    total = math.fsum(m.get("time/step", 0.0) for m in newest)
    if len(newest) < BOUND_STEPS or total <= 0:
        return None
    waited = math.fsum(m.get("time/wait_for_policy", 0.0) for m in newest)
    collected = math.fsum(m.get("time/generate_completions", 0.0) for m in newest) - waited
    trained = math.fsum(m.get("time/trainer", 0.0) for m in newest) + waited
    if collected / total >= BOUND_SHARE:
        share = 100 * collected / total
        return Problem(
            reason=Hint.rollout_bound,
            message=f"{share:.0f} % of the time is spent waiting for rollouts: more inference replicas, a larger "
            "infrastructure.computeSize, or a higher oversamplingFactor and maxAsyncLevel would make the run faster",
        )
    if trained / total >= BOUND_SHARE:
        return Problem(
            reason=Hint.trainer_bound,
            message=f"{100 * trained / total:.0f} % of the time is spent waiting for the trainer: a faster trainer or "
            "a larger trainer.microBatchTokens would make the run faster; more inference would not",
        )
    return None


REWARD_RULES: tuple[Rule, ...] = (flat_at_zero, flat_at_one, no_diversity, most_filtered, reward_collapsed)
RULES: tuple[Rule, ...] = (*REWARD_RULES, mismatch, tokens_masked, entropy, steps_stalled, long_rollouts_lost)


def _newest(history: Sequence[Metrics], name: str, steps: int) -> list[float]:
    """Return the metric in each of the newest steps, with NaN where it is missing, or a single NaN if there are too few
    steps.
    """
    values = [metrics.get(name, math.nan) for metrics in history[-steps:]]
    return values if len(values) == steps else [math.nan]


def _left_out(history: Sequence[Metrics], steps: int) -> float:
    """Return the number of rollouts that the newest steps' batches left out because their advantage was 0."""
    return math.fsum(metrics.get("batch/zero_advantage_rollouts", 0.0) for metrics in history[-steps:])


def _problem(reason: TrainingIssue, message: str) -> Problem:
    return Problem(reason=reason, message=f"{message}.")
