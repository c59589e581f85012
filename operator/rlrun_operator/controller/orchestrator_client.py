"""Client for the orchestrators' `/status` endpoint.

The client long-polls each orchestrator: a request returns when the status has changed, so a run between two steps costs
one request per WAIT_SECONDS and no reconcile. An orchestrator that does not respond is polled less often the longer it
is silent. A reconcile waits for a response only before a decision, and up to FIRST_SECONDS for an orchestrator's first
response: many orchestrators may be on a lost node, and each would block a worker for seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

from rlrun.api.base.received import limits_of
from rlrun.constants import Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import SINCE, WAIT, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.service.client import HttpClient, parse
from rlrun.service.errors import RequestError, ServiceUnavailable
from rlrun.service.tenant_quota import QuotaResult, TenantQuota

from rlrun_operator.planning.observation import RunKey
from rlrun_operator.planning.readiness import SILENT_SECONDS, moves_progress_only
from rlrun_operator.runtime.metrics import POLL_ERRORS, WATCHED_ORCHESTRATORS
from rlrun_operator.runtime.rate_limit import FairRateLimit, RateLimit
from rlrun_operator.runtime.work_queue import Priority

log = logging.getLogger(__name__)

FIRST_SECONDS = 0.5
"""Seconds for which a reconcile waits for an orchestrator's first response. A later response causes another reconcile.
"""
WAIT_SECONDS = 25.0
LATE_SECONDS = 10.0
"""Seconds after WAIT_SECONDS within which a response is accepted. An operator short of CPU time reads responses late.
"""
LONGEST_PAUSE = 20.0
"""Maximum pause in seconds between two requests to an orchestrator that does not respond."""
PARSE_SHARE = 0.1
"""Maximum share of the event loop's time for parsing responses of one namespace's orchestrators."""
LONGEST_REST = 60.0
"""Maximum pause in seconds after a response that was expensive to parse."""
MAX_WATCHES = 2000
"""Maximum number of watched orchestrators. A namespace gets another watch only if more watches are free than it
uses. Other orchestrators are polled in every reconcile, even if they do not respond.
"""
CHANGES_PER_SECOND = 50.0
"""Maximum number of progress updates per second, over all runs. Each update writes a status, which mainly costs CPU
time in the API server. A step causes one update; the policy version after the step is shown with the next update.
"""
BURST_OF_CHANGES = 50
WHOLE_FIRST = (Priority.EVENT, Priority.ROUTINE, Priority.PROGRESS)
"""Priorities, the most urgent first. A run with several pending changes is queued at the most urgent of them."""


@dataclass
class _Watch:
    """Sequential requests to one orchestrator."""

    token: str | None
    report: RunStatus | None = None
    """Last status received."""
    error: RequestError | None = None
    """Error of the last request, or None if it succeeded."""
    silent_since: float = 0.0
    """Time at which the first response of the current series of failures was due."""
    is_silent: bool = False
    """True if there was no response for SILENT_SECONDS."""
    first: "asyncio.Task[Priority | None] | None" = None
    """Task of the first request."""
    parse_seconds: float = 0.0
    """CPU time for parsing responses since the last pause."""
    is_relied_on: bool = False
    """True once a reconcile has used the watch without waiting for a pending request. From then on, changes must cause
    a reconcile.
    """
    task: "asyncio.Task[None] | None" = None
    """Task of the first and all later requests."""

    def end(self) -> None:
        """Cancel the requests."""
        for task in (self.first, self.task):
            if task is not None:
                task.cancel()

    def on_answer(self, report: RunStatus) -> Priority | None:
        """Record a response. Returns the priority at which to queue the run, or None if nothing has changed."""
        before, was_silent = self.report, self.is_silent
        self.report, self.error, self.is_silent = report, None, False
        if before is not None and before.version == report.version and not was_silent:
            return None
        if before is None or not has_only_numbers(before, report):
            return Priority.EVENT
        return Priority.PROGRESS if moves_progress_only(before, report) and not was_silent else Priority.ROUTINE

    def on_failure(self, error: RequestError, due: float, now: float) -> Priority | None:
        """Record a failed request. Returns the priority at which to queue the run, or None if nothing has changed.

        A single failure does not queue the run; failures for SILENT_SECONDS do. `due` is the time at which the response
        was due.
        """
        POLL_ERRORS.inc()
        self.silent_since = min(due, now) if self.error is None else self.silent_since
        self.error, was_silent = error.to_keep(), self.is_silent
        self.is_silent = self.silent_seconds(now) >= SILENT_SECONDS
        return Priority.EVENT if self.is_silent and not was_silent else None

    def silent_seconds(self, now: float) -> float:
        return 0.0 if self.error is None else now - self.silent_since

    def last_answer(self) -> RunStatus:
        """Return the last status. Raises RequestError if there is none or it is older than SILENT_SECONDS."""
        if self.error is not None and (self.report is None or self.is_silent):
            raise self.error.to_keep()
        if self.report is None:
            raise ServiceUnavailable(
                Problem(reason=Reason.UNREACHABLE, message=("The orchestrator has not responded yet."))
            )
        return self.report


def pause_after(silent: float, pause: float, parse_seconds: float = 0.0, watches: int = 1) -> float:
    """Return the seconds until the next request to an orchestrator that has been silent for `silent` seconds.

    `pause` is the minimum, which applies to an orchestrator that responds. The pause grows to a tenth of the silence,
    at most LONGEST_PAUSE, so that an orchestrator that starts is noticed soon. `parse_seconds` is the CPU time for the
    latest responses. Each of the namespace's `watches` may use an equal part of PARSE_SHARE; a higher CPU time extends
    the pause, to at most LONGEST_REST.
    """
    return max(pause, min(silent / 10, LONGEST_PAUSE), min(parse_seconds * watches / PARSE_SHARE, LONGEST_REST))


def has_only_numbers(before: RunStatus, after: RunStatus) -> bool:
    """Return whether two reports differ in numbers only, not in phase, wait, warnings or problem."""
    return all(
        getattr(before, name) == getattr(after, name) for name in ("phase", "waiting_for", "warnings", "problem")
    )


async def _fetch(http: HttpClient, url: str, watch: _Watch) -> RunStatus:
    """Request the status, and record the time to parse it. Raises RequestError."""
    data = await http.fetch("GET", url, limits_of(RunStatus).size, headers=bearer(watch.token))
    began = thread_time()
    try:
        return parse(RunStatus, data, f"GET {url}")
    finally:
        watch.parse_seconds += thread_time() - began


class OrchestratorClient:
    """Client that reads the status of a run from its orchestrator.

    When a run's status changes, has been unknown for SILENT_SECONDS, or is known again, calls `changed` with the run
    and the priority at which to queue it.
    """

    def __init__(
        self,
        url_template: str,
        changed: Callable[[RunKey, Priority], None],
        pause_seconds: float,
        changes: RateLimit | None = None,
        clock: Callable[[], float] = time.monotonic,
        watches: int = MAX_WATCHES,
    ) -> None:
        """`pause_seconds` is the minimum time between two requests to one orchestrator. `changes` limits the rate of
        progress updates, shared round-robin between namespaces. `watches` is the maximum number of watched
        orchestrators.
        """
        self._template = url_template
        self._changed = changed
        self._pause = pause_seconds
        self._changes = FairRateLimit(changes or RateLimit(CHANGES_PER_SECOND, BURST_OF_CHANGES, clock))
        self._clock = clock
        self._http = HttpClient(connections=MAX_WATCHES)
        self._asking_again = HttpClient(LATE_SECONDS, connections=MAX_WATCHES)
        self._hanging = HttpClient(WAIT_SECONDS + LATE_SECONDS, connections=MAX_WATCHES)
        self._watches: dict[RunKey, _Watch] = {}
        self._quota = TenantQuota(watches, watches)
        """Quota of watches per namespace."""

    async def status(self, key: RunKey, token: str | None = None, *, is_fresh: bool = False) -> RunStatus:
        """Return the status of the run. Raises RequestError if the orchestrator does not respond, or has not responded
        yet. `token` is the run's token, which the orchestrator requires.

        If `is_fresh`, the current status is requested. Otherwise the status may be as old as the pause between two
        requests, or SILENT_SECONDS if the orchestrator does not respond.
        """
        watch = self._watches.get(key)
        if watch is not None and watch.token == token:
            if is_fresh:
                await self._refresh(key, watch)
            return watch.last_answer()
        if watch is not None:
            self.forget(key)
        if self._quota.take(key.namespace) is not QuotaResult.granted:
            # The orchestrator is not watched.
            asked = _Watch(token)
            await self._read(self._http, self._asking(key), asked)
            return asked.last_answer()
        watch = self._watches[key] = _Watch(token)
        watch.first = asyncio.create_task(self._read(self._http, self._asking(key), watch))
        watch.task = asyncio.create_task(self._follow(key, watch, watch.first), name=f"status of {key}")
        WATCHED_ORCHESTRATORS.set(len(self._watches))
        await asyncio.wait({watch.first}, timeout=None if is_fresh else FIRST_SECONDS)
        if not watch.first.done():
            watch.is_relied_on = True
        elif not watch.first.cancelled():
            watch.first.result()  # raises an error of the operator itself
        return watch.last_answer()

    async def _refresh(self, key: RunKey, watch: _Watch) -> None:
        """Poll a watched orchestrator immediately. Raises RequestError if this request fails and no other request has
        succeeded in the meantime.

        The error does not affect the watch, whose pending long poll is more reliable.
        """
        before = watch.report
        try:
            watch.on_answer(await _fetch(self._http, self._asking(key), watch))
        except RequestError:
            if watch.report is before:
                raise

    def is_watched(self, key: RunKey) -> bool:
        """Return whether every change of the run's status, including the first response, causes a reconcile or a
        progress update.
        """
        return key in self._watches

    def silent_seconds(self, key: RunKey) -> float:
        """Return the seconds for which the run's orchestrator has not responded, or 0 if the last request succeeded or
        the orchestrator is not watched.
        """
        watch = self._watches.get(key)
        return 0.0 if watch is None else watch.silent_seconds(self._clock())

    def known_report(self, key: RunKey) -> RunStatus | None:
        """Return the last status from the run's orchestrator, or None if it does not respond or is not watched."""
        watch = self._watches.get(key)
        return None if watch is None or watch.error is not None else watch.report

    def forget(self, key: RunKey) -> None:
        """Stop watching the run's orchestrator, if it is watched."""
        watch = self._watches.get(key)
        if watch is not None:
            self._drop(key)
            watch.end()

    async def close(self) -> None:
        """Stop all watches and close the connections."""
        for key in list(self._watches):
            self.forget(key)
        await self._http.close()
        await self._asking_again.close()
        await self._hanging.close()

    async def _follow(self, key: RunKey, watch: _Watch, first: "asyncio.Task[Priority | None]") -> None:
        """Keep the watch's report up to date, and call `changed` for each relevant change."""
        try:
            priority = await first
            if priority is not None and watch.is_relied_on:
                self._changed(key, priority)
            while True:
                watch.is_relied_on = True
                await asyncio.sleep(self._pause_of(key, watch))
                priority = await self._ask(key, watch, WAIT_SECONDS if watch.error is None else 0)
                if priority not in (None, Priority.EVENT) and await self._changes.wait(key.namespace):
                    # The run has made progress while this change waited for the rate limit. Report both as one change.
                    later = await self._ask(key, watch, 0)
                    priority = min(filter(None, (priority, later)), key=WHOLE_FIRST.index)
                if priority is not None:
                    self._changed(key, priority)
        except Exception:
            log.exception("Watching the orchestrator of %s failed with an internal error; the watch is restarted", key)
        finally:
            if self._watches.get(key) is watch:
                self._drop(key)
                if watch.is_relied_on:
                    # Reconcile the run now: the reconcile polls the orchestrator itself.
                    self._changed(key, Priority.EVENT)

    def _pause_of(self, key: RunKey, watch: _Watch) -> float:
        spent, watch.parse_seconds = watch.parse_seconds, 0.0
        silent = watch.silent_seconds(self._clock())
        return pause_after(silent, self._pause, spent, self._quota.uses_of(key.namespace))

    def _drop(self, key: RunKey) -> None:
        """Remove a watch and release its quota."""
        del self._watches[key]
        self._quota.release(key.namespace)
        WATCHED_ORCHESTRATORS.set(len(self._watches))

    async def _ask(self, key: RunKey, watch: _Watch, wait: float) -> Priority | None:
        """Wait for a status that differs from the last one.

        Returns the priority at which to queue the run, or None if nothing has changed.
        """
        version = "" if watch.report is None else watch.report.version or ""
        http = self._hanging if wait else self._asking_again
        return await self._read(http, f"{self._asking(key)}{version}&{WAIT}={wait:g}", watch, wait)

    async def _read(self, http: HttpClient, url: str, watch: _Watch, wait: float = 0) -> Priority | None:
        due = self._clock() + wait
        try:
            return watch.on_answer(await _fetch(http, url, watch))
        except RequestError as error:
            log.debug("No status from %s: %s", url, error)
            return watch.on_failure(error, due, self._clock())

    def _asking(self, key: RunKey) -> str:
        return f"{self._template.format(namespace=key.namespace, name=key.name)}?{SINCE}="
