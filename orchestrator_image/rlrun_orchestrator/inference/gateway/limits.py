"""Limits of the gateway per group. They are far above legitimate use, and only stop floods of requests."""

import re
from dataclasses import dataclass

ROLLOUT_ID = re.compile(r"[ -~]{1,200}")
"""Pattern of a rollout's id: printable ASCII, because the id is returned in a header."""


@dataclass(frozen=True)
class Limits:
    """Limits of the gateway, per group unless stated otherwise."""

    in_flight: int = 4096
    """Maximum number of concurrent requests. A run may have 1024 rollouts per example."""
    rollouts: int = 8192
    """Maximum number of distinct rollout ids."""
    turns: int = 4096
    """Maximum number of requests per rollout."""
    body_values: int = 2_000_000
    """Maximum number of values in a request's JSON. A prompt of token ids has one value per token."""
    body_bytes: int = 64 * 1024**2
    """Maximum size of one request body in bytes."""
    body_seconds: float = 60.0
    """Seconds for a client to send the body of one request."""
