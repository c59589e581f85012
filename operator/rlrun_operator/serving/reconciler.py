"""Reconciler and controller of serving pools and shared pools: observe, plan, apply."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from rlrun.api.adapter import DeploymentState
from rlrun.api.base.phases import Phase
from rlrun.constants import MODEL_ANNOTATION, SERVING_LABEL, Reason, Role
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import DEPLOYMENT, RLADAPTER, SERVICE_ACCOUNT
from rlrun.kube.objects import Obj, annotation, is_client_run, label
from rlrun.kube.references import SHARED_POOL_PREFIX
from rlrun.kube.refusals import ObjectRefused
from rlrun.protocol.client_run import SILENT_SECONDS
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import ClientActivity

from rlrun_operator.cluster.informers import CachedRun
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.observation import SESSION_SECONDS, RunKey, TrainerReport
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import pool_named
from rlrun_operator.runtime.work_queue import WorkQueue, namespace_limit, work
from rlrun_operator.serving.applier import PoolResponses, apply_plan, write_statuses
from rlrun_operator.serving.deployment_state import state_of
from rlrun_operator.serving.observation import PoolPlan
from rlrun_operator.serving.observer import Credentials, PoolObserver
from rlrun_operator.serving.planner import plan_pool, plan_refusal
from rlrun_operator.serving.pool_usage import PoolUsageRecorder
from rlrun_operator.serving.shared_planner import plan_shared_pool
from rlrun_operator.serving.sidecar_client import PoolSidecarClient

log = logging.getLogger(__name__)

WORKERS = 2
RETRY_SECONDS = 5.0
CLOSING_SECONDS = 2.0
"""Seconds between two requests with the `TrainerOrder` to a trainer that saves and closes sessions, in the first
SESSION_SECONDS.
"""
OPENING_SECONDS = 2.0
"""Seconds between two requests with the `TrainerOrder` while the session of a run with `driver: Client` is not open, in
the first SESSION_SECONDS of its attempt. The interval is short because a user waits for the session.
"""
PROGRESS_SECONDS = 30.0
"""Maximum seconds until the progress of a run with `driver: Client` is written to its status."""

Wake = Callable[[RunKey, float], None]
"""Function that queues a reconcile of the run after the given seconds."""


class PoolReconciler:
    """Reconciles serving pools and shared pools; each call to `reconcile` handles one pool."""

    def __init__(
        self,
        objects: RunObjects,
        credentials: Credentials,
        sidecars: PoolSidecarClient,
        settings: OperatorSettings,
        token_key: bytes,
        clock: Callable[[], datetime],
        tenancy_problem: TenancyProblem = no_problem,
        usage: PoolUsageRecorder | None = None,
        problems: dict[PoolIdentity, Problem] | None = None,
        trainers: dict[PoolIdentity, TrainerReport] | None = None,
        wake: Wake = lambda _key, _seconds: None,
    ) -> None:
        """If `usage` is None, usage is not recorded. `problems` receives the reasons why shared pools cannot be
        created, for the conditions of their runs. `trainers` receives the newest report of each shared pool's trainer.
        `wake` is called for runs with `driver: Client` whose session has changed.
        """
        self._wake = wake
        self._trainers = {} if trainers is None else trainers
        self._problems = {} if problems is None else problems
        self._usage = usage
        self._cluster = objects.cluster
        self._tenancy_problem = tenancy_problem
        self._sidecars = sidecars
        self._observer = PoolObserver(objects, credentials, sidecars, settings, token_key)
        self._settings = settings
        self._clock = clock

    async def reconcile(self, key: PoolIdentity) -> float | None:
        """Reconcile the pool. Returns the seconds until the next reconcile, or None to wait for an event.

        Raises ApiError.
        """
        if (problem := self._tenancy_problem(key.namespace)) is not None:
            await self._reconcile_foreign(key, problem)
            return None
        if key.is_shared:
            return await self._reconcile_shared(key)
        pool = await self._observer.observe(key)
        plan = plan_pool(pool, self._settings, self._clock())
        if self._usage is not None:
            await self._usage.record(pool, plan, self._clock())
        try:
            await apply_plan(self._cluster, self._sidecars, key, plan)
        except ObjectRefused as error:
            problem = Problem(reason=Reason.POOL_REFUSED, message=error.problem.message)
            await write_statuses(self._cluster, plan_refusal(pool, problem, self._clock()))
            raise
        return plan.requeue_after

    async def _reconcile_foreign(self, key: PoolIdentity, problem: Problem) -> None:
        """Reconcile a pool in a namespace that is not a tenant, because of `problem`, or no longer exists."""
        self._problems.pop(key, None)
        self._trainers.pop(key, None)
        if self._usage is not None:
            # The engines keep running, because the operator may not write there.
            pool = await self._observer.deployments(key)
            await self._usage.record(pool, PoolPlan(), self._clock())
        if not key.is_shared:
            pool = await self._observer.adapters(key)
            await write_statuses(self._cluster, plan_refusal(pool, problem, self._clock()))

    async def _reconcile_shared(self, key: PoolIdentity) -> float | None:
        pool = await self._observer.observe_shared(key)
        plan = plan_shared_pool(pool, self._settings, self._clock())
        if plan.deletes:
            # Informers may not know the newest run yet.
            pool = await self._observer.observe_shared(key, is_fresh=True)
            plan = plan_shared_pool(pool, self._settings, self._clock())
        if self._usage is not None:
            await self._usage.record(pool, plan, self._clock())
        try:
            responses = await apply_plan(self._cluster, self._sidecars, key, plan)
        except ObjectRefused as error:
            self._problems[key] = Problem(reason=Reason.POOL_REFUSED, message=error.problem.message)
            raise
        if plan.problem is not None:
            self._problems[key] = plan.problem
        else:
            self._problems.pop(key, None)
        if not any(pod.role == Role.trainer for pod in pool.pods):
            self._trainers.pop(key, None)
        again = plan.requeue_after if responses.is_complete else RETRY_SECONDS
        if any(_is_opening(run, responses.clients, self._clock()) for run in pool.runs):
            again = OPENING_SECONDS
        known = self._trainers.get(key)
        soon = self._record_trainer(key, plan, responses)
        self._wake_clients(pool.runs, {} if known is None else known.clients, responses.clients)
        return again if soon is None else soon

    def _record_trainer(self, key: PoolIdentity, plan: PoolPlan, responses: PoolResponses) -> float | None:
        """Record the response of the pool's trainer. Returns the seconds until the `TrainerOrder` is sent again, or
        None if the trainer is not closing sessions.
        """
        if plan.orders is None or plan.orders.trainer is None:
            return None
        ordered = {run.uid for run in plan.orders.trainer.runs}
        now, old = self._clock(), self._trainers.get(key)
        if responses.sessions is None:
            # The order may have arrived although its response has not.
            if old is not None and old.uids is not None:
                self._trainers[key] = replace(old, uids=old.uids | ordered)
            return None
        left = responses.sessions - ordered
        since = ((old and old.left_since) or now) if left else None
        self._trainers[key] = TrainerReport(responses.sessions | ordered, now, since, responses.clients)
        return CLOSING_SECONDS if left and seconds(since, now) < SESSION_SECONDS else None

    def _wake_clients(
        self, runs: Iterable[Obj], old: Mapping[str, ClientActivity], new: Mapping[str, ClientActivity]
    ) -> None:
        """Queue the runs whose session has changed: immediately, or after PROGRESS_SECONDS if only the number of
        updates has changed.
        """
        for run in runs:
            metadata = run["metadata"]
            before, after = old.get(metadata["uid"]), new.get(metadata["uid"])
            if after is None or (before is not None and _facts(before) == _facts(after)):
                continue
            is_progress = before is not None and _facts(before)[1:] == _facts(after)[1:]
            self._wake(RunKey(metadata["namespace"], metadata["name"]), PROGRESS_SECONDS if is_progress else 0.0)


def _facts(session: ClientActivity) -> tuple[int, bool, int, str | None, bool]:
    """Return the facts of a session that a reconcile uses. The number of updates comes first."""
    reason = None if session.problem is None else session.problem.reason
    return session.updates, session.is_open, session.saves, reason, session.silent_seconds >= SILENT_SECONDS


def _is_opening(run: Obj, sessions: Mapping[str, ClientActivity], now: datetime) -> bool:
    """Return whether the trainer is about to open the session of a run with `driver: Client`."""
    session, status = sessions.get(run["metadata"]["uid"]), run.get("status") or {}
    if not is_client_run(run) or status.get("phase") != Phase.pending or (session is not None and session.is_open):
        return False
    started = parse_time(status.get("attemptStartTime"))
    return started is not None and seconds(started, now) < SESSION_SECONDS


class ServingController:
    """Controller of all pools: queue, workers and resync."""

    def __init__(
        self,
        objects: RunObjects,
        credentials: Credentials,
        settings: OperatorSettings,
        token_key: bytes,
        clock: Callable[[], datetime],
        tenancy_problem: TenancyProblem = no_problem,
        usage: PoolUsageRecorder | None = None,
        problems: dict[PoolIdentity, Problem] | None = None,
        trainers: dict[PoolIdentity, TrainerReport] | None = None,
        wake: Wake = lambda _key, _seconds: None,
    ) -> None:
        """`problems` receives the reasons why shared pools cannot be created, and `trainers` the newest reports of
        their trainers. `wake` queues runs whose session has changed.
        """
        sidecars = PoolSidecarClient(settings.serving_url_template, token_key, clock)
        self._objects = objects
        self._settings = settings
        self._sidecars = sidecars
        self._reconciler = PoolReconciler(
            objects, credentials, sidecars, settings, token_key, clock, tenancy_problem, usage, problems, trainers, wake
        )
        self._queue: WorkQueue[PoolIdentity] = WorkQueue(namespace_limit=namespace_limit(WORKERS))
        self._known: set[PoolIdentity] = set()
        self._slots: dict[str, tuple[PoolIdentity, str, bool]] = {}
        """Shared pool, phase and `has_slot` of each run that uses a shared pool, by the run's uid."""

    def on_change(self, obj: Mapping[str, Any]) -> None:
        """Queue the pool to which a changed object belongs."""
        key = key_of(obj)
        if key is not None:
            self._known.add(key)
            self._queue.add(key)

    def on_run(self, run: CachedRun, *, is_deleted: bool = False) -> None:
        """Queue the shared pools that a run joins or leaves, and the run's shared pool if the run's phase or slot has
        changed. Other changes of a run do not concern its pool.
        """
        old = self._slots.pop(run.uid, None)
        new = None
        if run.uses_pool and not is_deleted:
            pool = pool_named(run.namespace, run.model, run.pool)
            new = self._slots[run.uid] = (pool, run.phase, run.has_slot)
        for slot in (old, new) if old != new else ():
            if slot is not None:
                self._known.add(slot[0])
                self._queue.add(slot[0])

    def queue_pool_of(self, run: CachedRun) -> None:
        """Queue the run's shared pool, if the run uses one."""
        if run.uses_pool:
            self._queue.add(pool_named(run.namespace, run.model, run.pool))

    def queue_all(self, namespace: str | None = None) -> None:
        """Queue all known pools, or the known pools of a namespace."""
        for key in self._known:
            if namespace in (None, key.namespace):
                self._queue.add(key)

    def jobs(self) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines to run while this process is the leader."""
        return [self._resync(), *(work(self._queue, self._reconciler.reconcile) for _ in range(WORKERS))]

    async def close(self) -> None:
        """Close timers and connections."""
        self._queue.close()
        await self._sidecars.close()

    async def _resync(self) -> None:
        """Queue all pools periodically, to find changes that a watch has missed."""
        while True:
            try:
                self._known = await find_pools(self._objects.cluster, self._settings.watch_namespaces)
                namespaces: list[str | None] = [*self._settings.watch_namespaces] or [None]
                self._known |= {pool_named(*run) for run in await self._objects.pools_of_runs(namespaces)}
            except ApiError as error:
                log.warning("Could not list the pools; retrying in %.0f s: %s", RETRY_SECONDS, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.queue_all()
            await asyncio.sleep(self._settings.resync_seconds)


async def find_pools(cluster: AsyncKubeClient, watch_namespaces: list[str]) -> set[PoolIdentity]:
    """Return the keys of all pools that exist, and of serving pools that should exist. Raises ApiError."""
    namespaces: list[str | None] = [*watch_namespaces] or [None]
    pools: set[PoolIdentity | None] = set()
    for namespace in namespaces:
        # The ServiceAccount is created first, so it identifies a pool whose creation was interrupted.
        for kind, labels in (
            (RLADAPTER, {}),
            (SERVICE_ACCOUNT, {SERVING_LABEL: ""}),
            (DEPLOYMENT, {SERVING_LABEL: ""}),
        ):
            async for page, _ in cluster.all_pages(kind, namespace, labels):
                pools.update(map(key_of, page))
    return {key for key in pools if key is not None}


def key_of(obj: Mapping[str, Any]) -> PoolIdentity | None:
    """Return the identity of the pool to which an RLAdapter or other object belongs. Returns None for an adapter that
    is not deployed and should not be, and for an object without a model or namespace.
    """
    namespace = obj.get("metadata", {}).get("namespace")
    name = label(obj, SERVING_LABEL) or ""
    if obj.get("kind") != "RLAdapter":
        model = annotation(obj, MODEL_ANNOTATION)
        if namespace and model and name.startswith(SHARED_POOL_PREFIX):
            return pool_named(namespace, model, name)
    elif obj["spec"].get("deployed") or state_of(dict(obj)) is not DeploymentState.not_deployed:
        model = str(obj.get("spec", {}).get("model", ""))
    else:
        return None
    return PoolIdentity(namespace, model) if namespace and model else None
