"""Limits of the gateway per group, far above legitimate use: they stop floods only."""

import re
from dataclasses import dataclass

ROLLOUT_ID = re.compile(r"[ -~]{1,200}")
"""Printable ASCII, because the id is returned in a header."""


@dataclass(frozen=True)
class Limits:
    """Limits per group, unless stated otherwise."""

    in_flight: int = 4096
    """Concurrent requests. A run may have 1024 rollouts per example."""
    rollouts: int = 8192
    """Distinct rollout ids."""
    turns: int = 4096
    """Requests per rollout."""
    body_values: int = 2_000_000
    """Values in the JSON of a request. A prompt of token ids has one for each token."""
    body_bytes: int = 64 * 1024**2
    """Body size of one request."""
    body_seconds: float = 60.0
    """Seconds for a client to send the body of one request."""
