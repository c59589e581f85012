"""Log of long steps with their durations, also written to a file for CI.

Steps may run in parallel threads. Running steps are repeated twice a minute, because a silent five-minute build looks
like a hang.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_cluster.host.paths import REPOSITORY

TIMINGS = REPOSITORY / "build" / "local-cluster-timings.json"
HEARTBEAT_SECONDS = 30.0


class StepLog:
    """Log of steps on stderr, because scripts read the stdout of commands, with the time of each step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._heart: threading.Thread | None = None

    def say(self, text: str) -> None:
        """Print one line."""
        with self._lock:
            print(text, file=sys.stderr, flush=True)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print a step, run the body, print its duration."""
        self.say(f"  ... {name}")
        start = time.monotonic()
        with self._lock:
            self._running[name] = start
        self._start_heart()
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            seconds = time.monotonic() - start
            with self._lock:
                self._running.pop(name, None)
                self._seconds[name] = round(seconds, 1)
            self.say(f"{seconds:5.1f}s {name}: {outcome}")

    def save(self, file: Path = TIMINGS) -> None:
        """Merge the step times of this process into the timings file."""
        known: dict[str, float] = {}
        if file.exists():
            try:
                known = json.loads(file.read_text())
            except ValueError:
                known = {}
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(known | self._seconds, indent=2, sort_keys=True) + "\n")
        except OSError as error:  # a read-only checkout must not fail the cluster
            self.say(f"      timings not written: {error}")

    def _start_heart(self) -> None:
        with self._lock:
            if self._heart is None:
                self._heart = threading.Thread(target=self._beat, daemon=True, name="progress")
                self._heart.start()

    def _beat(self) -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            now = time.monotonic()
            with self._lock:
                running = [f"{name} ({now - start:.0f}s)" for name, start in self._running.items()]
            if running:
                self.say("      still running: " + ", ".join(running))


progress = StepLog()
