"""Seconds until an engine is ready, and the start of one on a cache that an earlier one filled."""

import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.gpu.pod_processes import Planned, started

ENGINE = "vllm"
LIMIT_SECONDS = 300.0
POLL_SECONDS = 0.2


def answers(port: int) -> bool:
    """Return whether the engine on this port is ready, as its readiness probe sees it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def seconds_to_start(planned: Sequence[Planned], port: int, folder: Path, limit: float = LIMIT_SECONDS) -> float | None:
    """Start the run's engine alone, with its volumes as they are, and stop it. None: it was not ready in `limit`.

    Its log is `<folder>/vllm-again.log`.
    """
    [engine] = [process for process in planned if process.name == ENGINE]
    began = time.monotonic()
    with started([replace(engine, name=f"{ENGINE}-again")], folder) as running:
        while not answers(port):
            ended = any(process.poll() is not None for process in running.values())
            if ended or time.monotonic() > began + limit:
                return None
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began
