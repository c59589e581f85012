"""Objective of a training step: algorithm, loss, KL penalty and LoRA settings."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlrun.api.base.rules import LIST_TYPE, Rule, Spec, cel_of_defaults


class AlgorithmName(StrEnum):
    """Training algorithm, which determines what the policy learns from and how advantages are computed."""

    grpo = "grpo"
    distillation = "distillation"
    sft = "sft"


class Advantage(StrEnum):
    """Advantage of a rollout, computed from its reward and the rewards of its group."""

    mean = "mean"
    std = "std"
    none = "none"
    max_rl = "maxRl"


class Schedule(StrEnum):
    """Schedule of the learning rate after the warmup."""

    constant = "constant"
    linear = "linear"
    cosine = "cosine"


class RatioType(StrEnum):
    """Unit of the importance ratio."""

    token = "token"
    sequence = "sequence"


class RatioLimit(StrEnum):
    """Treatment of importance ratios that are out of bounds."""

    mask = "mask"
    clip = "clip"
    ppo = "ppo"


class Teacher(Spec):
    """Teacher model that scores the policy's tokens, served by an OpenAI-compatible API with vLLM's prompt_logprobs."""

    url: str = Field(min_length=8, max_length=1024, pattern=r"^https?://[^\s]+$")
    """Base URL of the OpenAI-compatible API, including /v1. Private addresses must be allowed by the platform. Redirects are not followed."""  # noqa: E501
    model: str = Field(min_length=1, max_length=256)
    """Name of the teacher model in the API at url. It must use the same tokenizer as the trained model."""


class LengthPenalty(Spec):
    """Linear length penalty, as in prime-rl. It has a term for output tokens, one for input tokens and one for turns: the rollout's count, divided by the largest count in its group, times the weight. The sum of the terms, times the mean reward of the group, is subtracted from the rollout's reward."""  # noqa: E501

    output_tokens_weight: float = Field(default=0.25, ge=0, le=100)
    """Weight of the tokens that the policy sampled. 0 disables the term."""
    input_tokens_weight: float = Field(default=0.1, ge=0, le=100)
    """Weight of the other tokens: prompts and responses of tools. 0 disables the term."""
    turns_weight: float = Field(default=0.1, ge=0, le=100)
    """Weight of the turns. 0 disables the term."""


class Algorithm(Spec):
    """Training algorithm, which determines what the policy learns from and how advantages are computed."""

    name: AlgorithmName = Field(default=AlgorithmName.grpo, strict=False)
    """Algorithm. grpo learns from the rewards of the environments. distillation learns from a teacher's log-probabilities of the policy's own rollouts (on-policy reverse KL between the two models, without the sampling settings). sft learns from the demonstrations of the environments."""  # noqa: E501
    advantage: Advantage = Field(default=Advantage.mean, strict=False)
    """Advantage of a rollout with the algorithm grpo. mean is the rollout's reward minus the mean reward of its group. std divides this difference by the standard deviation of the group's rewards. maxRl divides it by the group's mean reward (arXiv 2602.02710), and is 0 unless this mean is positive. none is the reward itself."""  # noqa: E501
    length_penalty: LengthPenalty | None = None
    """Lowers the rewards of long rollouts before their advantages are computed. By default, length is not penalized."""
    mask_truncated: bool = False
    """Excludes truncated rollouts from the trainer's passes and from the token count that the loss is divided by. A rollout is truncated if its environment reports so, or if a turn reached its maximum number of tokens. Its reward still counts for the advantages of its group."""  # noqa: E501
    filter_zero_advantages: bool = True
    """Excludes rollouts with an advantage of 0 from the trainer's passes and from the token count that the loss is divided by. These rollouts contribute nothing to the policy gradient. If klPenalty is enabled, they are kept, because the penalty applies to their tokens. A batch in which all advantages are 0 is dropped."""  # noqa: E501
    sft_steps: int = Field(default=0, ge=0, le=1_000_000)
    """Number of supervised steps on the demonstrations of the environments before the algorithm starts."""
    teacher: Teacher | None = None
    """Teacher model of the distillation algorithm."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "teacher",
            "has(self.teacher) == (self.name == 'distillation')",
            "teacher must be set if and only if the algorithm is distillation",
            lambda a: (a.teacher is not None) == (a.name is AlgorithmName.distillation),
        ),
        Rule(
            "advantage",
            "self.name == 'grpo' || (self.advantage == 'mean' && !has(self.lengthPenalty))",
            "advantage and lengthPenalty require the algorithm grpo: other algorithms do not learn from rewards",
            lambda a: a.name is AlgorithmName.grpo or (a.advantage is Advantage.mean and a.length_penalty is None),
        ),
    )


class KlPenalty(Spec):
    """KL penalty against the model that reinforcement learning starts from: the base model, the weights of checkpointId, or after sftSteps the weights at the end of the supervised steps."""  # noqa: E501

    enabled: bool = True
    """Enables the KL penalty."""
    beta: float = Field(default=0.1, gt=0, le=100)
    """Weight of KL(policy, reference) in the loss, per token under the run's sampling settings. If targetKl is set, this is the initial weight."""  # noqa: E501
    target_kl: float | None = Field(default=None, gt=0, le=100)
    """Target divergence in nats per token. beta is raised when the divergence is above the target and lowered when it is below. If unset, beta is constant."""  # noqa: E501


class Dppo(Spec):
    """DPPO policy gradient (arXiv 2602.04879) with a penalty on the importance ratio: the default loss of prime-rl. The bounds apply to the difference between a token's probabilities in trainer and engine."""  # noqa: E501

    low: float = Field(default=0.2, ge=0, le=1)
    """Maximum decrease in the probability of a token whose advantage is not positive. Tokens beyond this bound have no policy gradient."""  # noqa: E501
    high: float = Field(default=0.2, ge=0, le=1)
    """Maximum increase in the probability of a token whose advantage is positive. Tokens beyond this bound have no policy gradient."""  # noqa: E501
    kl_tau: float = Field(default=1e-3, ge=0, le=100)
    """Weight of the squared logarithm of the importance ratio, which applies to every token."""


class RatioLoss(Spec):
    """Treatment of importance ratios by the default loss."""

    ratio_type: RatioType = Field(default=RatioType.token, strict=False)
    """Importance ratio of a token: token uses the token's own ratio, sequence uses the geometric mean of the ratios of its sequence, as in GSPO."""  # noqa: E501
    ratio_limit: RatioLimit = Field(default=RatioLimit.mask, strict=False)
    """Treatment of ratios outside ratioLow and ratioHigh: mask excludes them from the loss, clip limits them to the bounds, ppo uses the lower of the clipped and the unclipped objective."""  # noqa: E501
    ratio_low: float = Field(default=0.125, ge=0, le=1)
    """Lower bound of the importance ratio of a token, for both ratio types."""
    ratio_high: float = Field(default=8.0, ge=1, le=1000)
    """Upper bound of the importance ratio of a token, for both ratio types."""
    sequence_mean_low: float = Field(default=0.1, ge=0, le=1)
    """Minimum geometric mean ratio of a sequence. Sequences below it are excluded from the loss."""
    sequence_mean_high: float = Field(default=10.0, ge=1, le=1000)
    """Maximum geometric mean ratio of a sequence. Sequences above it are excluded from the loss."""
    sequence_token_low: float = Field(default=0.0, ge=0, le=1)
    """Minimum ratio of each token of a sequence. Sequences with a token below it are excluded from the loss."""
    sequence_token_high: float = Field(default=100.0, ge=1, le=1_000_000)
    """Maximum ratio of each token of a sequence. Sequences with a token above it are excluded from the loss."""


class Loss(RatioLoss):
    """Policy-gradient loss, which weights tokens by the importance ratio between trainer and inference engine."""

    dppo: Dppo | None = None
    """DPPO policy gradient, in place of ratioType, ratioLimit and the bounds of ratios."""

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "dppo",
            f"!has(self.dppo) || ({cel_of_defaults(RatioLoss)})",
            "dppo replaces the other settings of the loss: remove either those settings or dppo",
            lambda s: s.dppo is None or all(getattr(s, n) == f.default for n, f in RatioLoss.model_fields.items()),
        ),
    )


class RunLora(Spec):
    """LoRA settings of this run. Unset fields are taken from the RLModel."""

    enabled: bool = True
    """Trains a LoRA adapter. If false, all weights are trained, which the RLModel must allow."""
    rank: int | None = Field(default=None, ge=1, le=512)
    """Rank of the adapter, at most the rank in the RLModel. Defaults to the rank in the RLModel."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout on the adapter's input during training. Above 0, trainer and engine probabilities differ slightly. Defaults to the dropout in the RLModel."""  # noqa: E501
    target_modules: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"}
    )
    """Linear layers that receive an adapter, a subset of those in the RLModel. all-linear in the RLModel allows every linear layer that can be trained and served; experts must be listed there. If empty, all layers in the RLModel receive one."""  # noqa: E501

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "enabled",
            "self.enabled || (!has(self.rank) && !has(self.dropout) && self.targetModules.size() == 0)",
            "rank, dropout and targetModules describe an adapter: remove them, or set enabled to true",
            lambda s: s.enabled or (s.rank is None and s.dropout is None and not s.target_modules),
        ),
    )
