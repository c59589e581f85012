"""The orchestrator's answer to /status, which the operator polls."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem


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
