"""Sampling parameters for training rollouts, and conversion of rollouts to training sequences."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar

from pydantic import Field

from rlrun.api.base.rules import Rule, Spec


class ReasoningEffort(StrEnum):
    """Amount of reasoning before the answer."""

    low = "low"
    medium = "medium"
    high = "high"


class Sampling(Spec):
    """Sampling parameters for training rollouts."""

    max_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Maximum number of completion tokens per turn. A turn gets fewer tokens if its prompt leaves less of the model's seqLen. Must be below seqLen. Defaults to defaultMaxTokens of the RLModel."""  # noqa: E501
    temperature: float = Field(default=1.0, gt=0, le=10)
    """Sampling temperature, applied in the inference engine and in the trainer. Must be above 0: with greedy sampling all rollouts of an example are equal and give no training signal."""  # noqa: E501
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Restricts sampling to the smallest set of tokens with at least this total probability."""
    min_p: float | None = Field(default=None, ge=0, lt=1)
    """Restricts sampling to tokens with at least this share of the top token's probability. Applied before topP."""
    stop: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(default_factory=list, max_length=16)
    """Strings that end a completion."""
    min_tokens: int | None = Field(default=None, ge=0, le=1_048_576)
    """Minimum number of completion tokens: the end-of-text token is not sampled earlier."""
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    """Repetition penalty. Values above 1 make tokens that already occurred less likely."""
    seed: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Seed for token sampling. Defaults to the run's seed if maxAsyncLevel is 0, otherwise to a random seed for each
    rollout.
    """

    enable_thinking: bool | None = None
    """Value of enable_thinking in the model's chat template, for models whose template can switch reasoning on and off (Qwen3.5, Nemotron). Overrides the value in an environment's requests and applies to demonstrations and evaluations too. Defaults to the environment's value, or else the template's default. Has no effect on templates that do not read it."""  # noqa: E501
    reasoning_effort: ReasoningEffort | None = Field(default=None, strict=False)
    """Reasoning effort in the model's chat template (gpt-oss). Overrides the value in an environment's requests and applies to demonstrations and evaluations too. Defaults to the environment's value, or else the template's default. Has no effect on templates that do not read it."""  # noqa: E501

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template that the run sets, for rollouts, evaluations and demonstrations."""
        return self.model_dump(mode="json", include={"enable_thinking", "reasoning_effort"}, exclude_none=True)

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "reasoningEffort",
            "!has(self.enableThinking) || !has(self.reasoningEffort)",
            "reasoningEffort and enableThinking are mutually exclusive: use the one that the model's chat template "
            "reads",
            lambda s: s.enable_thinking is None or s.reasoning_effort is None,
        ),
        Rule(
            "minTokens",
            "!has(self.minTokens) || !has(self.maxTokens) || self.minTokens <= self.maxTokens",
            "minTokens must not exceed maxTokens",
            lambda s: s.min_tokens is None or s.max_tokens is None or s.min_tokens <= s.max_tokens,
        ),
    )


class SamplingOverrides(Spec):
    """Sampling parameters for evaluations. Unset parameters default to the run's sampling section."""

    max_tokens: int | None = Field(default=None, ge=1, le=1_048_576)
    """Maximum number of completion tokens per turn."""
    temperature: float | None = Field(default=None, ge=0, le=10)
    """Sampling temperature. At 0, the most likely token is always sampled."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Restricts sampling to the smallest set of tokens with at least this total probability."""
    min_p: float | None = Field(default=None, ge=0, lt=1)
    """Restricts sampling to tokens with at least this share of the top token's probability. Applied before topP."""
    enable_thinking: bool | None = None
    """Value of enable_thinking in the model's chat template."""
    reasoning_effort: ReasoningEffort | None = Field(default=None, strict=False)
    """Reasoning effort in the model's chat template."""

    def apply_to(self, sampling: Sampling) -> Sampling:
        """Return a copy of `sampling` in which the parameters set in this object replace those of `sampling`."""
        return sampling.model_copy(update={name: value for name, value in self if value is not None})


class TrainSampling(SamplingOverrides):
    """Sampling parameters for a training environment. Unset parameters default to the run's sampling section."""

    temperature: float | None = Field(default=None, gt=0, le=10)
    """Sampling temperature, applied in the inference engine and in the trainer."""


class TrajectoryStrategy(StrEnum):
    """Conversion of a multi-turn rollout to training sequences."""

    interleaved = "interleaved"
    branching = "branching"
