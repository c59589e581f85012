"""The messages that the processes of one run send each other over HTTP.

Every process is a server with a handful of JSON routes; this module is the whole vocabulary, so that a reader can see
what crosses each wire without opening either end. A failed request is data, not a crash: whoever cannot do what it was
asked answers a `Problem` with a reason in CamelCase (it becomes a condition's reason) and a message for people.

    trainer       :8080  GET /healthz /readyz /metrics
                         PUT    /sessions/{session}                      SessionSpec    -> SessionState
                         GET    /sessions/{session}                                     -> SessionState
                         POST   /sessions/{session}/steps/{step}         TrainBatch     -> StepResult   (idempotent)
                         POST   /sessions/{session}/checkpoints/{step}   CheckpointRequest -> SessionState (202)
                         POST   /sessions/{session}/adapters/{step}                     -> SessionState (202)
                         GET    /sessions/{session}/policies/{policy}/{file}            the newest policies, while S3
                                                                                        is away; manifest.json first
                         DELETE /sessions/{session}
    environment   :8080  GET /healthz /readyz /metrics
                         GET    /info                                                   -> EnvironmentInfo
                         POST   /groups                                  GroupRequest   -> GroupResult
                         POST   /demonstrations                          DemonstrationRequest -> Demonstration
    sidecar       :8001  GET /healthz /readyz /metrics
                         GET    /adapters                                               -> AdapterList
                         PUT    /adapters/{name}                         LoadRequest    -> AdapterList (confirmed)
                         DELETE /adapters/{name}                                        -> AdapterList
    vLLM          :8000  the OpenAI API; an adapter's name is its model name
    orchestrator  :8000  the rollout gateway: /groups/{group}/v1/chat/completions, /completions, /models;
                         rollout id in the header X-Rollout-Id
                  :8080  GET /healthz /readyz /metrics, GET /status                     -> RunStatus

What the operator and the pools of deployed adapters say to each other is in `rlrun.schema.serving`.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from rlrun.schema.algorithm import KlPenalty, Loss
from rlrun.schema.base import Schema
from rlrun.schema.policy import policy_name

ROLLOUT_ID_HEADER = "X-Rollout-Id"

TRAINER_PORT = 8080
ENVIRONMENT_PORT = 8080
INFERENCE_PORT = 8000
SIDECAR_PORT = 8001
GATEWAY_PORT = 8000
ORCHESTRATOR_STATUS_PORT = 8080


class Problem(Schema):
    """Why something cannot go on, and what a person does about it."""

    reason: str
    """One CamelCase word, stable enough to be matched by machines: `EnvironmentLoadFailed`, `S3AccessDenied`."""
    message: str
    """What happened and the next step, for people."""


# --- policy ---------------------------------------------------------------------------------------------------------


class PolicyKind(StrEnum):
    """What a policy version consists of."""

    adapter = "adapter"
    """A LoRA adapter, served beside others under its own name."""
    weights = "weights"
    """All weights of the model, which replace the ones that an engine has."""


class PolicyRef(Schema):
    """One immutable version of the policy in S3.

    The digest is part of the name: after a restart from an older checkpoint the run trains version 11 a second time,
    and an engine must never take the first version 11 for the second.
    """

    version: int = Field(ge=0)
    """Optimizer steps behind this policy in this run; 0 is the policy the run starts from."""
    digest: str = Field(min_length=8)
    """SHA-256 of the weights' file (adapter_model.safetensors or model.safetensors), hexadecimal."""
    uri: str
    """s3://bucket/... prefix that holds the files of the adapter or of the model, and manifest.json."""
    kind: PolicyKind = PolicyKind.adapter

    @property
    def name(self) -> str:
        """The adapter's (and so the model's) name in the inference engine."""
        return policy_name(self.version, self.digest)


class LoadRequest(PolicyRef):
    """A policy that an inference replica shall serve."""

    fallback: str | None = Field(default=None, pattern=r"^https?://")
    """Where its files are when S3 does not answer or does not have them yet: the policy's folder at the trainer."""


class AdapterList(Schema):
    """The adapters that one inference replica serves now, as the engine's own model list says."""

    adapters: list[str] = Field(default_factory=list)
    load_seconds: float | None = None
    """How long the load asked for took, download included."""


# --- trainer --------------------------------------------------------------------------------------------------------


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


# --- environment ----------------------------------------------------------------------------------------------------


class EnvironmentInfo(Schema):
    """What an environment server holds."""

    name: str
    id: str
    version: str | None = None
    ready: bool
    problem: Problem | None = None
    train_examples: int = 0
    eval_examples: int = 0


class Split(StrEnum):
    """Which of an environment's datasets an example comes from."""

    train = "train"
    eval = "eval"


class GroupRequest(Schema):
    """Roll one example out `rollouts` times and score the results together."""

    group_id: str
    example_index: int = Field(ge=0)
    split: Split = Split.train
    rollouts: int = Field(ge=1)
    base_url: str
    """OpenAI base URL: the orchestrator's rollout gateway for this very group."""
    model: str
    sampling: dict[str, Any] = Field(default_factory=dict)
    """OpenAI sampling arguments (temperature, max_tokens, ...)."""
    deadline_seconds: float = Field(gt=0)
    score: bool = True
    """False leaves the rewards at 0 without asking the environment's reward functions."""


class DemonstrationRequest(Schema):
    """What would be the right answer to an example?"""

    example_index: int = Field(ge=0)
    split: Split = Split.train


class Demonstration(Schema):
    """An example's prompt and the answer that its data set gives, as chat messages."""

    prompt: list[dict[str, Any]] = Field(min_length=1)
    completion: list[dict[str, Any]] = Field(min_length=1)


class RolloutResult(Schema):
    """What the environment says of one rollout. Its tokens are not here: the gateway recorded them itself."""

    rollout_id: str
    """What the environment sent as X-Rollout-Id."""
    reward: float
    metrics: dict[str, float] = Field(default_factory=dict)
    stop_condition: str | None = None
    is_truncated: bool = False
    generation_ms: float | None = Field(ge=0, default=None)
    """Milliseconds from the first request to the last answer, tools and waiting included."""
    scoring_ms: float | None = Field(ge=0, default=None)
    """Milliseconds in reward functions; a group's functions count for each of its rollouts."""
    completion: Any = None
    """The conversation as messages, for the rollout log."""
    error: Problem | None = None
    """Set when the rollout or its scoring failed: it is counted and never trained on."""


class GroupResult(Schema):
    """One example's rollouts."""

    group_id: str
    rollouts: list[RolloutResult]
    seconds: float


# --- orchestrator ---------------------------------------------------------------------------------------------------


class RunPhase(StrEnum):
    """Where the orchestrator stands."""

    starting = "Starting"
    running = "Running"
    completed = "Completed"
    failed = "Failed"


class GroupCounts(Schema):
    """Every group that was dispatched ends in exactly one of these."""

    trained: int = 0
    filtered: int = 0
    errored: int = 0
    stale: int = 0
    in_flight: int = 0


class RunStatus(Schema):
    """What the operator polls: small, complete, and enough to fill the RLRun's status.

    The same JSON is the orchestrator's termination message, so that the last word of a run is never lost.
    """

    phase: RunPhase
    step: int = 0
    max_steps: int
    reward: float | None = None
    """Mean reward of the newest batch."""
    policy_version: int = 0
    eta_seconds: float | None = None
    last_step_time: datetime | None = None
    started_at: datetime | None = None
    """When the first step began."""
    mismatch_kl: float | None = None
    groups: GroupCounts = Field(default_factory=GroupCounts)
    reward_errors: int = 0
    """Rollouts whose reward function raised or gave no finite number, since the run began."""
    rollout_errors: int = 0
    waiting_for: Problem | None = None
    """The component this run waits for now (`WaitingForTrainer`, `WaitingForInference`, ...), if any."""
    warnings: list[Problem] = Field(default_factory=list)
    """What does not stop the run but a person should know (`RewardFunctionErrors`, ...)."""
    problem: Problem | None = None
    """Why the run failed; set exactly in phase Failed."""
