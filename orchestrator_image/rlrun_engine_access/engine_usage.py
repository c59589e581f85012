"""Usage of an engine by each run: tokens and device time, exported as `rlrun.protocol.pool_usage.PoolUsage`.

While sequences of runs are in vLLM, each moment is divided equally among these sequences. All other time is idle,
including the engine's start and the pool's own requests. Therefore the seconds of all runs and the idle seconds sum to
the age of the process at any time. All times are in seconds.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun_engine_access.order import MAX_RUNS
from rlrun_engine_access.response_usage import ResponseUsage

MAX_LISTED_RUNS = 4 * MAX_RUNS
"""Maximum number of runs in an export. Runs with requests in vLLM are always included."""
KEPT_SECONDS = 600.0
"""Seconds for which a run is still exported after it has left the list of runs, long enough for several scrapes."""


@dataclass
class _RunCounters:
    tokens: dict[str, int] = field(default_factory=lambda: {"prompt": 0, "cached": 0, "sampled": 0})
    refused: int = 0
    running: int = 0
    """Number of sequences in vLLM."""
    seconds: float = 0.0
    settled: float = 0.0
    """Value of `EngineUsage._per_sequence` up to which `seconds` has been counted."""
    left: float | None = None
    """Time at which the run left the list of runs, or None while it is in the list."""


class EngineUsage:
    """Counters of all runs since the process started."""

    def __init__(self, age: Callable[[], float] | None = None) -> None:
        """`age` returns the age of the process. The default is measured from the start of this process."""
        self._age = age or process_age()
        self._now = 0.0
        self._idle = 0.0
        self._running = 0
        self._per_sequence = 0.0
        """Device seconds of a hypothetical sequence that has been in vLLM since the start: the integral of 1 / (number
        of sequences in vLLM).
        """
        self._runs: dict[str, _RunCounters] = {}

    def set_runs(self, uids: Collection[str]) -> None:
        """Replace the current list of runs. New runs are exported with counts of zero."""
        self._advance()
        for uid in uids:
            self._runs.setdefault(uid, _RunCounters()).left = None
        for uid in [uid for uid, run in self._runs.items() if run.left is None and uid not in uids]:
            self._runs[uid].left = self._now
            self._runs[uid] = self._runs.pop(uid)  # to the end: `_runs` has former runs in the order of leaving
        self._drop_former()

    @contextmanager
    def request(self, uid: str, sequences: int = 1) -> Iterator[ResponseUsage]:
        """Count the sequences of a request while it is in vLLM. Yields the reader for its response, whose tokens are
        counted when the context ends.
        """
        self._advance()
        run = self._runs.setdefault(uid, _RunCounters())
        self._settle(run)
        run.running += sequences
        self._running += sequences
        response = ResponseUsage()
        try:
            yield response
        finally:
            self._advance()
            self._settle(run)
            run.running -= sequences
            self._running -= sequences
            if run.left is not None:
                # Its last tokens must be exported, too.
                run.left = self._now
                self._runs[uid] = self._runs.pop(uid)
            for kind, count in response.tokens.items():
                run.tokens[kind] += count

    def count_refusal(self, uid: str) -> None:
        """Count a request of a run that was refused with 429."""
        if uid in self._runs:
            self._runs[uid].refused += 1

    def export(self, waiting: int) -> Mapping[str, Any]:
        """Return the counters as a JSON object. `waiting` is the number of requests that wait for their turn."""
        self._advance()
        self._drop_former()
        for run in self._runs.values():
            self._settle(run)
        runs = {
            uid: {"tokens": run.tokens, "deviceSeconds": run.seconds, "refused": run.refused}
            for uid, run in self._runs.items()
        }
        return {"idleSeconds": self._idle, "waiting": waiting, "runs": runs}

    def _advance(self) -> None:
        now = max(self._now, self._age())
        if self._running:
            self._per_sequence += (now - self._now) / self._running
        else:
            self._idle += now - self._now
        self._now = now

    def _settle(self, run: _RunCounters) -> None:
        # Only additions, because Prometheus takes a counter that falls for one that has restarted.
        run.seconds += run.running * (self._per_sequence - run.settled)
        run.settled = self._per_sequence

    def _drop_former(self) -> None:
        former = [(uid, run.left) for uid, run in self._runs.items() if run.left is not None and not run.running]
        for uid, left in former:
            if self._now - left > KEPT_SECONDS or len(self._runs) > MAX_LISTED_RUNS:
                del self._runs[uid]


def process_age() -> Callable[[], float]:
    """Return a function that returns the seconds since this process started."""
    fields = Path("/proc/self/stat").read_text("utf-8").rpartition(")")[2].split()
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc_pid_stat(5)
    return lambda: time.clock_gettime(time.CLOCK_BOOTTIME) - started
