"""What one group may ask of the gateway: far above honest use, so that only a flood ever meets a limit."""

import re
from dataclasses import dataclass

ROLLOUT_ID = re.compile(r"[ -~]{1,200}")
"""Printable ASCII: the id goes back in a header."""


@dataclass(frozen=True)
class Limits:
    """Per group, unless said otherwise."""

    in_flight: int = 4096
    """Requests at a time; the most rollouts that a run may ask for per example is 1024."""
    rollouts: int = 8192
    """Different rollout ids."""
    turns: int = 4096
    """Requests of one rollout."""
    body_bytes: int = 64 * 1024**2
    """Of one request."""
    body_seconds: float = 60.0
    """For a client to send the body of one request."""
