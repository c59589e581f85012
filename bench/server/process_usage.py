"""Memory and CPU time of a process."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TICKS = 100
"""Clock ticks per second in /proc/{pid}/stat."""
MB = 1_000_000


@dataclass(frozen=True)
class ProcessUsage:
    """Usage of a process during some seconds."""

    resident_mb: float
    """Resident memory at their end, in MB of 1,000,000 bytes."""
    cores: float
    """Mean number of cores."""


def resident_mb(pid: int) -> float:
    """Return the resident memory."""
    return _status_mb(pid, "VmRSS")


def peak_mb(pid: int) -> float:
    """Return the largest resident memory so far."""
    return _status_mb(pid, "VmHWM")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time so far, in user and kernel mode."""
    stat = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
    # Fields 14 and 15 of proc_pid_stat(5): utime and stime.
    return (int(stat[11]) + int(stat[12])) / TICKS


def usage_during(pid: int, seconds: float, sleep: Callable[[float], None] = time.sleep) -> ProcessUsage:
    """Return the usage during the next `seconds`."""
    before, began = cpu_seconds(pid), time.monotonic()
    sleep(seconds)
    return ProcessUsage(resident_mb(pid), (cpu_seconds(pid) - before) / (time.monotonic() - began))


def _status_mb(pid: int, name: str) -> float:
    for line in (Path("/proc") / str(pid) / "status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / MB
    raise ValueError(f"process {pid} has no {name}: it has ended")
