"""Log of long steps with their durations, which the cache keeps for the estimates of later commands.

Steps may run in parallel threads. The names of running steps are printed twice a minute, because a silent five-minute
build looks like a hang. If the remaining steps are known, the same line shows their estimated duration.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from local_cluster.host.forecast import CommandSteps, in_words, seconds_left
from local_cluster.host.paths import paths

HEARTBEAT_SECONDS = 30.0


class StepLog:
    """Log of steps and their durations on stderr, because scripts read the stdout of commands."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._seconds: dict[str, float] = {}
        self._heart: threading.Thread | None = None
        self._plan = CommandSteps(())
        self._expected: Mapping[str, float] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        with self._lock:
            print(text, file=sys.stderr, flush=True)

    def expect(self, plan: CommandSteps, expected: Mapping[str, float], file: Path | None = None) -> None:
        """Announce the remaining steps and their estimated total duration.

        Args:
            plan: Remaining steps.
            expected: Seconds of each step on a machine with two cores. Recorded times of earlier commands replace them.
            file: File with the recorded times. Default: the file in the cache.
        """
        with self._lock:
            self._plan, self._expected = plan, {**expected, **_read_step_seconds(file or _file())}
        self.say(f"      {len(plan.steps)} long steps ahead, needed only once: {self._say_time_left()}")

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

    def save(self, file: Path | None = None) -> None:
        """Merge the step times of this process into a file. Default: the file in the cache."""
        target = file or _file()
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(json.dumps(_read_step_seconds(target) | self._seconds, indent=2, sort_keys=True) + "\n")
        except OSError as error:  # a full disk must not fail the cluster
            self.say(f"      could not save the step times: {error}")

    def _say_time_left(self) -> str:
        now = time.monotonic()
        with self._lock:
            running = {name: now - start for name, start in self._running.items()}
            return in_words(seconds_left(self._plan, self._expected, running, self._seconds)) + " left"

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
                ahead = any(step not in self._seconds for step in self._plan.steps)
            if running:
                self.say("      still running: " + ", ".join(running) + (f"; {self._say_time_left()}" if ahead else ""))


def _file() -> Path:
    return paths().cache / "step-seconds.json"


def _read_step_seconds(file: Path) -> dict[str, float]:
    try:
        known: dict[str, float] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return known


progress = StepLog()
