"""The loop: take a key, look, decide, act."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rlrun.artifacts.store import StoreError
from rlrun.controller import cluster as k
from rlrun.controller.apply import Applier
from rlrun.controller.metrics import ERRORS, RECONCILE_SECONDS, RunDirectory
from rlrun.controller.observe import Observer
from rlrun.controller.plan.run import plan_run
from rlrun.controller.workqueue import WorkQueue
from rlrun.resources.settings import Settings

log = logging.getLogger(__name__)

RECONCILE_DEADLINE = 180.0


@dataclass(frozen=True, order=True)
class RunKey:
    """A run by namespace and name."""

    namespace: str
    name: str


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
            return None
        plan = plan_run(seen, self._settings, self._clock())
        await self._applier.apply(seen, plan)
        if plan.status is not None and plan.status.phase is not None:
            self._directory.note(key.namespace, key.name, plan.status.phase.value)
        return plan.requeue_after


async def work(queue: WorkQueue[RunKey], reconcile: Callable[[RunKey], Awaitable[float | None]]) -> None:
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
            expected = isinstance(error, k.ApiError | StoreError | TimeoutError)
            log.log(
                logging.WARNING if expected else logging.ERROR,
                "run %s/%s: %s; again in %.1f s",
                key.namespace,
                key.name,
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
    if isinstance(error, k.ApiError):
        return f"Api{error.reason}"
    if isinstance(error, StoreError):
        return error.reason
    return type(error).__name__
