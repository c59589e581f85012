"""Client of the orchestrators' /status.

After the first answer one request per orchestrator hangs until the status has changed, so that a run between two steps
costs a request in WAIT_SECONDS and no look. Orchestrators of older versions have no versions in their answers; these
are asked at every look.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import SINCE, WAIT, RunStatus
from rlrun.service.client import RESPONSE_SECONDS, HttpClient
from rlrun.service.errors import RequestError
from typing_extensions import override

from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.metrics import WATCHED_ORCHESTRATORS
from rlrun_operator.runtime.rate_limit import RateLimit
from rlrun_operator.runtime.work_queue import Priority

log = logging.getLogger(__name__)

WAIT_SECONDS = 25.0
MAX_WATCHES = 2000
"""Maximum number of hanging requests. Further orchestrators are asked at every look."""
CHANGES_PER_SECOND = 50.0
"""Maximum rate of the progress of all runs together. Each change costs a look and a write of the status: about 10 ms of
CPU. A step makes two: one when it is done, and one when its policy is published."""
BURST_OF_CHANGES = 50


class OrchestratorClient(Protocol):
    """Client that reads the status of a run from its orchestrator."""

    async def status(self, key: RunKey, token: str | None = None, *, is_fresh: bool = False) -> RunStatus:
        """Return the status of the run, which asks for its token. Raises RequestError.

        `is_fresh`: the status of this moment. Else it may be as old as the pause between two changes.
        """

    def is_watched(self, key: RunKey) -> bool:
        """Return whether changes of this run's status are noticed without a look at the run."""

    def forget(self, key: RunKey) -> None:
        """End the watch of a run that has no orchestrator."""


@dataclass
class _Watch:
    """Hanging requests to one orchestrator."""

    token: str | None
    report: RunStatus
    task: "asyncio.Task[None] | None" = field(default=None)


def is_progress(before: RunStatus, after: RunStatus) -> bool:
    """Return whether only numbers have changed: a run that fails, waits or warns is shown at once."""
    return all(
        getattr(before, name) == getattr(after, name) for name in ("phase", "waiting_for", "warnings", "problem")
    )


class HttpOrchestratorClient(OrchestratorClient):
    """`OrchestratorClient` over HTTP.

    `changed` is called with each run whose status has changed or is unknown now, and the priority of a look at it.
    """

    def __init__(
        self,
        url_template: str,
        changed: Callable[[RunKey, Priority], None],
        pause_seconds: float,
        changes: RateLimit | None = None,
    ) -> None:
        """`pause_seconds`: time between two requests to one orchestrator, and so between two changes of a run.

        `changes`: limit of the progress of all runs together.
        """
        self._template = url_template
        self._changed = changed
        self._pause = pause_seconds
        self._changes = changes or RateLimit(CHANGES_PER_SECOND, BURST_OF_CHANGES, time.monotonic)
        self._http = HttpClient()
        self._hanging = HttpClient(WAIT_SECONDS + RESPONSE_SECONDS, connections=MAX_WATCHES)
        self._watches: dict[RunKey, _Watch] = {}

    @override
    async def status(self, key: RunKey, token: str | None = None, *, is_fresh: bool = False) -> RunStatus:
        watch = self._watches.get(key)
        if watch is not None and watch.token == token:
            if is_fresh:
                url = f"{self._url(key)}?{SINCE}="
                watch.report = await self._http.call("GET", url, RunStatus, headers=bearer(token))
            return watch.report
        self.forget(key)
        report = await self._http.call("GET", f"{self._url(key)}?{SINCE}=", RunStatus, headers=bearer(token))
        if report.version and key not in self._watches and len(self._watches) < MAX_WATCHES:
            self._watches[key] = watch = _Watch(token, report)
            watch.task = asyncio.create_task(self._follow(key, watch), name=f"status of {key}")
            WATCHED_ORCHESTRATORS.set(len(self._watches))
        return report

    @override
    def is_watched(self, key: RunKey) -> bool:
        return key in self._watches

    @override
    def forget(self, key: RunKey) -> None:
        watch = self._watches.pop(key, None)
        if watch is not None and watch.task is not None:
            watch.task.cancel()
        WATCHED_ORCHESTRATORS.set(len(self._watches))

    async def close(self) -> None:
        """End all watches and close the connections."""
        for key in list(self._watches):
            self.forget(key)
        await self._http.close()
        await self._hanging.close()

    async def _follow(self, key: RunKey, watch: _Watch) -> None:
        """Keep the report of the watch current until a request fails."""
        try:
            while True:
                await asyncio.sleep(self._pause)
                before = watch.report
                watch.report = await self._ask(key, watch, WAIT_SECONDS)
                if watch.report.version == before.version:
                    continue
                if is_progress(before, watch.report) and await self._changes.wait():
                    # The run has gone on while it waited for its turn: what it has done then counts as this change.
                    watch.report = await self._ask(key, watch, 0)
                self._changed(key, Priority.ROUTINE if is_progress(before, watch.report) else Priority.EVENT)
        except RequestError as error:
            log.debug("%s: the watch of its status has ended: %s", key, error)
        finally:
            # Look at the run now: the look polls the orchestrator itself and reports an error.
            if self._watches.get(key) is watch:
                del self._watches[key]
                WATCHED_ORCHESTRATORS.set(len(self._watches))
                self._changed(key, Priority.EVENT)

    async def _ask(self, key: RunKey, watch: _Watch, wait: float) -> RunStatus:
        url = f"{self._url(key)}?{SINCE}={watch.report.version}&{WAIT}={wait:g}"
        return await self._hanging.call("GET", url, RunStatus, headers=bearer(watch.token))

    def _url(self, key: RunKey) -> str:
        return self._template.format(namespace=key.namespace, name=key.name)
