"""Messages between the orchestrator and the trainer: sessions, batches, results, checkpoint requests."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.training import KlPenalty, Loss
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem


class SessionSpec(Schema):
    """A run's claim on one adapter slot of the trainer. Opening an open session with the same spec changes nothing,
    with more `max_steps` the session goes on to these.
    """

    run_uri: str
    """s3://bucket/prefix of the run: policy/, checkpoints/ and adapters/ are written below it."""
    run_name: str
    run_uid: str
    namespace: str
    model: str
    lora_rank: int = Field(ge=1)
    lora_alpha: float = Field(gt=0)
    target_modules: list[str]
    lora_dropout: float = Field(ge=0, lt=1, default=0.0)
    learning_rate: float = Field(gt=0)
    max_steps: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    temperature: float = Field(gt=0, default=1.0)
    """Sampling temperature: the trainer divides its logits by it, so that both sides mean the same distribution."""
    top_p: float | None = Field(gt=0, le=1, default=None)
    repetition_penalty: float | None = Field(gt=0, default=None)
    min_tokens: int | None = Field(ge=0, default=None)
    """These three bend the sampling distribution as well, and the trainer bends its own in the same way."""
    kind: PolicyKind = PolicyKind.adapter
    """`weights` trains all weights; rank, alpha, targets and dropout then mean nothing."""
    warmup_steps: int = Field(ge=0, default=0)
    """Steps in which the learning rate rises linearly."""
    gradient_accumulation_steps: int = Field(ge=1, default=1)
    """Micro-batches, at least, that a step is split into."""
    loss: Loss = Field(default_factory=Loss)
    kl_penalty: KlPenalty | None = None
    micro_batch_tokens: int = Field(ge=1, default=8192)
    """Tokens packed into one forward pass."""
    seed: int = 0
    resume_from: str | None = None
    """s3:// uri of a checkpoint of this run; None with `warm_start_from` None starts fresh."""
    warm_start_from: str | None = None
    """s3:// uri of another run's checkpoint: adapter, optimizer, schedule and RNG continue, the step starts at 0."""


class SessionState(Schema):
    """What the trainer knows of one session."""

    step: int = Field(ge=0)
    """Optimizer steps done in this run."""
    policy: PolicyRef
    """The newest published policy: complete in S3 or, while S3 is away, to be had from the trainer."""
    checkpoints: list[int] = Field(default_factory=list)
    """Steps whose checkpoint is complete in S3 (manifest written), oldest first."""
    adapters: list[int] = Field(default_factory=list)
    """Steps whose adapter artifact is complete in S3, oldest first."""
    uploads_pending: int = 0
    problem: Problem | None = None
    """Why uploads or policies do not get to S3; None again when they do."""
    orchestrator_state: dict[str, Any] | None = None
    """What the orchestrator put in the checkpoint that this session started from (progress, buffer); None without one.
    """
    orchestrator_state_step: int | None = None
    """The step that state is of. Less than that of the checkpoint if the trainer saved that by itself on its way out:
    it is then the newest that the trainer knew.
    """
    last: "StepResult | None" = None
    """The result of the step that led to `step`, as long as this trainer process made it: an orchestrator that died
    between asking and hearing finds it here.
    """


class SampleLoss(StrEnum):
    """What a sample's tokens are trained with."""

    policy = "policy"
    """Policy gradient: importance ratio times advantage."""
    cross_entropy = "cross_entropy"
    """Maximum likelihood, as in supervised fine-tuning; logprobs and advantages mean nothing."""


class Sample(Schema):
    """One training sequence: what the engine saw, token by token. All lists have the same length T."""

    token_ids: list[int]
    loss_mask: list[bool]
    """True where the policy drew the token; prompt and environment tokens are False."""
    logprobs: list[float]
    """The engine's log p of each drawn token under the sampling distribution; 0.0 where the mask is False."""
    advantage: float
    """One number for the whole sequence: reward minus the mean reward of its group."""
    token_advantages: list[float] | None = None
    """One number per token (0.0 where the mask is False) instead of `advantage`: a teacher judges every token."""
    loss: SampleLoss = SampleLoss.policy
    policy_version: int
    """Version that drew the tokens (the oldest one, if there were several)."""


class TrainBatch(Schema):
    """What one optimizer step consumes."""

    samples: list[Sample]
    batch_id: str = ""
    """The orchestrator's own name for the batch. The result hands it back: after a restart it tells which batch a step
    was made of, which need not be the one of the request that hears of it.
    """


class StepResult(Schema):
    """What one optimizer step did; `metrics` carries the field's names (`loss/mean`, `mismatch_kl/all/mean`, ...)."""

    step: int
    """Optimizer steps done, this one included."""
    policy: PolicyRef
    metrics: dict[str, float]
    batch_id: str = ""
    """Of the batch that the step was made of."""


class CheckpointRequest(Schema):
    """Save a checkpoint of the state after `step` steps (the path names the step; it must be the current one)."""

    orchestrator_state: dict[str, Any] = Field(default_factory=dict)
