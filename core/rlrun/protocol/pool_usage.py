"""How much of one process in a shared pool each run has used since the process started.

    GET /pool-usage  -> PoolUsage     with the pool's token

The middleware of an engine (`rlrun_engine_access.engine_usage`) handles the request, and the sidecar exposes the usage
to Prometheus (`rlrun.service.pool_metrics`). Device seconds are seconds of the process: a process with several GPUs
counts each second once.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlrun.api.base.schema import Schema

USAGE_PATH = "/pool-usage"
MAX_RUN_USAGES = 1024
"""Maximum number of runs in a PoolUsage. It is several times the maximum number of runs in a pool, because runs stay
listed for a while after they leave.
"""


class TokenKind(StrEnum):
    """Kind of token that is counted."""

    prompt = "prompt"
    """Prompt tokens, including tokens found in the prefix cache."""
    cached = "cached"
    """Prompt tokens found in the prefix cache."""
    sampled = "sampled"
    trained = "trained"


class RunUsage(Schema):
    """Usage by one run."""

    tokens: dict[TokenKind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict, max_length=len(TokenKind))
    """Number of tokens by kind. Kinds that the process does not count are missing."""
    device_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds during which the process worked for the run. Time with requests of several runs is divided among the
    runs.
    """
    refused: int = Field(default=0, ge=0)
    """Number of requests that were refused with 429 because the run had too many requests."""


class PoolUsage(Schema):
    """Usage by all runs. The device seconds of all runs, including runs that have left the pool, and the idle
    seconds add up to the time since the process started.
    """

    idle_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Seconds during which the process worked for no run."""
    waiting: int = Field(default=0, ge=0)
    """Number of requests that are currently waiting for their turn."""
    runs: dict[Annotated[str, Field(max_length=64)], RunUsage] = Field(default_factory=dict, max_length=MAX_RUN_USAGES)
    """Usage by the uid of the run. Contains the runs in the current `PoolOrder` or `TrainerOrder` and, for a while,
    runs that are no longer listed.
    """
