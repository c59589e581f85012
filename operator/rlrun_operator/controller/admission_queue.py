"""The built-in queue: decides which runs are admitted, except runs in a LocalQueue of Kueue.

If the platform has no limits, the queue contains only the runs that use a shared pool, whose slots are limited.

The queue contains every run that has a slot or waits for one. It is filled from the statuses of all runs when the
operator starts, and updated by each reconcile. The queue sends no requests itself. `answer` does not await, so workers
are answered one at a time, and an admission counts immediately, before it is in the run's status. A run keeps its slot
until none of its pods can run.

The order is recomputed only when a run arrives, leaves or changes, or when a time limit of the queue expires. This
takes about 10 µs per waiting run. Then the runs that get a slot are reconciled, and those of the first
`EXACT_RUNS_AHEAD` waiting runs whose position has changed.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus, RunQueue
from rlrun.constants import CONFLICT, ConditionType, Reason
from rlrun.kube.conditions import find_condition, parse_time, seconds
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj, is_client_run
from rlrun.kube.pods import Pod
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.config.quantities import from_millis, to_millis
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.beginning import EXACT_RUNS_AHEAD
from rlrun_operator.planning.ending import may_write
from rlrun_operator.planning.kueue_admission import kueue_answer
from rlrun_operator.planning.observation import (
    Admission,
    Admitted,
    Refused,
    RunKey,
    RunObservation,
    SlotUnconfirmed,
    Waiting,
)
from rlrun_operator.planning.queue import (
    Demand,
    PoolSlots,
    QueuedRun,
    QueueLimits,
    QueuePosition,
    awaited_trainer,
    exceeded_capacity,
    exceeding_problem,
    may_have_pods,
    next_change,
    pool_full_problem,
    queue_positions,
    requests_of_pods,
    slot_request,
    waiting_problem,
)
from rlrun_operator.planning.resolution import shares_engines
from rlrun_operator.planning.spec import parse_spec
from rlrun_operator.planning.status import is_finished, is_true, read_status

log = logging.getLogger(__name__)

OFFER_SECONDS = 60.0
"""Seconds within which a run must be reconciled after it is offered a slot. After that, the next run is offered the
slot.
"""
OFFER_TIME = timedelta(seconds=OFFER_SECONDS)


@dataclass
class _Entry(QueuedRun):
    """Run that has a slot or waits for one."""

    admitted_time: datetime | None = None
    """Time of the admission. None if the run waits."""
    is_confirmed: bool = False
    """True if the admission was read from the run's status."""
    offered_time: datetime | None = None
    """Time at which a slot was offered to this waiting run. The run takes the slot in its next reconcile."""
    turn: QueuePosition | None = field(default=None, compare=False)


class AdmissionQueue:
    """Queue of all runs of this operator. Use it from one event loop only."""

    def __init__(self, settings: OperatorSettings, wake: Callable[[RunKey], None]) -> None:
        """`wake` queues a run for its next reconcile."""
        self._settings = settings
        self._limits = QueueLimits.of(settings.queue)
        self._wake = wake
        self._entries: dict[str, _Entry] = {}
        self._is_changed = False
        self._changes_at: datetime | None = None

    def load(self, runs: Iterable[Obj]) -> None:
        """Load the state of the queue from the statuses of all runs. Must be called before `answer`."""
        for run in runs:
            entry = self._stored_entry(run)
            if entry is not None:
                self._entries[entry.uid] = entry
        self._is_changed = True

    def answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        """Return the queue's answer for an observed run, or None if no queue applies to the run or it needs no slot.

        Wakes runs that get a slot or move up in the queue. Raises SlotUnconfirmed if a run would lose its slot because
        of a cached observation.
        """
        if names_local_queue(observation.run):
            return kueue_answer(observation, self._settings, now)
        if not self._settings.queue.is_limited and not self._concerns(observation):
            return None
        key = _key_of(observation)
        # Deleted runs of the same name keep their slots until their pods have ended.
        kept = {observation.uid, *_uids_of_pods(observation.pods, now)}
        for uid in self._others(key, kept, waiting=observation.uid):
            self._give_back(uid, observation)
        admission = self._answer(observation, now)
        self._refresh(now)
        return admission

    def _concerns(self, observation: RunObservation) -> bool:
        """Return whether the run is in the queue, or needs a slot of a shared pool."""
        if observation.uid in self._entries or observation.status.pool is not None:
            return True
        spec = parse_spec(observation.run)
        model = spec if isinstance(spec, Problem) else find_model(spec.model, observation.models)
        if isinstance(spec, Problem) or isinstance(model, Problem):
            return False
        has_tokens, is_evicted = observation.token_key is not None, observation.status.pool_evicted
        return shares_engines(spec, model, has_tokens=has_tokens, is_evicted=is_evicted)

    def on_run_deleted(self, key: RunKey, pods: Iterable[Pod], now: datetime) -> bool:
        """Remove a deleted run from the queue, unless its pods may still run. Returns whether they may still run."""
        for uid in self._others(key, _uids_of_pods(pods, now)):
            self._remove(uid)
        self._refresh(now)
        return any(entry.key == key for entry in self._entries.values())

    def on_reconcile_failed(self, key: RunKey, run: Obj | None, error: Exception, now: datetime) -> None:
        """Pass the slot to the next run after a failed reconcile, unless the run's status may already contain the slot.

        After a temporary error or a conflict the slot stays offered to the run, because the run is reconciled again
        immediately. The offer expires after `OFFER_SECONDS`.
        """
        if isinstance(error, ApiError) and (error.is_temporary or error.status == CONFLICT):
            return
        stored = RLRunStatus.parse((run or {}).get("status")).queue
        was_written = stored is not None and stored.admitted_time is not None
        is_certain = isinstance(error, ApiError) and 400 <= error.status < 500
        for entry in [e for e in self._entries.values() if e.key == key and not e.is_confirmed]:
            if entry.admitted_time is None or (is_certain and not was_written):
                self._remove(entry.uid)
        self._refresh(now)

    def _answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        uid, status = observation.uid, observation.status
        stored, entry = status.queue, self._entries.get(uid)
        # The status may contain a slot that was already released, if the write that removes the slot failed.
        admitted = None if entry is None else entry.admitted_time
        is_confirmed = stored is not None and stored.admitted_time is not None
        if is_confirmed and admitted is None:
            stored = None
        has_pods = may_have_pods(observation, now)
        if admitted is None and has_pods:
            # The run began while the platform had no limits.
            admitted = status.attempt_start_time or now
        known = entry.demand if entry is not None else self._stored_demand(stored)
        pool = None if entry is None else entry.pool
        current = pool or _stored_pool(observation)
        if pool is None and status.pool is not None:
            # Only the request has the resources of the pool.
            known = None
        if known is not None and known.keys() != self._limits.resources:
            # The status could not be read when this process started.
            known = None
        if admitted is not None and known is not None and has_pods and status.attempt_start_time is not None:
            # An attempt with pods keeps its shape.
            return self._admit(observation, admitted, known, pool, is_confirmed=is_confirmed)
        request = slot_request(observation, status, self._settings, now)
        if request is None:
            if admitted is not None and has_pods:
                known = self._limited_resources(requests_of_pods(observation, now)) if known is None else known
                return self._admit(observation, admitted, known, current, is_confirmed=is_confirmed)
            self._give_back(uid, observation)
            return None
        awaited = None if has_pods else awaited_trainer(observation, status, request.pool, now)
        if awaited is not None:
            self._give_back(uid, observation)
            position = stored or RunQueue()
            since = entry.since if entry is not None else position.since or _arrival(observation, now)
            blocked = since if admitted is not None else position.blocked_time
            return Waiting(awaited, RunQueue(since=since, blocked_time=blocked, priority=observation.priority))
        demand, new_pool = self._limited_resources(request.total), self._limited_pool(request.pool)
        grew = known is not None and any(demand[name] > known.get(name, 0) for name in demand)
        moves = new_pool is not None and (current is None or current.key != new_pool.key)
        if admitted is not None and (has_pods or not (grew or moves)):
            kept = known if has_pods and known is not None else demand
            return self._admit(
                observation, admitted, kept, current if has_pods and moves else new_pool, is_confirmed=is_confirmed
            )
        whole = self._limited_resources(request.with_pool.total)
        exceeded = exceeded_capacity(whole, self._limits, observation.namespace)
        if exceeded:
            self._give_back(uid, observation)
            return Refused(exceeding_problem(exceeded, request.with_pool, self._limits, observation.namespace))
        if admitted is not None:
            # The demand has grown between two attempts, or the next attempt uses another pool, so the run queues for
            # the new slot.
            self._give_back(uid, observation)
            if moves and entry is not None:
                # The run has not asked for another pool: it stays ahead of later runs, also of those that are blocked.
                stored = RunQueue(since=entry.since, blocked_time=entry.since)
            elif is_confirmed:
                stored = None
            # Otherwise the slot was never written, and granted for an outdated demand: the run keeps its position.
            entry = None
        return self._ask(observation, stored, entry, demand, new_pool, now)

    def _ask(
        self,
        observation: RunObservation,
        stored: RunQueue | None,
        entry: _Entry | None,
        demand: Demand,
        pool: PoolSlots | None,
        now: datetime,
    ) -> Admission:
        """Return the answer to a run without a slot."""
        uid, priority = observation.uid, observation.priority
        if entry is None:
            known = stored or RunQueue()
            since = known.since or _arrival(observation, now)
            entry = _Entry(_key_of(observation), uid, since, blocked_time=known.blocked_time)
        if uid not in self._entries or (entry.demand, entry.priority, entry.pool) != (demand, priority, pool):
            entry.demand, entry.priority, entry.pool = demand, priority, pool
            self._entries[uid] = entry
            self._is_changed = True
        self._refresh(now, keep=uid)
        turn = entry.turn
        assert turn is not None, "unreachable: a waiting run has no position"
        if turn.waits_for is not None:
            if turn.waits_for is Reason.POOL_FULL and pool is not None:
                problem = pool_full_problem(pool, is_client=is_client_run(observation.run))
            else:
                started = pool if turn.starts_pool else None
                problem = waiting_problem(turn.waits_for, observation.namespace, demand, self._limits, started)
            return Waiting(problem, self._record(entry, turn.runs_ahead))
        entry.admitted_time, entry.offered_time, entry.blocked_time, entry.turn = now, None, None, None
        log.info("%s was admitted after %.0f s", entry.key, seconds(entry.since, now))
        return Admitted(self._record(entry, None))

    def _admit(
        self,
        observation: RunObservation,
        admitted: datetime,
        demand: Demand,
        pool: PoolSlots | None,
        *,
        is_confirmed: bool,
    ) -> Admitted:
        """Count the run's slot and demand toward the limits, and return its admission."""
        uid, queue = observation.uid, observation.status.queue
        entry = self._entries.get(uid)
        if entry is None:
            entry = self._entries[uid] = _Entry(_key_of(observation), uid, (queue and queue.since) or admitted)
            self._is_changed = True
        if entry.admitted_time is None or (entry.demand, entry.pool) != (demand, pool):
            self._is_changed = True
        entry.pool = pool
        entry.admitted_time, entry.demand, entry.priority = admitted, demand, observation.priority
        entry.is_confirmed, entry.turn, entry.offered_time, entry.blocked_time = is_confirmed, None, None, None
        return Admitted(self._record(entry, None))

    def _refresh(self, now: datetime, keep: str | None = None) -> None:
        """Recompute the order if it may have changed, and wake the affected runs, except `keep`, which is being
        answered.
        """
        if self._changes_at is not None and now >= self._changes_at:
            self._is_changed = True
            for entry in [e for e in self._entries.values() if e.uid != keep]:
                if seconds(entry.offered_time, now) >= OFFER_SECONDS:
                    log.warning(
                        "%s did not take its slot within %.0f s; the slot is offered to the next run",
                        entry.key,
                        OFFER_SECONDS,
                    )
                    self._remove(entry.uid)
        if not self._is_changed:
            return
        self._is_changed = False
        placed = [entry for entry in self._entries.values() if entry.admitted_time is not None]
        waiting = [entry for entry in self._entries.values() if entry.admitted_time is None]
        turns = queue_positions(placed, waiting, self._limits, now)
        for uid, turn in turns.items():
            self._take(self._entries[uid], turn, now, wakes=uid != keep)
        self._changes_at = self._next_change(turns, now)

    def _take(self, entry: _Entry, turn: QueuePosition, now: datetime, *, wakes: bool) -> None:
        old, entry.turn = entry.turn, turn
        was_blocked, entry.blocked_time = entry.blocked_time, turn.blocked_time or entry.blocked_time
        if turn.waits_for is None:
            if entry.offered_time is None:
                entry.offered_time = now
                if wakes:
                    self._wake(entry.key)
            return
        entry.offered_time = None
        is_near = turn.runs_ahead < EXACT_RUNS_AHEAD
        if wakes and old is not None and ((is_near and old != turn) or was_blocked != entry.blocked_time):
            self._wake(entry.key)

    def _next_change(self, turns: Mapping[str, QueuePosition], now: datetime) -> datetime | None:
        offers = (e.offered_time for e in self._entries.values() if e.offered_time is not None)
        times = [next_change(turns.values(), self._limits, now), *(offer + OFFER_TIME for offer in offers)]
        return min((time for time in times if time is not None), default=None)

    def _remove(self, uid: str) -> None:
        if self._entries.pop(uid, None) is not None:
            self._is_changed = True

    def _give_back(self, uid: str, observation: RunObservation) -> None:
        """Remove a run from the queue. Raises SlotUnconfirmed if this would release a slot based on cached objects."""
        entry = self._entries.get(uid)
        if observation.is_cached and entry is not None and entry.admitted_time is not None:
            raise SlotUnconfirmed(f"{entry.key} may have pods")
        self._remove(uid)

    def _others(self, key: RunKey, placed: Collection[str], waiting: str = "") -> list[str]:
        """Return the uids of queue entries named `key`, except admitted runs in `placed` and the waiting run `waiting`.

        Several runs can have the same name, because a deleted run keeps its slot until its pods have ended.
        """
        return [
            entry.uid
            for entry in self._entries.values()
            if entry.key == key and entry.uid not in ((waiting,) if entry.admitted_time is None else placed)
        ]

    def _limited_resources(self, requests: Demand) -> dict[str, int]:
        return {name: requests.get(name, 0) for name in self._limits.resources}

    def _limited_pool(self, pool: PoolSlots | None) -> PoolSlots | None:
        return None if pool is None else replace(pool, demand=self._limited_resources(pool.demand))

    def _record(self, entry: _Entry, ahead: int | None) -> RunQueue:
        resources = {name: from_millis(amount) for name, amount in sorted((entry.demand or {}).items())}
        return RunQueue(
            since=entry.since,
            runs_ahead=ahead,
            admitted_time=entry.admitted_time,
            blocked_time=entry.blocked_time,
            priority=entry.priority,
            resources=resources or None,
        )

    def _stored_demand(self, stored: RunQueue | None) -> Demand | None:
        """Return the demand in a status, or None if the status does not have exactly the limited resources."""
        resources = {} if stored is None else stored.resources or {}
        if stored is None or set(resources) != self._limits.resources:
            return None
        return {name: to_millis(quantity) for name, quantity in resources.items()}

    def _stored_entry(self, run: Obj) -> _Entry | None:
        """Return the entry of a listed run from its status, or None if it neither waits nor has a slot."""
        if is_finished(run) and not run["status"].get("queue"):
            # Fast path for thousands of finished runs that have released their slots.
            return None
        try:
            status = read_status(run)
        except ApiError as error:
            return self._unread_slot(run, error)
        metadata, stored = run["metadata"], status.queue
        key = RunKey(metadata["namespace"], metadata["name"])
        demand = self._stored_demand(stored)
        if stored is not None and stored.admitted_time is not None:
            since, pool = stored.since or stored.admitted_time, None
            if status.pool is not None:
                # The next reconcile of the run has the resources of the pool.
                pool, demand = PoolSlots(key.namespace, status.pool.name), None if self._limits.resources else demand
            entry = _Entry(key, metadata["uid"], since, demand, stored.priority, pool=pool)
            entry.admitted_time, entry.is_confirmed = stored.admitted_time, True
            return entry
        if stored is not None and stored.since is not None:
            # The next reconcile of the run has its pool.
            demand = None if status.reason == Reason.POOL_FULL else demand
            return _Entry(key, metadata["uid"], stored.since, demand, stored.priority, stored.blocked_time)
        if (began := _beginning(status)) is not None:
            return _Entry(key, metadata["uid"], began, admitted_time=began)
        created = _unseen_since(run, status)
        return None if created is None else _Entry(key, metadata["uid"], created)

    def _unread_slot(self, run: Obj, error: ApiError) -> _Entry | None:
        """Return the entry of a run with an unreadable status, or None if the run has no slot.

        A reconcile never releases the slot of such a run. Only the readable part of its demand counts, because an
        unknown demand would block all other runs.
        """
        metadata, raw, status = run["metadata"], run["status"], RLRunStatus.parse(run["status"])
        queue = raw.get("queue") or {"admittedTime": raw.get("attemptStartTime")}
        stored = status.queue or RunQueue()
        admitted = stored.admitted_time or status.attempt_start_time or parse_time(metadata.get("creationTimestamp"))
        if admitted is None or (isinstance(queue, dict) and not queue.get("admittedTime")):
            return None
        key, resources = RunKey(metadata["namespace"], metadata["name"]), stored.resources or {}
        log.warning(
            "The status of %s is partly unreadable. The run keeps its slot, but only its readable resources count: %s",
            key,
            error,
        )
        demand = {name: to_millis(resources[name]) for name in self._limits.resources if name in resources}
        entry = _Entry(key, metadata["uid"], stored.since or admitted, demand, stored.priority)
        entry.admitted_time, entry.is_confirmed = admitted, True
        return entry


def names_local_queue(run: Obj) -> bool:
    """Return whether the run is queued by Kueue."""
    return bool((run.get("spec") or {}).get("queueName"))


def _stored_pool(observation: RunObservation) -> PoolSlots | None:
    pool = observation.status.pool
    return None if pool is None else PoolSlots(observation.namespace, pool.name)


def _uids_of_pods(pods: Iterable[Pod], now: datetime) -> set[str]:
    """Return the uids of the runs whose pods may still run."""
    return {pod.run_uid for pod in pods if may_write(pod, now)}


def _key_of(observation: RunObservation) -> RunKey:
    return RunKey(observation.namespace, observation.name)


def _arrival(observation: RunObservation, now: datetime) -> datetime:
    """Return the time since which the run has waited in the queue.

    This is the run's creation if the run was never reconciled, otherwise `now`, because it could not start earlier.
    """
    created = parse_time(observation.run["metadata"].get("creationTimestamp"))
    return now if observation.status.phase is not None or created is None else min(created, now)


def _unseen_since(run: Obj, status: RLRunStatus) -> datetime | None:
    """Return the creation time of a run that was never reconciled and wants to start, or None for other runs."""
    metadata, spec = run["metadata"], run.get("spec") or {}
    is_unseen = status.phase is None and not metadata.get("deletionTimestamp")
    wants_place = not spec.get("suspend") and not spec.get("stop")
    return parse_time(metadata.get("creationTimestamp")) if is_unseen and wants_place else None


def _beginning(status: RLRunStatus) -> datetime | None:
    """Return the start of the run's attempt if the run was never queued and may have pods, otherwise None."""
    if status.phase is None or status.phase.finished or status.attempt_start_time is None:
        return None
    admitted = find_condition(status, ConditionType.ADMITTED)
    if admitted is not None and admitted.reason != Reason.NOT_QUEUED:
        return None
    cached = find_condition(status, ConditionType.WEIGHTS_CACHED)
    is_ready = is_true(status, ConditionType.VALIDATED) and (cached is None or cached.status.value == "True")
    return status.attempt_start_time if status.phase is Phase.running or is_ready else None
