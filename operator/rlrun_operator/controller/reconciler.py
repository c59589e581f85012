"""Reconciles runs: observe, plan, apply."""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import CONFLICT
from rlrun.kube.errors import TOO_LARGE, ApiError
from rlrun.kube.kinds import POD_CONTROLLERS
from rlrun.kube.objects import phase_of

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.actions import Plan
from rlrun_operator.planning.observation import RunKey, RunObservation, SlotUnconfirmed
from rlrun_operator.planning.plan_run import plan_run
from rlrun_operator.planning.refusals import report_unread
from rlrun_operator.planning.status import to_clock

log = logging.getLogger(__name__)

NAME_TIME = timedelta(hours=1)
"""Time for which the name of a deleted run is remembered. The run's pods and delayed watch events may outlast the run
by minutes.
"""


class Reconciler:
    """Reconciles runs; each call to `reconcile` handles one run."""

    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        settings: OperatorSettings,
        clock: Callable[[], datetime],
        queue: AdmissionQueue | None = None,
    ) -> None:
        """`clock` returns the API server's time. If `queue` is None, every run starts immediately."""
        self._observer = observer
        self._applier = applier
        self._settings = settings
        self._clock = clock
        self._queue = queue
        self._settled: dict[RunKey, str] = {}
        """Finished runs that need no further action, with the reconciled version of the object."""
        self._names: set[RunKey] = set()
        """Names of existing runs that were reconciled."""
        self._gone: dict[RunKey, datetime] = {}
        """Names of deleted runs, with the time at which the deletion was noticed, oldest first."""

    def is_settled(self, key: RunKey, version: str) -> bool:
        """Return whether this version of a finished run needs no further action. A later change of the run causes an
        event.
        """
        return self._settled.get(key) == version

    async def reconcile(self, key: RunKey) -> float | None:
        """Reconcile the run. Returns the seconds until the next reconcile, or None to wait for an event.

        Raises any error of the reconcile, after the queue has been told. A conflict is retried once.
        """
        observation = None
        # A new name has no pods of an earlier run and no earlier decisions.
        is_new = key not in self._names
        self._names.add(key)
        self._gone.pop(key, None)
        try:
            observation, plan, now = await self._observe(key)
            if observation is None or (observation.is_cached and needs_confirmation(observation, plan, is_new=is_new)):
                observation, plan, now = await self._observe(key, is_fresh=True)
            try:
                return await self._carry_out(key, observation, plan, now)
            except ApiError as error:
                if error.status != CONFLICT:
                    raise
                log.info("%s has changed since it was read; reading it again: %s", key, error)
            observation, plan, now = await self._observe(key, is_fresh=True)
            return await self._carry_out(key, observation, plan, now)
        except Exception as error:
            if self._queue is not None:
                run = None if observation is None else observation.run
                self._queue.on_reconcile_failed(key, run, error, to_clock(self._clock()))
            if isinstance(error, ApiError) and error.reason == TOO_LARGE:
                await self._report_unread(key, error)
            raise

    def _forget_names(self, key: RunKey, now: datetime) -> None:
        """Record the deletion of a run, and forget names of runs deleted more than NAME_TIME ago."""
        self._gone[key] = now
        while now - self._gone[first := next(iter(self._gone))] > NAME_TIME:
            del self._gone[first]
            self._names.discard(first)

    async def _report_unread(self, key: RunKey, error: ApiError) -> None:
        run = await self._observer.run(key)
        if run is not None:
            await self._applier.report(run, report_unread(run, error, to_clock(self._clock())))

    async def _observe(self, key: RunKey, *, is_fresh: bool = False) -> tuple[RunObservation | None, Plan, datetime]:
        """Observe the run. Returns the observation, its plan, and the time of the plan."""
        began = to_clock(self._clock())
        observation = await self._observer.observe(key.namespace, key.name, began, is_fresh=is_fresh)
        now = to_clock(self._clock())
        if observation is None:
            return None, Plan(), now
        if self._queue is not None and observation.tenancy_problem is None:
            try:
                observation = replace(observation, admission=self._queue.answer(observation, now))
            except SlotUnconfirmed:
                return await self._observe(key, is_fresh=True)
        return observation, plan_run(observation, self._settings, now), now

    async def _carry_out(
        self, key: RunKey, observation: RunObservation | None, plan: Plan, now: datetime
    ) -> float | None:
        if observation is None:
            self._forget_names(key, now)
            self._settled.pop(key, None)
            return await self._end(key)
        if is_settled(observation, plan):
            self._settled[key] = str(observation.run["metadata"].get("resourceVersion"))
            self._observer.forget(key)
        else:
            self._settled.pop(key, None)
        if plan.removals:
            # The last S3 listing contains the files that are deleted now. A later plan would recreate their objects
            # from that listing if retention keeps more by then, or does not know the references.
            self._observer.forget(key)
        plan = await self._applier.apply(observation, plan, now)
        return plan.requeue_after

    async def _end(self, key: RunKey) -> float | None:
        """Release the slot of a deleted run once its pods have ended. Returns the seconds until the next reconcile, or
        None if the run holds no slot.
        """
        if self._queue is None:
            return None
        pods = [pod for pod in await self._observer.pods(key.namespace, key.name) if pod.run_uid]
        keeps_place = self._queue.on_run_deleted(key, pods, to_clock(self._clock()))
        return self._settings.poll_seconds if keeps_place else None


def needs_confirmation(observation: RunObservation, plan: Plan, *, is_new: bool) -> bool:
    """Return whether the plan contains an irreversible decision: a deletion, a start of pods, an end of the run.

    Such a decision needs fresh facts: stale informers may delay it, but must not cause it. `is_new` means that this
    process sees the name of the run for the first time, so its first pods may start without fresh facts.
    """
    before = observation.status
    deletes = plan.deletes or plan.removals or plan.purge is not None or plan.remove_finalizer or plan.delete_run
    marks = any(phase_of(obj) == ArtifactPhase.deleting.value for obj in plan.artifact_statuses)
    starts = not (is_new and before.phase is None) and any(
        obj["kind"] in POD_CONTROLLERS and not observation.has_object(obj["kind"], obj["metadata"]["name"])
        for obj in plan.applies
    )
    after = plan.status or before
    decides = _decisions(before) != _decisions(after) or (_has_place(before) and not _has_place(after))
    return bool(deletes or marks or starts or decides)


def is_settled(observation: RunObservation, plan: Plan) -> bool:
    """Return whether the run has finished and needs no action, now or when other runs end."""
    status = plan.status
    if status is None or status.phase is None or not status.phase.finished:
        return False
    if observation.catalog.has_deletions or observation.catalog.has_references:
        # Retention waits for other runs, or for their list. The end of other runs does not queue this run.
        return False
    return not _has_actions(plan) and status == observation.status


def _has_place(status: RLRunStatus) -> bool:
    return status.queue is not None and status.queue.admitted_time is not None


def _decisions(status: RLRunStatus) -> tuple[Any, ...]:
    """Return the irreversible decisions in a status."""
    return status.attempt, status.restarts, status.run_restarts, status.completion_time


def _has_actions(plan: Plan) -> bool:
    # `records_artifacts` and `writes_children` only describe the lists.
    return replace(plan, status=None, requeue_after=None, records_artifacts=False, writes_children=False) != Plan()
