"""Reconciler of runs: observe, plan, apply."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Protocol

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import RUN_UID_LABEL
from rlrun.kube.errors import TOO_LARGE, ApiError
from rlrun.kube.objects import Obj, label
from rlrun.kube.references import split_checkpoint_id

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.plan.actions import Plan
from rlrun_operator.planning.plan.admission import Admission
from rlrun_operator.planning.plan.observation import RunKey, RunObservation
from rlrun_operator.planning.plan.status_builder import to_clock
from rlrun_operator.planning.plan_run import plan_run
from rlrun_operator.planning.policies.children.refusal_report import report_unread
from rlrun_operator.planning.policies.ending.log_copies import pod_logs
from rlrun_operator.resources.platform import credentials_problem, run_layout, s3_variables
from rlrun_operator.runtime.metrics import RunPhaseCollector

log = logging.getLogger(__name__)


class AdmissionSource(Protocol):
    """Queue that decides when runs begin."""

    def answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        """Return the answer to the observed run, or None if no queue decides about it or it does not request a
        place."""
        ...

    def on_run_deleted(self, key: RunKey, pods: Iterable[Obj], now: datetime) -> bool:
        """Handle the deletion of a run. Returns True while its place is reserved because pods still terminate."""
        ...

    def on_reconcile_failed(self, key: RunKey, run: Obj | None, error: Exception, now: datetime) -> None:
        """Handle a failed reconcile. `run`: the object as last read, or None if it could not be read."""
        ...


class Reconciler:
    """Reconciler of one run per call."""

    def __init__(
        self,
        observer: Observer,
        applier: Applier,
        settings: OperatorSettings,
        phases: RunPhaseCollector,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        queue: AdmissionSource | None = None,
    ) -> None:
        """`queue`: None starts every run at once."""
        self._observer = observer
        self._applier = applier
        self._settings = settings
        self._phases = phases
        self._clock = clock
        self._queue = queue
        self._settled: dict[RunKey, str] = {}
        """Finished runs in which nothing is left to do, with the version of the object that was reconciled."""
        self._unsettled: set[RunKey] = set()
        """Other runs that were reconciled."""
        self._warm_starts: dict[RunKey, tuple[str, str]] = {}
        """Runs that have not begun, with namespace and name of the checkpoint that they start from."""

    def is_settled(self, key: RunKey, version: str) -> bool:
        """Return whether nothing is left to do for this version of a finished run. A change of it is an event."""
        return self._settled.get(key) == version

    def unsettled_runs(self) -> Collection[RunKey]:
        """Return the runs that were reconciled and in which something is left to do, finished ones too."""
        return self._unsettled

    def warm_starts(self, namespace: str, checkpoint: str) -> list[RunKey]:
        """Return the runs that wait for the checkpoint with this namespace and name."""
        return [key for key, awaited in self._warm_starts.items() if awaited == (namespace, checkpoint)]

    async def reconcile(self, key: RunKey) -> float | None:
        """Reconcile the run. Returns the seconds until the next reconcile, or None to wait for an event."""
        observation, began = None, self._observer.moment()
        try:
            observation = await self._observer.observe(key.namespace, key.name, now=to_clock(self._clock()))
            if observation is None:
                self._phases.set_phase(key.namespace, key.name, None)
                self._settled.pop(key, None)
                self._unsettled.discard(key)
                self._warm_starts.pop(key, None)
                self._observer.forget(key)
                return await self._end(key)
            now, observation, plan = self._plan(observation)
            if must_read_again(observation, plan):
                observation = await self._observer.observe(key.namespace, key.name, read_after=began)
                if observation is None:
                    return 0.0
                now, observation, plan = self._plan(observation)
            return await self._carry_out(key, observation, plan, now)
        except Exception as error:
            if self._queue is not None:
                run = None if observation is None else observation.run
                self._queue.on_reconcile_failed(key, run, error, to_clock(self._clock()))
            if isinstance(error, ApiError) and error.reason == TOO_LARGE:
                await self._report_unread(key, error)
            raise

    async def _report_unread(self, key: RunKey, error: ApiError) -> None:
        run = await self._observer.run(key)
        if run is not None:
            await self._applier.report(run, report_unread(run, error, to_clock(self._clock())))

    def _plan(self, observation: RunObservation) -> tuple[datetime, RunObservation, Plan]:
        now = to_clock(self._clock())
        if self._queue is not None:
            observation = replace(observation, admission=self._queue.answer(observation, now))
        return now, observation, plan_run(observation, self._settings, now)

    async def _carry_out(self, key: RunKey, observation: RunObservation, plan: Plan, now: datetime) -> float | None:
        if is_settled(observation, plan):
            self._settled[key] = str(observation.run["metadata"].get("resourceVersion"))
            self._unsettled.discard(key)
            self._observer.forget(key)
        else:
            self._settled.pop(key, None)
            self._unsettled.add(key)
        self._note_warm_start(key, observation, plan)
        plan = await self._applier.apply(observation, plan, now)
        if plan.status is not None and plan.status.phase is not None:
            self._phases.set_phase(key.namespace, key.name, plan.status.phase.value)
        return plan.requeue_after

    def _note_warm_start(self, key: RunKey, observation: RunObservation, plan: Plan) -> None:
        status = plan.status or RLRunStatus.parse(observation.run.get("status"))
        checkpoint = observation.run.get("spec", {}).get("checkpointId")
        if checkpoint and status.phase in (None, Phase.pending):
            self._warm_starts[key] = split_checkpoint_id(checkpoint, key.namespace)
        else:
            self._warm_starts.pop(key, None)

    async def _end(self, key: RunKey) -> float | None:
        """Give the place of a deleted run back and copy the logs of its terminating pods."""
        pods = [p for p in await self._observer.pods(key.namespace, key.name) if label(p, RUN_UID_LABEL)]
        keeps_place = self._queue is not None and self._queue.on_run_deleted(key, pods, to_clock(self._clock()))
        copies = [
            copy
            for uid in sorted({label(p, RUN_UID_LABEL) for p in pods})
            for copy in pod_logs(
                run_layout(self._settings, key.namespace, uid), [p for p in pods if label(p, RUN_UID_LABEL) == uid]
            )
        ]
        if copies:
            source = await self._observer.source_secret()
            is_usable = credentials_problem(self._settings, source) is None
            variables = s3_variables(self._settings, source or {}) if is_usable else {}
            await self._applier.logs.collect(key.namespace, variables, copies)
        return self._settings.poll_seconds if keeps_place else None


def must_read_again(observation: RunObservation, plan: Plan) -> bool:
    """Return whether the plan needs more than the observation, because a part of it was not read in this reconcile.

    A decision rests on what is true now. The cache may delay it, never cause it. What the index does not know of a
    finished run causes an event when it appears, so that nothing is left to do until then.
    """
    acts = not only_reports(observation, plan)
    if observation.rests_on_index and acts:
        return True
    was_kept = observation.has_kept_answers or observation.is_watched
    return was_kept and (acts or is_settled(observation, plan))


def is_settled(observation: RunObservation, plan: Plan) -> bool:
    """Return whether the run has finished and the plan changes nothing, now and when other runs end."""
    status = plan.status
    if status is None or status.phase is None or not status.phase.finished:
        return False
    if observation.catalog.has_deletions or observation.catalog.has_references:
        # Retention waits for other runs, or for the list of them. Nothing queues this run when they end.
        return False
    return not _has_actions(plan) and status == RLRunStatus.parse(observation.run.get("status"))


def only_reports(observation: RunObservation, plan: Plan) -> bool:
    """Return whether the plan writes no more than a status without a new attempt, a restart or the end of the run."""
    before = RLRunStatus.parse(observation.run.get("status"))
    return not _has_actions(plan) and _decisions(before) == _decisions(plan.status or before)


def _decisions(status: RLRunStatus) -> tuple[Any, ...]:
    """Return the irreversible facts of a status."""
    return status.attempt, status.restarts, status.run_restarts, status.completion_time


def _has_actions(plan: Plan) -> bool:
    # `records_artifacts` and `writes_children` only say what the lists are.
    return replace(plan, status=None, requeue_after=None, records_artifacts=False, writes_children=False) != Plan()
