"""Status of the orchestrator, which the operator polls.

:8080  GET /healthz /readyz /metrics
       GET /status                    -> RunStatus
:8000  the rollout gateway: /groups/{group}/v1/chat/completions, /completions and /models of the OpenAI API
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem


class RunPhase(StrEnum):
    """Phase of the orchestrator."""

    starting = "Starting"
    running = "Running"
    completed = "Completed"
    failed = "Failed"


class GroupCounts(Schema):
    """Number of rollout groups by outcome, and of those in flight."""

    trained: int = 0
    filtered: int = 0
    errored: int = 0
    stale: int = 0
    in_flight: int = 0


class RunStatus(Schema):
    """Status of a run, from which the operator fills the RLRun's status.

    The orchestrator also writes it as its termination message, so that the final status survives the process.
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
    """Start time of the first step."""
    mismatch_kl: float | None = None
    groups: GroupCounts = Field(default_factory=GroupCounts)
    reward_errors: int = 0
    """Number of rollouts whose reward function raised or returned no finite number, since the run started."""
    rollout_errors: int = 0
    waiting_for: Problem | None = None
    """Component that the run waits for (`WaitingForTrainer`, `WaitingForInference`, ...), if any."""
    warnings: list[Problem] = Field(default_factory=list)
    """Problems that do not stop the run but need attention (`RewardFunctionErrors`, ...)."""
    problem: Problem | None = None
    """Cause of the failure, set only in phase Failed."""
