"""Pure functions that assess a baseline: the rewards and durations of rollouts with a run's initial model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from rlrun_cli.inputs.environment_checks import Remark

EASY = 0.8
"""Mean reward, as a fraction of the maximum, above which little is left to learn."""
MIN_SPREAD = 0.1
"""Minimum fraction of groups that must have differing rewards. Only such groups give a training signal."""
SLOW_SECONDS = 60.0
"""Median duration of a rollout in seconds, above which the environment limits the run's speed."""
CAUSE_WIDTH = 200


@dataclass(frozen=True)
class BaselineRollout:
    """Result of one rollout of the baseline."""

    group: int
    """Index of the rollout's example."""
    reward: float | None
    """Reward, or None if the rollout failed."""
    seconds: float
    error: str = ""


def summarize(rollouts: Sequence[BaselineRollout]) -> list[Remark]:
    """Return remarks that summarize the failures and the rewards."""
    failed = [rollout for rollout in rollouts if rollout.reward is None]
    groups = _groups(rollouts)
    rewards = [reward for values in groups for reward in values]
    remarks = []
    if failed:
        cause, _ = Counter(rollout.error or "no cause was reported" for rollout in failed).most_common(1)[0]
        text = f"{len(failed)} of {len(rollouts)} rollouts failed, most often: {cause[:CAUSE_WIDTH]}"
        remarks.append(Remark(text, "fix the cause first; a run does not train on failed rollouts"))
    if rewards:
        seconds = median(rollout.seconds for rollout in rollouts)
        text = (
            f"mean reward {fmean(rewards):.3g} over {len(rewards)} rollouts, from {min(rewards):.3g} to "
            f"{max(rewards):.3g}; rewards differ within {_differing(groups)} of {len(groups)} examples; a rollout "
            f"takes {seconds:.2g} s"
        )
        remarks.append(Remark(text))
    return remarks


def judge(rollouts: Sequence[BaselineRollout]) -> list[Remark]:
    """Return the summary, and remarks about obstacles to training on the environment."""
    remarks, groups = summarize(rollouts), _groups(rollouts)
    rewards = [reward for values in groups for reward in values]
    if not rewards:
        return remarks
    mean, seconds = fmean(rewards), median(rollout.seconds for rollout in rollouts)
    differing = _differing(groups)
    scale = max(1.0, *rewards)
    if max(rewards) <= 0:
        hint = "choose easier examples, fix the reward function, or start with sft_steps"
        remarks.append(Remark("0%: the model never gets a reward, so it cannot learn", hint))
    elif mean > EASY * scale:
        text = f"{mean / scale:.0%} of the maximum reward: the model already solves this"
        remarks.append(Remark(text, "choose harder examples, or a stricter reward"))
    if max(rewards) > 0 and differing < MIN_SPREAD * len(groups):
        text = f"no spread: in {len(groups) - differing} of {len(groups)} examples, all rollouts have the same reward"
        hint = "give partial rewards, or increase temperature or rollouts_per_example; equal rewards give no signal"
        remarks.append(Remark(text, hint))
    if seconds > SLOW_SECONDS:
        text = f"slow: half of the rollouts take more than {seconds:.0f} s"
        hint = "shorten turns and waits, or increase oversampling_factor and the environment's workers (compute_size)"
        remarks.append(Remark(text, hint))
    return remarks


def _differing(groups: Sequence[Sequence[float]]) -> int:
    """Return the number of examples whose rewards differ."""
    return sum(len(set(values)) > 1 for values in groups)


def _groups(rollouts: Sequence[BaselineRollout]) -> list[list[float]]:
    by_group: dict[int, list[float]] = {}
    for rollout in rollouts:
        if rollout.reward is not None:
            by_group.setdefault(rollout.group, []).append(rollout.reward)
    return list(by_group.values())
