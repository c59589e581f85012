"""Evaluation on separate environments and validation on the training environments, during a run."""

from typing import ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec
from rlrun.api.run_sections.environments import EvalEnvironment, unique_names
from rlrun.api.run_sections.rollouts import SamplingOverrides


class Evaluation(Spec):
    """Evaluation on separate environments during training."""

    interval: int = Field(default=100, ge=1, le=1_000_000)
    """Number of steps between evaluations. The final policy is always evaluated."""
    num_examples: int = Field(default=-1, ge=-1, le=1_000_000)
    """Number of examples per environment, -1 for all. An environment can override it."""
    rollouts_per_example: int = Field(default=1, ge=1, le=1024)
    """Number of rollouts per example. An environment can override it."""
    sampling: SamplingOverrides | None = None
    """Sampling parameters for evaluations. Unset parameters default to the run's sampling section. An environment can override them."""  # noqa: E501
    eval_base_model: bool = True
    """Evaluates the base model before the first step."""
    env: list[EvalEnvironment] = Field(min_length=1, max_length=16)
    """Environments to evaluate on."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "numExamples",
            "self.numExamples != 0",
            "numExamples must be -1 (all) or at least 1",
            lambda e: e.num_examples != 0,
        ),
        Rule(
            "env",
            "self.env.all(e, !has(e.maxConcurrent) || e.maxConcurrent >= "
            "(has(e.rolloutsPerExample) ? e.rolloutsPerExample : self.rolloutsPerExample))",
            "env[].maxConcurrent must be at least rolloutsPerExample, because all rollouts of an example run "
            "concurrently",
            lambda s: all(
                e.max_concurrent is None or e.max_concurrent >= (e.rollouts_per_example or s.rollouts_per_example)
                for e in s.env
            ),
        ),
        unique_names("env"),
    )


class Validation(Spec):
    """Validation on the training environments, with their eval_dataset, or with their dataset if they have no
    eval_dataset.
    """

    num_examples: int = Field(default=64, ge=1, le=1_000_000)
    """Number of examples per validation, divided among the training environments."""
    rollouts_per_example: int = Field(default=1, ge=1, le=1024)
    """Number of rollouts per example."""
    interval: int = Field(default=5, ge=1, le=1_000_000)
    """Number of steps between validations."""
