"""Number of steps of the run, and the artifacts that are due after each."""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class RunSchedule:
    """Number of steps and intervals of the run. All parts of the process share this object, and only `extend` changes
    it.
    """

    def __init__(
        self,
        max_steps: int,
        supervised_steps: int | None = 0,
        checkpoint_interval: int = 0,
        adapter_interval: int = 0,
    ) -> None:
        """`supervised_steps` is the number of initial steps that learn from demonstrations. If it is None, every step
        learns from demonstrations, including the steps that `extend` adds. Intervals are numbers of steps; with
        interval 0 only the last step has an artifact.
        """
        self.max_steps = max_steps
        self._supervised_steps = supervised_steps
        self._checkpoint_interval = checkpoint_interval
        self._adapter_interval = adapter_interval
        self._complete = False
        self._callbacks: list[Callable[[], None]] = []

    @property
    def supervised_steps(self) -> int:
        """Number of initial steps that learn from demonstrations."""
        return self.max_steps if self._supervised_steps is None else self._supervised_steps

    def checkpoint_due(self, step: int) -> bool:
        """Return True if a checkpoint follows `step`: at every interval and after the last step."""
        return self._due(step, self._checkpoint_interval)

    def adapter_due(self, step: int) -> bool:
        """Return True if an adapter follows `step`: at every interval and after the last step."""
        return self._due(step, self._adapter_interval)

    def is_last(self, step: int) -> bool:
        """Return True if the run needs no step after `step`."""
        return step >= self.max_steps

    def extend(self, max_steps: int) -> bool:
        """Increase the number of steps and call the subscribers. Returns False, without a change, if the run already
        has as many steps or is complete.
        """
        if self._complete or max_steps <= self.max_steps:
            return False
        log.info("spec.maxSteps was increased from %d to %d", self.max_steps, max_steps)
        self.max_steps = max_steps
        for callback in self._callbacks:
            callback()
        return True

    def complete(self) -> None:
        """Reject every later extension, because the last artifacts are in S3 and the process ends."""
        self._complete = True

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each extension."""
        self._callbacks.append(callback)

    def _due(self, step: int, interval: int) -> bool:
        return self.is_last(step) or (interval > 0 and step % interval == 0)
