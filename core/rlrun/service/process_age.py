"""Age of this process."""

import os
import time
from functools import cache
from pathlib import Path


def process_age() -> float:
    """Return the seconds since this process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _started()


@cache
def _started() -> float:
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc_pid_stat(5)
