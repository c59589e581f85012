"""How the turns of a rollout become training sequences."""

from enum import StrEnum


class TrajectoryStrategy(StrEnum):
    """How the turns of a rollout become training sequences."""

    interleaved = "interleaved"
    branching = "branching"
