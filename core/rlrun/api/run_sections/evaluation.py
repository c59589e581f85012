"""Evaluation on environments of their own, and validation on the training environments, while a run goes on."""

from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec
from rlrun.api.run_sections.environments import EvalEnvironment, unique_names


class Evaluation(Spec):
    """Online evaluation: what is run every `interval` steps beside training."""

    interval: int = Field(default=100, ge=1, le=1_000_000)
    """Evaluate every N steps; the final policy is always evaluated."""
    num_examples: int = Field(default=-1, ge=-1, le=1_000_000)
    """Examples of each environment, -1 for all; an environment may override it."""
    rollouts_per_example: int = Field(default=1, ge=1, le=1024)
    """Rollouts of each example; an environment may override it."""
    eval_base_model: bool = True
    """Whether the policy is also evaluated before the first step."""
    env: list[EvalEnvironment] = Field(min_length=1, max_length=16)
    """The environments to evaluate on."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "numExamples",
            "self.numExamples != 0",
            "numExamples must be -1 (all) or at least 1",
            lambda e: e.num_examples != 0,
        ),
        unique_names("env"),
    )


class Validation(Spec):
    """Rewards on held-out examples of the training environments: their eval_dataset, or their dataset without one."""

    num_examples: int = Field(default=64, ge=1, le=1_000_000)
    """Examples per validation."""
    rollouts_per_example: int = Field(default=1, ge=1, le=1024)
    """Rollouts of each example."""
    interval: int = Field(default=5, ge=1, le=1_000_000)
    """Validate every N steps."""
