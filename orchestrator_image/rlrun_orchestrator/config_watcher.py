"""Applies changes of the configuration during the run.

The operator writes a user's change into the ConfigMap that this process has mounted, and annotates the pod so that the
kubelet updates the files at once instead of within two minutes. This process applies only one change: more steps. All
other changes are handled by the operator (retention, deadlines) or rejected by the API server. A configuration that
belongs to another attempt, or has fewer steps, is ignored.
"""

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from rlrun.protocol.resolved import ResolvedRun

from rlrun_orchestrator.data.schedule import RunSchedule

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConfigChange:
    """Difference between the configuration in the file and the running attempt."""

    max_steps: int | None
    """Increased number of steps, or None if it was not increased."""
    ignored_fields: list[str]
    """Descriptions of differences that this process does not apply."""


def diff_configuration(run: ResolvedRun, max_steps: int, new: ResolvedRun) -> ConfigChange:
    """Compare `new` with a running attempt of `run` that ends after `max_steps` steps."""
    if new.run != run.run:
        other = f"it belongs to attempt {new.run.attempt} of {new.run.name}, and this is attempt {run.run.attempt}"
        return ConfigChange(None, [other])
    ignored = []
    steps = new.spec.max_steps
    if steps < max_steps:
        ignored.append(f"maxSteps {steps} is below {max_steps}")
    ours, theirs = (r.spec.model_dump(by_alias=True, exclude={"max_steps"}) for r in (run, new))
    ignored += [f"spec.{name}" for name in ours if ours[name] != theirs[name]]
    # A change of the packages is expected, because this process has reported them itself.
    parts = set(ResolvedRun.model_fields) - {"run", "spec", "environment_packages"}
    ignored += sorted(name for name in parts if getattr(run, name) != getattr(new, name))
    return ConfigChange(steps if steps > max_steps else None, ignored)


class ConfigWatcher:
    """Reads the configuration file every few seconds and applies an increased number of steps to the schedule."""

    def __init__(self, path: Path, run: ResolvedRun, interval: float, schedule: RunSchedule) -> None:
        self._path = path
        self._run = run
        self._interval = interval
        self._schedule = schedule
        self._last_contents: bytes | None = None

    async def watch(self) -> None:
        """Check the configuration file until cancelled."""
        while True:
            try:
                await self.check_once()
            except Exception:
                log.exception("could not apply the changed configuration")
            await asyncio.sleep(self._interval)

    async def check_once(self) -> None:
        """Apply the configuration file's content if it has changed since the last call."""
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
        except OSError as error:
            log.debug("%s: %s", self._path, error)
            return
        if data == self._last_contents:
            return
        self._last_contents = data
        try:
            new = ResolvedRun.parse(data)
        except ValueError as error:
            log.warning("ignoring %s: %s", self._path, error)
            return
        change = diff_configuration(self._run, self._schedule.max_steps, new)
        if change.ignored_fields:
            log.info("ignoring changes to the configuration: %s", ", ".join(change.ignored_fields))
        if change.max_steps is not None and not self._schedule.extend(change.max_steps):
            steps = self._schedule.max_steps
            log.warning("ignoring maxSteps %d: the run is already complete with %d steps", change.max_steps, steps)
