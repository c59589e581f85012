"""Changes of the configuration while the run lives.

The operator writes what a user changes into the ConfigMap that this process has mounted and annotates the pod, so that
the kubelet swaps the files at once; without the annotation it would take a minute or two. Only one change matters here:
more steps. The operator acts on the others itself (how many artifacts are kept, deadlines), or the API server refuses
them; and what does not fit the running attempt (another attempt's file, fewer steps) is not for this process.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlrun.schema.resolved import ResolvedRun

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Change:
    """What another configuration means for a run that lives."""

    run: ResolvedRun
    """The run with what it takes over."""
    taken: bool
    """Whether that differs from before."""
    ignored: list[str]
    """The rest, in words."""


def change(now: ResolvedRun, new: ResolvedRun) -> Change:
    """What `new` changes in a run that goes by `now`."""
    if new.run != now.run:
        told = f"the configuration is that of attempt {new.run.attempt} of {new.run.name}, this is {now.run.attempt}"
        return Change(now, False, [told])
    ignored = []
    steps = new.spec.max_steps
    if steps < now.spec.max_steps:
        ignored.append(f"maxSteps {steps} is below {now.spec.max_steps}")
    spec = now.spec.model_copy(update={"max_steps": max(steps, now.spec.max_steps)})
    run = now.model_copy(update={"spec": spec})
    old, other = (r.spec.model_dump(by_alias=True, exclude={"max_steps"}) for r in (now, new))
    ignored += [f"spec.{name}" for name in old if old[name] != other[name]]
    parts = set(ResolvedRun.model_fields) - {"run", "spec"}
    ignored += sorted(name for name in parts if getattr(now, name) != getattr(new, name))
    return Change(run, spec.max_steps > now.spec.max_steps, ignored)


class LiveConfiguration:
    """Reads the file every few seconds and hands on what the run takes over."""

    def __init__(self, path: Path, run: ResolvedRun, interval: float, apply: Callable[[ResolvedRun], bool]) -> None:
        """`apply` gets the run as it is from now on; False: it came too late."""
        self._path = path
        self._run = run
        self._interval = interval
        self._apply = apply
        self._seen: bytes | None = None

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("the changed configuration is not used")
            await asyncio.sleep(self._interval)

    async def look(self) -> None:
        """Takes over what the file says now, if it says something new."""
        try:
            data = await asyncio.to_thread(self._path.read_bytes)
        except OSError as error:
            log.debug("%s: %s", self._path, error)
            return
        if data == self._seen:
            return
        self._seen = data
        try:
            new = ResolvedRun.model_validate_json(data)
        except ValueError as error:
            log.warning("%s is not used: %s", self._path, error)
            return
        found = change(self._run, new)
        if found.ignored:
            log.info("the configuration has changed; not for this process: %s", ", ".join(found.ignored))
        if not found.taken:
            return
        steps = found.run.spec.max_steps
        if self._apply(found.run):
            log.info("maxSteps is raised from %d to %d", self._run.spec.max_steps, steps)
            self._run = found.run
        else:
            log.warning("maxSteps %d comes too late: the run is complete at %d", steps, self._run.spec.max_steps)
