"""Time that a session spends between two steps, waiting for a batch and saving."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class StepTimer:
    """Timer that measures the time between two steps, for the metrics of the next step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._saved = 0.0

    def begin(self) -> dict[str, float]:
        """Start a step. Returns `time/wait_for_batch` and `time/save_ckpt` since the end of the previous step."""
        saved, self._saved = self._saved, 0.0
        return {"time/wait_for_batch": max(0.0, self._clock() - self._idle_since - saved), "time/save_ckpt": saved}

    def finish_step(self) -> None:
        """End a step, after its publication."""
        self._idle_since = self._clock()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Context for the part of saving that blocks training. Uploads run in the background."""
        began = self._clock()
        try:
            yield
        finally:
            self._saved += self._clock() - began
