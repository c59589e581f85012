"""Messages between the orchestrator and the trainer: sessions, batches, results, checkpoint requests.

    GET    /healthz /readyz /metrics
    PUT    /sessions/{session}                      SessionSpec       -> SessionState
    GET    /sessions/{session}                                        -> SessionState
    POST   /sessions/{session}/steps/{step}         `train_batch`     -> StepResult (idempotent)
    POST   /sessions/{session}/checkpoints/{step}   CheckpointRequest -> SessionState (202)
    POST   /sessions/{session}/adapters/{step}      CheckpointRequest -> SessionState (202)
    GET    /sessions/{session}/policies/{policy}/{file}               -> a file of a new policy, while S3 is unreachable
    DELETE /sessions/{session}

ORCHESTRATOR_HEADER names the orchestrator's process. A session belongs to the process that opened it last. Changes by
other processes are refused with 410. A process that was replaced cannot open the session again (410).
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.api.model import Lora
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.api.run_sections.training import KlPenalty, Loss, Schedule
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem

ORCHESTRATOR_HEADER = "X-Orchestrator-Id"

MAX_ENTRIES = 4096
MAX_STEPS = 1_000_000
LARGEST_LOGPROB = 1e-3
"""Maximum valid log-probability: 0, plus a tolerance for rounding."""


STATE_LIMITS = InputLimits(size=256 * 1024**2, values=10_000_000)
"""Limits of messages with the orchestrator's state, which contains the examples of a dataset."""


def are_logprobs(values: Sequence[Any]) -> bool:
    """Return whether all values are finite log-probabilities. Optimized for speed, because a turn has thousands of
    tokens.
    """
    # A non-finite sum has a non-finite term.
    return (
        set(map(type, values)) <= {int, float}
        and max(values, default=0.0) <= LARGEST_LOGPROB
        and math.isfinite(sum(values))
    )


class SessionSpec(Schema):
    """Request to open a session, which occupies one adapter slot of the trainer.

    Opening an open session with the same spec changes nothing. A higher `max_steps` extends the session.
    """

    run_uri: Text
    """Folder of the run in S3, s3://bucket/path, with policy/, checkpoints/ and adapters/."""
    run_name: Text
    run_uid: Text
    namespace: Text
    model: Text
    kind: PolicyKind = PolicyKind.adapter
    """Kind of policy. `weights` trains all weights and ignores the adapter settings."""
    lora: Lora = Field(default_factory=Lora)
    """LoRA section of the model, with the run's overrides."""
    lora_alpha: float = Field(gt=0)
    learning_rate: float = Field(gt=0)
    max_steps: int = Field(ge=1)
    seq_len: int = Field(ge=1)
    sampling: Sampling = Field(default_factory=Sampling)
    """Sampling parameters of the run's rollouts. The trainer applies the parameters that change the distribution of
    tokens.
    """
    warmup_steps: int = Field(ge=0, default=0)
    """Number of steps over which the learning rate rises linearly."""
    schedule: Schedule = Schedule.constant
    decay_steps: int | None = Field(default=None, ge=0)
    min_learning_rate: float = Field(default=0.0, ge=0)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    gradient_accumulation_steps: int = Field(ge=1, default=1)
    """Minimum number of micro-batches per step."""
    loss: Loss = Field(default_factory=Loss)
    kl_penalty: KlPenalty | None = None
    micro_batch_tokens: int = Field(ge=1, default=8192)
    """Number of tokens packed into one forward pass."""
    seed: int = 0
    resume_from: Text | None = None
    """URI of a checkpoint of this run to resume from. If S3 has a newer checkpoint or recovery copy of the run, the
    session starts from the newest of them instead. If there is none and this is None, the session starts from
    `warm_start_from`, or from the base model.
    """
    warm_start_from: Text | None = None
    """URI of another run's checkpoint. The session starts at step 0 with the checkpoint's weights and, unless
    `warm_start_optimizer` is false, its optimizer, schedule and RNG.
    """
    warm_start_digest: Text | None = None
    """SHA-256 of the manifest of `warm_start_from`. The session is refused if the manifest has a different digest."""
    warm_start_optimizer: bool = True
    """If true, optimizer, schedule and RNG are restored from `warm_start_from`. If false, only the weights are."""


class SessionState(Schema):
    """State of one session."""

    wire_limits = STATE_LIMITS

    step: int = Field(ge=0)
    """Number of completed optimizer steps in this run."""
    policy: PolicyRef
    """Newest published policy, complete in S3 or, while S3 is unreachable, on the trainer."""
    checkpoints: list[int] = Field(default_factory=list, max_length=MAX_STEPS)
    """Steps whose checkpoints are complete in S3, oldest first. Excludes steps before the step at which the session
    started.
    """
    adapters: list[int] = Field(default_factory=list, max_length=MAX_STEPS)
    """Steps whose adapters are complete in S3, oldest first. Excludes steps before the step at which the session
    started.
    """
    uploads_pending: int = 0
    problem: Problem | None = None
    """Reason why uploads or policies currently do not reach S3, or None."""
    shutdown: Problem | None = None
    """Problem to report if the grace period after SIGTERM is too short for one more step and checkpoint, judging by
    their latest durations. Otherwise None.
    """
    warnings: list[Problem] = Field(default_factory=list, max_length=64)
    """Problems with the model or adapter that users should know about."""
    orchestrator_state: dict[str, Any] | None = Field(default=None, max_length=MAX_ENTRIES)
    """State that the orchestrator stored in the checkpoint from which this session started, or None."""
    orchestrator_state_step: int | None = None
    """Step of `orchestrator_state`. Lower than the checkpoint's step in a recovery copy, and if the trainer saved the
    checkpoint while shutting down: both contain the newest state that the trainer had received.
    """
    last: "StepResult | None" = None
    """Result of the newest step, if this trainer process computed it. An orchestrator that restarted before it received
    the response reads it here.
    """


class StepResult(Schema):
    """Result of one optimizer step. The keys of `metrics` are names from the metric catalog."""

    step: int
    """Number of completed optimizer steps, including this one."""
    policy: PolicyRef
    metrics: dict[Text, float] = Field(max_length=MAX_ENTRIES)
    batch_id: Text = ""
    """Id of the batch that was trained on."""
    warnings: list[Problem] = Field(default_factory=list, max_length=64)
    """Problems with the model or adapter, including those found in this step."""
    recovery_copy: bool = False
    """True if the trainer makes a recovery copy of this step. The copy does not contain the orchestrator's state after
    the step, so the orchestrator stores that state itself.
    """


class CheckpointRequest(Schema):
    """Request to save a checkpoint of the current step. The URL path contains the step."""

    wire_limits = STATE_LIMITS

    orchestrator_state: dict[str, Any] = Field(default_factory=dict, max_length=MAX_ENTRIES)
