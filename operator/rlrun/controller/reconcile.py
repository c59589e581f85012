"""The loop: take a key, look, decide, act."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from rlrun.artifacts.store import StoreError
from rlrun.controller.apply import Applier
from rlrun.controller.metrics import ERRORS, RECONCILE_SECONDS, RunDirectory
from rlrun.controller.observe import Observer
from rlrun.controller.plan.logs import logs_of_pods
from rlrun.controller.plan.run import plan_run
from rlrun.controller.workqueue import WorkQueue
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import label
from rlrun.resources.platform import run_layout, s3_variables
from rlrun.resources.settings import Settings
from rlrun.schema.labels import RUN_UID_LABEL

log = logging.getLogger(__name__)

RECONCILE_DEADLINE = 180.0
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, order=True)
class RunKey:
    """A run by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"run {self.namespace}/{self.name}"


class Reconciler:
    """Reconciles one run at a time per worker."""

    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        settings: Settings,
        directory: RunDirectory,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._observer = observer
        self._applier = applier
        self._settings = settings
        self._directory = directory
        self._clock = clock

    async def reconcile(self, key: RunKey) -> float | None:
        """One round. Returns when to look again, in seconds; None: when something happens."""
        seen = await self._observer.observe(key.namespace, key.name)
        if seen is None:
            self._directory.note(key.namespace, key.name, None)
            await self._keep_last_words(key)
            return None
        plan = plan_run(seen, self._settings, self._clock())
        await self._applier.apply(seen, plan)
        if plan.status is not None and plan.status.phase is not None:
            self._directory.note(key.namespace, key.name, plan.status.phase.value)
        return plan.requeue_after

    async def _keep_last_words(self, key: RunKey) -> None:
        """The logs of a run that was deleted and whose pods are ending."""
        pods = [p for p in await self._observer.pods(key.namespace, key.name) if label(p, RUN_UID_LABEL)]
        copies = [
            copy
            for uid in sorted({label(p, RUN_UID_LABEL) for p in pods})
            for copy in logs_of_pods(
                run_layout(self._settings, key.namespace, uid), [p for p in pods if label(p, RUN_UID_LABEL) == uid]
            )
        ]
        if copies:
            source = await self._observer.source_secret()
            variables = s3_variables(self._settings, source) if source else {}
            await self._applier.logs.keep(key.namespace, variables, copies)


async def work(queue: WorkQueue[K], reconcile: Callable[[K], Awaitable[float | None]]) -> None:
    """One worker, until it is cancelled."""
    while True:
        key = await queue.get()
        started = time.monotonic()
        try:
            again = await asyncio.wait_for(reconcile(key), RECONCILE_DEADLINE)
        except asyncio.CancelledError:
            queue.done(key)
            raise
        except Exception as error:
            reason = error_reason(error)
            ERRORS.labels(reason).inc()
            delay = queue.retry(key)
            expected = isinstance(error, ApiError | StoreError | TimeoutError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "%s: %s; again in %.1f s",
                key,
                error or reason,
                delay,
                exc_info=not expected,
            )
        else:
            queue.forget(key)
            if again is not None:
                queue.add_after(key, again)
        finally:
            RECONCILE_SECONDS.observe(time.monotonic() - started)
        queue.done(key)


def error_reason(error: Exception) -> str:
    """A label of low cardinality."""
    if isinstance(error, ApiError):
        return f"Api{error.reason}"
    if isinstance(error, StoreError):
        return error.reason
    return type(error).__name__
