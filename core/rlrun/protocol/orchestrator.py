"""Status of the orchestrator, which the operator watches.

:8080  GET /healthz /readyz /metrics
       GET /status                    -> RunStatus
       GET /status?since=V&wait=S     -> RunStatus when its version differs from V, or after S seconds
:8000  the rollout gateway: /groups/{group}/v1/chat/completions, /completions and /models of the OpenAI API, and
       the wheels of environment packages: /environments/{owner}/{name}
"""

from enum import StrEnum
from typing import Annotated

from pydantic import AwareDatetime, Field, FiniteFloat

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.api.run_status import EnvironmentPackage
from rlrun.protocol.problem import Problem

SINCE, WAIT = "since", "wait"
"""Query parameters of a request that waits for a change."""
MAX_WAIT_SECONDS = 60.0

Count = Annotated[int, Field(ge=0, lt=2**53)]
"""Count below 2**53, so that every JSON parser reads it exactly."""


class RunPhase(StrEnum):
    """Phase of the orchestrator."""

    starting = "Starting"
    running = "Running"
    completed = "Completed"
    failed = "Failed"


class GroupCounts(Schema):
    """Number of rollout groups by outcome, and number of groups in flight."""

    trained: Count = 0
    filtered: Count = 0
    errored: Count = 0
    stale: Count = 0
    in_flight: Count = 0


class RunStatus(Schema):
    """Status of a run, from which the operator fills the RLRun's status. Values have the same bounds in both statuses.
    The size limits are low, because the operator parses the statuses of all runs on its event loop and keeps the newest
    of each.

    The orchestrator also writes the status as its termination message, so that the final status survives the process.
    """

    wire_limits = InputLimits(size=128 * 1024, values=2000)

    version: Text | None = None
    """Digest of the content without estimates, group counts and policy version. Missing in the termination message."""
    phase: RunPhase
    step: Count = 0
    max_steps: int | None = Field(default=None, ge=1, lt=2**53)
    """Requested number of steps, or None if the process could not read its configuration."""
    reward: FiniteFloat | None = None
    """Mean reward of the newest batch."""
    policy_version: Count = 0
    eta_seconds: FiniteFloat | None = Field(default=None, ge=0)
    last_step_time: AwareDatetime | None = None
    started_at: AwareDatetime | None = None
    """Start time of the first step."""
    mismatch_kl: FiniteFloat | None = None
    groups: GroupCounts = Field(default_factory=GroupCounts)
    reward_errors: Count = 0
    """Number of rollouts, since the start of the run, in which a reward function raised or returned no finite number.
    """
    rollout_errors: Count = 0
    waiting_for: Problem | None = None
    """Problem that names the component the run waits for (`WaitingForTrainer`, ...), or None."""
    environments: list[EnvironmentPackage] = Field(default_factory=list, max_length=32)
    """Packages of the environments: those recorded earlier, and all others once every environment is ready. May be
    missing from the termination message.
    """
    warnings: list[Problem] = Field(default_factory=list, max_length=64)
    """Problems that do not stop the run but need attention (`RewardFunctionErrors`, ...)."""
    problem: Problem | None = None
    """Cause of the failure, set only in phase Failed."""
