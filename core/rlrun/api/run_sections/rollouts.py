"""How the policy draws tokens during training."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class Sampling(Spec):
    """Sampling parameters of every training rollout."""

    max_tokens: int = Field(ge=1, le=1_048_576)
    """Most tokens the model may answer with per turn; must be below the model's seqLen, which also holds the prompt."""
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Divides the logits before sampling, in the engine and in the trainer alike. Zero is refused: greedy rollouts of one example are all equal, so nothing can be learned from them."""  # noqa: E501
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Sample from the smallest set of tokens with this probability."""
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list, max_length=16)
    """Texts at which an answer ends."""
    min_tokens: int | None = Field(default=None, ge=0, le=1_048_576)
    """Fewest tokens of an answer: the end of text is not drawn before."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    """Above 1 makes tokens that were already used less likely."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed of the sampling; the run's seed when absent and maxAsyncLevel is 0, else every rollout is drawn anew."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "minTokens",
            "!has(self.minTokens) || self.minTokens <= self.maxTokens",
            "minTokens must not exceed maxTokens",
            lambda s: s.min_tokens is None or s.min_tokens <= s.max_tokens,
        ),
    )


class TrajectoryStrategy(StrEnum):
    """How the turns of a rollout become training sequences."""

    interleaved = "interleaved"
    branching = "branching"
