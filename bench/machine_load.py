"""Load of the machine before a measurement, because other work on the same cores makes a measurement invalid.

Every benchmark calls `require_idle` before anything is prepared, and `settled_load` before each measurement; the
readings are part of the result. `bench.report` uses them to decide whether a result is valid.

A reading is a number of cores, not a fraction: the mean number of busy cores among those that this process was allowed
to use at its start (CORES). It excludes work of others on a shared host, which `loop_seconds` shows.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Collection
from pathlib import Path

CORES = frozenset(os.sched_getaffinity(0))
"""Usable cores, read at import, because a benchmark that pins itself to one core still needs the others idle."""
LIMIT = 0.25
"""Maximum number of busy cores before a measurement on a small machine. The idle local cluster uses about 0.1."""
SHARE = 0.05
"""Fraction of the usable cores that may be busy before a measurement. On small machines LIMIT applies instead, because
it is larger.
"""
READING_SECONDS, SETTLE_SECONDS = 3.0, 60.0
"""Duration of one reading in seconds, and maximum seconds to wait until pods have terminated and a new cluster is
quiet.
"""
TICKS = 100
"""Clock ticks per second in /proc/stat, regardless of the kernel's internal tick rate."""


def limit(cores: int | None = None) -> float:
    """Return the maximum number of busy cores at which a machine with `cores` cores counts as idle. None means this
    machine.
    """
    return max(LIMIT, SHARE * (len(CORES) if cores is None else cores))


def busy_seconds(stat: str, cores: Collection[int]) -> float:
    """Return the seconds of work of the cores since the machine started, from the text of /proc/stat (proc(5)).

    Idle time and iowait are not work; `steal`, the time given to other machines, is. Guests are included in `user`.
    """
    lines = {fields[0]: list(map(int, fields[1:9])) for fields in map(str.split, stat.splitlines()) if fields[1:]}
    own = [lines[f"cpu{core}"] for core in cores]
    return sum(sum(ticks) - ticks[3] - ticks[4] for ticks in own) / TICKS


def loop_seconds(loops: int = 9) -> float:
    """Return the seconds of a loop of a million additions, as the median of `loops` runs.

    Machines with the same name differ by a factor of two, even from one hour to the next.
    """
    found = []
    for _ in range(loops):
        began, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def used_memory() -> int:
    """Return the bytes of memory in use on this machine, without caches (MemTotal - MemAvailable of proc(5))."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, available = (int(fields[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    return 1024 * (total - available)


def busy_cores() -> float:
    """Return the mean number of busy usable cores during the next READING_SECONDS."""
    before, began = busy_seconds(Path("/proc/stat").read_text(), CORES), time.monotonic()
    time.sleep(READING_SECONDS)
    return (busy_seconds(Path("/proc/stat").read_text(), CORES) - before) / (time.monotonic() - began)


def settled_load(read: Callable[[], float] = busy_cores, clock: Callable[[], float] = time.monotonic) -> float:
    """Return the number of busy cores, as soon as it is at most the limit or after SETTLE_SECONDS."""
    deadline = clock() + SETTLE_SECONDS
    while (load := read()) > limit() and clock() < deadline:
        continue
    return load


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--busy` to a benchmark."""
    parser.add_argument(
        "--busy", action="store_true", help="measure even if the machine is busy; such results are marked invalid"
    )


def require_idle(allow_busy: bool, load: Callable[[], float] = settled_load) -> None:
    """Check that the machine is idle. Raises SystemExit if it is busy and `allow_busy` is not set."""
    if not allow_busy and (found := load()) > limit():
        raise SystemExit(
            f"Not measured: {found:.2f} of {len(CORES)} cores are busy with other work, and at most {limit():g} may "
            "be. Stop this work (find it with top) and start again, or pass --busy to mark the results as invalid."
        )
