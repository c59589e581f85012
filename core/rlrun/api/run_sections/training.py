"""What a step optimises: the algorithm, its loss, and what keeps the policy near where it started."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import LIST_TYPE, Rule, Spec


class AlgorithmName(StrEnum):
    """Where the learning signal comes from."""

    grpo = "grpo"
    distillation = "distillation"
    sft = "sft"


class RatioType(StrEnum):
    """What one importance ratio stands for."""

    token = "token"
    sequence = "sequence"


class RatioLimit(StrEnum):
    """What happens to a ratio outside of its bounds."""

    mask = "mask"
    clip = "clip"
    ppo = "ppo"


class Teacher(Spec):
    """A model that scores the policy's own tokens: an OpenAI endpoint with vLLM's prompt_logprobs."""

    url: str = Field(min_length=8, max_length=1024, pattern=r"^https?://[^\s]+$")
    """Base URL of the OpenAI API, /v1 included, as the cluster reaches it."""
    model: str = Field(min_length=1, max_length=256)
    """Name of the model there; it must have the tokenizer of the model that is trained."""


class Algorithm(Spec):
    """Where the learning signal comes from."""

    name: AlgorithmName = Field(default=AlgorithmName.grpo, strict=False)
    """grpo learns from the environments' rewards, distillation from a teacher's opinion of the policy's own rollouts (on-policy), sft from the environments' own answers."""  # noqa: E501
    sft_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Steps of supervised warm-up on the environments' own answers before the algorithm begins."""
    teacher: Teacher | None = None
    """The teacher of distillation."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "teacher",
            "has(self.teacher) == (self.name == 'distillation')",
            "teacher is needed by the algorithm distillation, and by no other",
            lambda a: (a.teacher is not None) == (a.name is AlgorithmName.distillation),
        ),
    )


class KlPenalty(Spec):
    """A price on moving away from the model that training starts from."""

    enabled: bool = True
    """Whether the penalty counts."""
    beta: float = Field(default=0.1, gt=0, le=100)
    """Weight of the divergence in the loss; the first one where targetKl is given."""
    target_kl: float | None = Field(default=None, gt=0, le=100)
    """Divergence in nats per token to be kept: beta rises above it and falls below it. beta stays as it is when absent."""  # noqa: E501


class Loss(Spec):
    """How the importance ratio between trainer and engine enters the policy gradient."""

    ratio_type: RatioType = Field(default=RatioType.token, strict=False)
    """token weighs every token by its own ratio, sequence every token by that of its whole sequence."""
    ratio_limit: RatioLimit = Field(default=RatioLimit.mask, strict=False)
    """mask leaves out what lies outside of ratioLow and ratioHigh, clip cuts the ratio at these bounds, ppo takes the pessimistic one of the clipped and the unclipped objective."""  # noqa: E501
    ratio_low: float = Field(default=0.125, ge=0, le=1)
    """Lower bound of the ratio."""
    ratio_high: float = Field(default=8.0, ge=1, le=1000)
    """Upper bound of the ratio."""
    sequence_mean_low: float = Field(default=0.1, ge=0, le=1)
    """Sequences whose geometric mean ratio is lower are left out."""
    sequence_mean_high: float = Field(default=10.0, ge=1, le=1000)
    """Sequences whose geometric mean ratio is higher are left out."""


class RunLora(Spec):
    """Shape of this run's adapter; what is absent is as the RLModel says."""

    enabled: bool = True
    """false trains all weights instead of an adapter, where the RLModel allows it."""
    rank: int | None = Field(default=None, ge=1, le=512)
    """Rank of the adapter, at most the RLModel's."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout on the adapter's input while training. Anything but 0 makes trainer and engine disagree a little."""
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"}
    )
    """Linear layers that get an adapter, among those of the RLModel; all of these when empty."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "enabled",
            "self.enabled || (!has(self.rank) && !has(self.dropout) && self.targetModules.size() == 0)",
            "rank, dropout and targetModules describe an adapter: remove them, or set enabled to true",
            lambda s: s.enabled or (s.rank is None and s.dropout is None and not s.target_modules),
        ),
    )
