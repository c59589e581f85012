"""What a session spends its time on between two steps: waiting for the next batch, and saving."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Pace:
    """Seconds since the step before, told with the next one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._idle_since = clock()
        self._saved = 0.0

    def begin(self) -> dict[str, float]:
        """A batch is here: `time/wait_for_batch` and `time/save_ckpt` since the last step was done."""
        saved, self._saved = self._saved, 0.0
        return {"time/wait_for_batch": max(0.0, self._clock() - self._idle_since - saved), "time/save_ckpt": saved}

    def done(self) -> None:
        """The step is made and published."""
        self._idle_since = self._clock()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around what a checkpoint or an adapter keeps the trainer from; their upload goes on beside it."""
        began = self._clock()
        try:
            yield
        finally:
            self._saved += self._clock() - began
