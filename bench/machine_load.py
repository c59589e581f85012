"""Load of the machine before a measurement: other work on the same cores makes a measurement invalid.

Every benchmark calls `require_idle` before anything is prepared, and `settled_load` before each measurement; the
readings go into the result. `bench/validity.py` decides from them whether a result counts.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 0.25
"""Cores that may be busy before a measurement. The idle local cluster keeps about 0.1 busy."""
READING_SECONDS = 3.0
SETTLE_SECONDS = 60.0
"""Time for earlier pods to end and for a cluster that has just started to become quiet."""
TICKS = 100
"""Clock ticks per second in /proc/stat, independent of the kernel's own."""
IDLE_FIELDS = (3, 4)
"""Fields of the line `cpu` that are not work: idle and iowait (proc(5))."""
COUNTED_FIELDS = 8
"""Fields up to `steal`, which is time that the host gave to other machines. Those after it are parts of `user`."""

Reader = Callable[[], float]


class MachineBusyError(SystemExit):
    """Refusal to start on a busy machine. A SystemExit, so that a benchmark ends with the message and code 1."""


def busy_seconds(stat: str) -> float:
    """Return the seconds of work of all cores since the start of the machine, from the text of /proc/stat."""
    fields = stat.splitlines()[0].split()
    if fields[0] != "cpu":
        raise ValueError(f"/proc/stat begins with {fields[0]!r} instead of 'cpu'")
    ticks = [int(text) for text in fields[1 : COUNTED_FIELDS + 1]]
    return (sum(ticks) - sum(ticks[field] for field in IDLE_FIELDS)) / TICKS


def busy_cores(
    seconds: float = READING_SECONDS,
    read: Callable[[], str] = lambda: Path("/proc/stat").read_text(),
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Return the mean number of busy cores during the next `seconds`."""
    before, began = busy_seconds(read()), clock()
    sleep(seconds)
    return (busy_seconds(read()) - before) / (clock() - began)


def settled_load(
    read: Reader = busy_cores, clock: Callable[[], float] = time.monotonic, seconds: float = SETTLE_SECONDS
) -> float:
    """Return the number of busy cores, as soon as it is at most LIMIT or after `seconds`."""
    deadline = clock() + seconds
    while (load := read()) > LIMIT and clock() < deadline:
        continue
    return load


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--busy` to a benchmark."""
    parser.add_argument(
        "--busy", action="store_true", help="measure although the machine is busy; such results are marked invalid"
    )


def require_idle(allow_busy: bool, load: Reader = settled_load) -> None:
    """Check that the machine is idle.

    Raises:
        MachineBusyError: More than LIMIT cores are busy and `allow_busy` is not set.
    """
    if allow_busy:
        return
    found = load()
    if found > LIMIT:
        raise MachineBusyError(
            f"Not measured: {found:.2f} cores are busy with other work, and at most {LIMIT} may be. Stop it (top shows "
            "it) and start again, or pass --busy: the results are then marked invalid."
        )
