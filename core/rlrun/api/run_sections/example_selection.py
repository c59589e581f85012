"""Selection of examples: difficulty pools, filters and the mixture of environments."""

from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class Buffer(Spec):
    """Difficulty buffer, which selects examples by their mean reward."""

    online_difficulty_filtering: bool = False
    """Drops groups without a training signal (all rewards 0, or all 1) and excludes easy and hard examples from later batches. Intended for rewards that are mostly 0 or 1, with oversamplingFactor 2."""  # noqa: E501
    easy_threshold: float = Field(default=0.8, ge=0, le=1)
    """Mean reward from which an example counts as easy. In an environment with several agents, the mean of the agent counts that is nearest to the middle between easyThreshold and hardThreshold: the example is easy or hard only if it is so for each agent, and easy if it is easy for one and hard for the others."""  # noqa: E501
    hard_threshold: float = Field(default=0.2, ge=0, le=1)
    """Mean reward up to which an example counts as hard. For several agents, see easyThreshold."""
    easy_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the easy examples that can still be sampled. If fewer normal examples are left than a batch has groups, those excluded longest ago return."""  # noqa: E501
    hard_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the hard examples that can still be sampled. If fewer normal examples are left than a batch has groups, those excluded longest ago return."""  # noqa: E501
    env_ratios: list[Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=list, max_length=16)
    """Sampling weights of the training environments, in the order of env. Empty: equal weights."""
    skip_verification: bool = False
    """Skips the reward functions and sets all rewards to 0, for algorithms that need none. Excludes onlineDifficultyFiltering, which needs rewards."""  # noqa: E501
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of the selection of examples. Unset: the run's seed."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "hardThreshold",
            "self.hardThreshold < self.easyThreshold",
            "hardThreshold must be below easyThreshold",
            lambda b: b.hard_threshold < b.easy_threshold,
        ),
        Rule(
            "skipVerification",
            "!(self.skipVerification && self.onlineDifficultyFiltering)",
            "skipVerification excludes onlineDifficultyFiltering: filtering needs the rewards",
            lambda b: not (b.skip_verification and b.online_difficulty_filtering),
        ),
    )


class DifficultyFilter(Spec):
    """Drops groups whose rewards give too little training signal and counts them as filtered. The rewards of each agent of an environment with several are judged by themselves: a group is dropped if those of every agent are."""  # noqa: E501

    enabled: bool = True
    """Enables the filter."""
    min_reward_variance: float = Field(default=0.0, ge=0, le=1_000_000)
    """Minimum population variance of a group's rewards. 0 drops only groups whose rewards are all equal."""
    max_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Maximum mean reward of a group. Unset: no maximum."""
    min_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Minimum mean reward of a group. Unset: no minimum."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "minReward",
            "!has(self.minReward) || !has(self.maxReward) || self.minReward < self.maxReward",
            "minReward must be below maxReward",
            lambda f: f.min_reward is None or f.max_reward is None or f.min_reward < f.max_reward,
        ),
    )
