"""Which examples are drawn next: difficulty pools and the mixture of environments."""

from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class Buffer(Spec):
    """The difficulty buffer."""

    online_difficulty_filtering: bool = False
    """Drop groups that teach nothing (all rewards 0, or all 1), and keep easy and hard examples out of later batches. Meant for rewards that are mostly 0 or 1, together with oversamplingFactor 2."""  # noqa: E501
    easy_threshold: float = Field(default=0.8, ge=0, le=1)
    """An example whose mean reward is at least this is easy."""
    hard_threshold: float = Field(default=0.2, ge=0, le=1)
    """An example whose mean reward is at most this is hard."""
    easy_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the easy examples that stay in the draw."""
    hard_fraction: float = Field(default=0.0, ge=0, le=1)
    """Share of the hard examples that stay in the draw."""
    env_ratios: list[Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=list, max_length=16)
    """Weights of the training environments in the draw, one per entry of env and in its order; equal when absent."""
    skip_verification: bool = False
    """Do not ask the environments for rewards: all are 0. For algorithms that need none; cannot go with onlineDifficultyFiltering, which does."""  # noqa: E501
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of the draw; the run's seed when absent."""

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
    """Groups whose rewards teach too little are dropped and counted as filtered."""

    enabled: bool = True
    """Whether groups are dropped."""
    min_reward_variance: float = Field(default=0.0, ge=0, le=1_000_000)
    """Groups whose rewards vary less (population variance) are dropped; with 0 those whose rewards are all equal."""
    max_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Groups with a higher mean reward are dropped; none when absent."""
    min_reward: float | None = Field(default=None, ge=-1_000_000, le=1_000_000)
    """Groups with a lower mean reward are dropped; none when absent."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "minReward",
            "!has(self.minReward) || !has(self.maxReward) || self.minReward < self.maxReward",
            "minReward must be below maxReward",
            lambda f: f.min_reward is None or f.max_reward is None or f.min_reward < f.max_reward,
        ),
    )
