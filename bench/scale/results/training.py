"""Figures that several scenarios share: bursts, runs that train, starts of operators. Pure."""

from dataclasses import dataclass, field

from bench.repetitions import percentile
from bench.scale.testbed.readings import OperatorUsage


@dataclass(frozen=True)
class Burst:
    """Runs that were created at once."""

    seconds: float
    """From the first creation until all pods run."""
    used: OperatorUsage
    """Requests and CPU time of the operator, until it was quiet."""


@dataclass(frozen=True)
class Training:
    """Runs that make steps."""

    used: OperatorUsage
    delays: list[float] = field(default_factory=list)
    """Seconds from each step until a watch of the runs showed it or a later one."""

    def delay(self, percent: float) -> float:
        """Return a percentile of the delays in seconds."""
        return percentile(self.delays, percent)


@dataclass(frozen=True)
class OperatorStart:
    """An operator that started where runs existed already."""

    takeover_seconds: float
    """From the end of the operator before it, which was killed, until it had the Lease."""
    seconds: float
    """From holding the Lease until it had looked at all active runs."""
    used: OperatorUsage
    resident_bytes: float
