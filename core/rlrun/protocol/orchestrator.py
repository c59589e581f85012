"""Status of the orchestrator, which the operator watches.

:8080  GET /healthz /readyz /metrics
       GET /status                    -> RunStatus
       GET /status?since=V&wait=S     -> RunStatus when its version differs from V, or after S seconds
:8000  the rollout gateway: /groups/{group}/v1/chat/completions, /completions and /models of the OpenAI API
"""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.schema import Schema
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.problem import Problem

SINCE, WAIT = "since", "wait"
"""Parameters of a request that waits for a change."""
MAX_WAIT_SECONDS = 60.0


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

    version: str | None = None
    """Digest of the content without estimates, group counts and policy version. The termination message has none."""
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
    environments: list[EnvironmentPackage] = Field(default_factory=list)
    """Packages of the environments: those given to this process, and from the time at which all are ready the others.
    The termination message may lack them."""
    warnings: list[Problem] = Field(default_factory=list)
    """Problems that do not stop the run but need attention (`RewardFunctionErrors`, ...)."""
    problem: Problem | None = None
    """Cause of the failure, set only in phase Failed."""
