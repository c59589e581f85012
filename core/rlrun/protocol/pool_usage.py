"""Use of a process of a shared pool by each run, since the process started.

    GET /pool-usage  -> PoolUsage     with the pool's token

The middleware of an engine (`rlrun_engine_access.engine_usage`) answers it, and the sidecar exposes it to Prometheus
(`rlrun.service.pool_metrics`). One process counts a second once, even if it has several GPUs.
"""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from rlrun.api.base.schema import Schema

USAGE_PATH = "/pool-usage"
MAX_RUN_USAGES = 1024
"""Maximum number of runs in a PoolUsage, several times that of a pool, because former runs are listed for a while."""


class TokenKind(StrEnum):
    """Kind of tokens that are counted."""

    prompt = "prompt"
    """Tokens of prompts, those in the prefix cache included."""
    cached = "cached"
    """Tokens of prompts that were in the prefix cache."""
    sampled = "sampled"
    trained = "trained"


class RunUsage(Schema):
    """Use by one run."""

    tokens: dict[TokenKind, Annotated[int, Field(ge=0)]] = Field(default_factory=dict, max_length=len(TokenKind))
    """Number of tokens. Kinds that the process does not count are missing."""
    device_seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds in which the process worked for the run. A second with requests of several runs is divided."""
    refused: int = Field(default=0, ge=0)
    """Number of requests that were refused because the run had too many (429)."""


class PoolUsage(Schema):
    """Use by all runs. The sum of the device seconds and the idle seconds is the time since the process started."""

    idle_seconds: float = Field(ge=0, allow_inf_nan=False)
    """Seconds in which the process worked for no run."""
    waiting: int = Field(default=0, ge=0)
    """Number of requests that wait for their turn now."""
    runs: dict[Annotated[str, Field(max_length=64)], RunUsage] = Field(default_factory=dict, max_length=MAX_RUN_USAGES)
    """Runs by uid: those in the pool's order, and for a while those that left it."""
