"""Which examples are drawn next: difficulty pools and the mixture of environments."""

from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.schema.rules import Rule, Spec


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
    """Accepted for the hosted schema; this version always asks the environment for rewards. Cannot go with onlineDifficultyFiltering, which needs them."""  # noqa: E501
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
