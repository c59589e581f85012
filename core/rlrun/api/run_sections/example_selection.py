"""Selection of examples: difficulty pools, filters and the mixture of environments."""

from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class Buffer(Spec):
    """Difficulty buffer, which selects examples by their mean reward."""

    online_difficulty_filtering: bool = False
    """Drops groups that give no training signal (all rewards 0, or all 1) and excludes easy and hard examples from later batches. Intended for rewards that are mostly 0 or 1, and for oversamplingFactor 2."""  # noqa: E501
    easy_threshold: float = Field(default=0.8, ge=0, le=1)
    """Mean reward at or above which an example is easy. In an environment with several agents, the agent whose mean reward is closest to the midpoint of easyThreshold and hardThreshold decides; of two equally close means, the higher one. An example is therefore neither easy nor hard while the mean of any agent lies between the two thresholds."""  # noqa: E501
    hard_threshold: float = Field(default=0.2, ge=0, le=1)
    """Mean reward at or below which an example is hard. For several agents, see easyThreshold."""
    easy_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the easy examples that are still sampled. If fewer normal examples remain than a batch has groups, excluded examples are sampled again, starting with those excluded longest ago."""  # noqa: E501
    hard_fraction: float = Field(default=0.0, ge=0, le=1)
    """Fraction of the hard examples that are still sampled. If fewer normal examples remain than a batch has groups, excluded examples are sampled again, starting with those excluded longest ago."""  # noqa: E501
    env_ratios: list[Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=list, max_length=16)
    """Sampling weights of the training environments, in the order of env. If empty, env[].weight applies, or equal
    weights if it is unset.
    """
    skip_verification: bool = False
    """Skips the reward functions and sets all rewards to 0, for algorithms that do not use rewards. Cannot be combined with onlineDifficultyFiltering, which needs rewards."""  # noqa: E501
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed for the selection of examples. Defaults to the run's seed."""

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
            "skipVerification cannot be combined with onlineDifficultyFiltering, which needs the rewards",
            lambda b: not (b.skip_verification and b.online_difficulty_filtering),
        ),
    )


class DifficultyFilter(Spec):
    """Drops groups whose rewards give too little training signal and counts them as filtered. In an environment with several agents, a group is dropped only if the filter applies to the rewards of every agent."""  # noqa: E501

    enabled: bool = True
    """Enables the filter."""
    min_reward_variance: float = Field(default=0.0, ge=0, le=1_000_000)
    """Minimum population variance of a group's rewards. 0 drops only groups whose rewards are all equal."""
    max_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Maximum mean reward of a group. No maximum if unset."""
    min_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Minimum mean reward of a group. No minimum if unset."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "minReward",
            "!has(self.minReward) || !has(self.maxReward) || self.minReward < self.maxReward",
            "minReward must be below maxReward",
            lambda f: f.min_reward is None or f.max_reward is None or f.min_reward < f.max_reward,
        ),
    )
