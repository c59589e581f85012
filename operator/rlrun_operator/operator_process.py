"""The operator process: web server, leader election, watches, workers and resync."""

import asyncio
import contextlib
import functools
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable, Collection, Coroutine
from datetime import UTC, datetime
from itertools import starmap
from typing import Any

from aiohttp import web
from rlrun.api.base.phases import Phase
from rlrun.constants import SERVING_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import (
    DEPLOYMENT,
    RLCHECKPOINT,
    RLMODEL,
    RLRUN,
    SECRET,
    WORKLOAD,
    ResourceKind,
)
from rlrun.kube.objects import Obj, label

from rlrun_operator import handlers
from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.cache.confirmation import confirm_answers
from rlrun_operator.cache.first_answers import BY_UID, read_first_answers
from rlrun_operator.cache.metadata_watch import MetadataWatch
from rlrun_operator.cache.new_runs import NewRuns
from rlrun_operator.cache.object_cache import ObjectCache, Question, listed_version
from rlrun_operator.cache.recording_transport import RecordingTransport
from rlrun_operator.cache.run_index import RunIndex
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.kueue_queue import KueueQueue, names_local_queue
from rlrun_operator.controller.model_status import ModelStatusWriter
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.orchestrator_client import HttpOrchestratorClient
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.controller.run_list import list_runs
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.plan.stored_status import is_finished, stored_phase
from rlrun_operator.planning.policies.ending.resync_schedule import resync_schedule
from rlrun_operator.probes import EventLoopWatchdog, web_app
from rlrun_operator.resources.access.run_tokens import key_secret_name
from rlrun_operator.resources.access.storage_access import grant_key_secret_name
from rlrun_operator.runtime.in_turns import in_turns
from rlrun_operator.runtime.leader_election import LeaderElection, LeaseLost
from rlrun_operator.runtime.metrics import CACHE_BYTES, LEADING, REGISTRY, RunPhaseCollector
from rlrun_operator.runtime.platform_key import ensure_key
from rlrun_operator.runtime.rate_limit import RateLimit, RateLimitedTransport
from rlrun_operator.runtime.server_certificate import ensure_authority
from rlrun_operator.runtime.work_queue import Priority, WorkQueue, namespace_limit, work
from rlrun_operator.serving.reconciler import ServingController
from rlrun_operator.storage.artifact_store import S3ArtifactStore

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Pause between two reconciles of finished runs in which nothing is left to do."""
STOP_SECONDS = 3.0
"""Time for kopf to close its streams before the process exits."""


class Operator:
    """One operator process. `run` returns after `stop` or a signal, and raises LeaseLost."""

    def __init__(self, settings: OperatorSettings, identity: str | None = None) -> None:
        self._settings = settings
        self._identity = identity or f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._queue: WorkQueue[RunKey] = WorkQueue(namespace_limit=namespace_limit(settings.workers))
        self._phases = RunPhaseCollector(lambda: len(self._queue), lambda: self._queue.delayed)
        self._cache = ObjectCache(time.monotonic)
        self._index = RunIndex()
        self._new_runs = NewRuns(time.monotonic)
        self._heartbeat = EventLoopWatchdog()
        self._stop = asyncio.Event()
        self._watching = asyncio.Event()
        self._may_work = asyncio.Event()
        """Set when the workers may begin."""
        self._leading = False
        self.port: int | None = None
        """Port of the web server, once it listens."""

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()

    def not_ready(self) -> str | None:
        """Return the reason why this process is not ready, or None. A process that waits for the Lease is ready."""
        if self._leading and not self._watching.is_set():
            return "The watches are not open yet"
        return None

    async def run(self) -> None:
        """Run until `stop`, a signal, or the loss of the Lease."""
        self._listen_to_signals()
        configuration = await self._configure()
        limit = RateLimit(self._settings.api.qps, self._settings.api.burst, time.monotonic)
        limited = RecordingTransport(AsyncApiTransport(configuration), self._cache)
        cluster = AsyncKubeClient(RateLimitedTransport(limited, limit))
        # Each watch occupies a connection. Neither they nor the Lease wait for other requests.
        unlimited = AsyncApiTransport(await self._configure(), connections=0)
        watcher = AsyncKubeClient(RecordingTransport(unlimited, self._cache))
        poller = HttpOrchestratorClient(
            self._settings.status_url_template, self._queue.add, self._settings.poll_seconds
        )
        runner = web.AppRunner(web_app(self._heartbeat.is_alive, self.not_ready, REGISTRY), access_log=None)
        lease = LeaderElection(
            watcher,
            self._settings.lease_namespace,
            self._settings.lease_name,
            self._identity,
            duration=self._settings.lease_seconds,
        )
        artifacts = S3ArtifactStore(self._settings.s3_threads, lease.is_held)
        REGISTRY.register(self._phases)
        CACHE_BYTES.set_function(self._cache.size)
        try:
            await self._serve(runner)
            async with _Tasks() as tasks:
                tasks.start(self._heartbeat.beat())
                await self._lead(tasks, lease, cluster, watcher, artifacts, poller)
        finally:
            LEADING.set(0)
            REGISTRY.unregister(self._phases)
            self._queue.close()
            await runner.cleanup()
            await poller.close()
            artifacts.close()
            await cluster.close()
            await watcher.close()

    async def _lead(
        self,
        tasks: "_Tasks",
        lease: LeaderElection,
        cluster: AsyncKubeClient,
        watcher: AsyncKubeClient,
        artifacts: S3ArtifactStore,
        poller: HttpOrchestratorClient,
    ) -> None:
        stopped = tasks.start(self._stop.wait())
        acquired = tasks.start(lease.acquire())
        await asyncio.wait({stopped, acquired}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return
        acquired.result()
        self._leading = True
        LEADING.set(1)
        namespace, lease_name = self._settings.lease_namespace, self._settings.lease_name
        token_key = await ensure_key(cluster, namespace, key_secret_name(lease_name))
        grant_key = await ensure_key(cluster, namespace, grant_key_secret_name(lease_name))
        authority = await ensure_authority(cluster, self._settings, datetime.now(UTC))
        settings = self._settings.model_copy(update={"storage_server_authority": authority})
        observer = Observer(
            cluster, artifacts, poller, settings, token_key, grant_key, self._cache, self._index, self._new_runs
        )
        admissions = AdmissionQueue(self._settings, self._queue.add) if self._settings.queue.is_limited else None
        queue = KueueQueue(self._settings, admissions)
        reconciler = Reconciler(observer, Applier(cluster, artifacts), settings, self._phases, queue=queue)
        serving = ServingController(cluster, observer, settings, token_key)
        registry = handlers.registry(
            self._configure,
            self._queue.add,
            self._enqueue_pending,
            functools.partial(self._enqueue_warm_starts, reconciler),
            serving,
            self._cache,
        )
        kopf_stop = asyncio.Event()
        watching = tasks.start(
            handlers.watch(
                registry,
                self._settings.watch_namespaces,
                self._cache,
                self._new_runs,
                self._queue.add,
                functools.partial(self._enqueue_changed, serving, reconciler),
                kopf_stop,
                self._watching,
            )
        )
        holding = tasks.start(lease.hold())
        working = [tasks.start(self._resync(cluster, admissions, reconciler)), tasks.start(self._confirmation(cluster))]
        working += [tasks.start(self._work(reconciler)) for _ in range(self._settings.workers)]
        working += [tasks.start(job) for job in (*serving.jobs(), *self._cache_jobs(watcher, serving, reconciler))]
        tasks.start(self._restore_signal_handlers())
        done, _ = await asyncio.wait({stopped, watching, holding, *working}, return_when=asyncio.FIRST_COMPLETED)
        # Stop all writes before releasing the Lease; end the watches last.
        await _end([*working, holding])
        await serving.close()
        lost = holding in done and isinstance(holding.exception(), LeaseLost)
        if not lost:
            await lease.release()
        kopf_stop.set()
        await asyncio.wait({watching}, timeout=STOP_SECONDS)
        for task in done:
            task.result()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Signal handlers can only be set in the main thread; tests run the operator in another one.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._stop.set)

    async def _restore_signal_handlers(self) -> None:
        # kopf replaces the signal handlers at its start, and would then stop too late for the workers.
        await self._watching.wait()
        self._listen_to_signals()

    def _cache_jobs(
        self, cluster: AsyncKubeClient, pools: handlers.Pools, reconciler: Reconciler
    ) -> list[Coroutine[Any, Any, None]]:
        namespaces, children = self._namespaces(), self._child_kinds()

        def on_change(obj: Obj) -> None:
            key = handlers.run_key(obj)
            if key is not None:
                self._queue.add(key)
            if label(obj, SERVING_LABEL):
                pools.on_change(obj)

        def on_open_of_pools(_: ResourceKind, namespace: str | None) -> None:
            pools.queue_all(namespace)

        on_open: Callable[[ResourceKind, str | None], None] = functools.partial(
            self._enqueue_changed, pools, reconciler
        )
        # Serving pools have Deployments, and runs have none.
        opened = [*((kind, on_open) for kind in children), (DEPLOYMENT, on_open_of_pools)]
        for namespace in namespaces:
            # Changes of pods make the Secrets of their runs be read again; Secrets themselves are not watched.
            self._cache.watch_opened(SECRET, namespace, ())
        return [
            MetadataWatch(cluster, self._cache, self._index, kind, namespace, on_change, when_open).run()
            for kind, when_open in opened
            for namespace in namespaces
        ]

    def _confirmation(self, cluster: AsyncKubeClient) -> Coroutine[Any, Any, None]:
        return confirm_answers(cluster, self._cache, self._namespaces(), (*self._child_kinds(), *BY_UID))

    def _namespaces(self) -> list[str | None]:
        return [*self._settings.watch_namespaces] or [None]

    def _child_kinds(self) -> tuple[ResourceKind, ...]:
        return (*PODS_AND_CHILDREN, *([WORKLOAD] if self._settings.kueue else []))

    async def _configure(self) -> Any:
        return await load_configuration(self._settings.kubeconfig)

    async def _serve(self, runner: web.AppRunner) -> None:
        await runner.setup()
        site = web.TCPSite(runner, "0.0.0.0", self._settings.http_port)
        await site.start()
        self.port = runner.addresses[0][1]
        log.info("serving /healthz, /readyz and /metrics on port %s", self.port)

    async def _work(self, reconciler: Reconciler) -> None:
        await self._may_work.wait()
        await work(self._queue, reconciler.reconcile)

    async def _resync(
        self, cluster: AsyncKubeClient, admissions: AdmissionQueue | None, reconciler: Reconciler
    ) -> None:
        """List all runs periodically, to find changes that a watch has missed.

        Finished runs in which nothing is left to do are reconciled in a slow sweep only: for example for files that
        were deleted in S3.
        """
        clock = asyncio.get_running_loop().time
        swept = clock()
        while True:
            is_sweep = clock() - swept >= SWEEP_SECONDS
            try:
                await self._list_runs(cluster, admissions, None if is_sweep else reconciler)
                swept = clock() if is_sweep else swept
            except ApiError as error:
                log.warning("Could not list the runs; retrying in 5 s: %s", error)
                if admissions is None:
                    # Events add runs, too. With a queue the operator must know which runs have a place.
                    self._may_work.set()
                await asyncio.sleep(5)
                continue
            await asyncio.sleep(self._settings.resync_seconds)

    async def _list_runs(
        self,
        cluster: AsyncKubeClient,
        admissions: AdmissionQueue | None = None,
        reconciler: Reconciler | None = None,
    ) -> None:
        """Queue all runs except those that `reconciler` has settled."""
        keys = {RunKey(*known) for known in self._phases.keys()}  # noqa: SIM118
        loads_places = admissions is not None and not self._may_work.is_set()
        listed_at = self._cache.time()
        runs = await list_runs(cluster, self._settings.watch_namespaces, for_admission=loads_places)
        self._cache.forget_missing(RLRUN, runs)
        self._new_runs.see_list((run["metadata"]["namespace"], run["metadata"]["name"]) for run in runs)
        self._cache.drop_expired()
        due = []
        async for run in in_turns(runs):
            self._cache.changed(RLRUN, run)
            metadata = run["metadata"]
            key = RunKey(metadata["namespace"], metadata["name"])
            self._cache.compare(Question.one(RLRUN, key.namespace, key.name), dict([listed_version(run)]), listed_at)
            keys.discard(key)
            self._phases.set_phase(key.namespace, key.name, (stored_phase(run) or Phase.pending).value)
            if reconciler is None or not reconciler.is_settled(key, metadata["resourceVersion"]):
                due.append(run)
        if not self._may_work.is_set():
            await self._prepare(cluster, admissions, runs)
        async for key, pause in in_turns(resync_schedule(due, datetime.now(UTC))):
            self._queue.add_after(key, pause, Priority.RESYNC)
        # Runs that are gone.
        for key in keys:
            self._queue.add(key, Priority.RESYNC)
        await ModelStatusWriter(cluster).write(None if self._settings.watch_namespaces else runs)

    async def _prepare(self, cluster: AsyncKubeClient, admissions: AdmissionQueue | None, runs: list[Obj]) -> None:
        """Start the workers once the operator knows which runs have a place and which objects the unfinished ones
        have."""
        if admissions is not None:
            admissions.load(run for run in runs if not names_local_queue(run))
        unfinished = [run["metadata"] for run in runs if not is_finished(run)]
        uids = {(metadata["namespace"], metadata["name"]): str(metadata["uid"]) for metadata in unfinished}
        await read_first_answers(cluster, self._cache, self._namespaces(), uids)
        self._may_work.set()

    def _enqueue_changed(
        self, pools: handlers.Pools, reconciler: Reconciler, kind: ResourceKind, namespace: str | None
    ) -> None:
        """Queue the runs, in one namespace or in all, without a kept answer of the kind: their objects may have
        changed.

        Pending runs wait for objects that are not kept, and only they for models and for checkpoints of other
        namespaces. Finished runs that no reconcile has seen yet wait for their turn, see `resync_schedule`.
        """
        pending = {*starmap(RunKey, self._phases.pending())}
        for key in {*starmap(RunKey, self._phases.unfinished_runs()), *reconciler.unsettled_runs()}:
            if key in pending:
                is_needed = kind == RLCHECKPOINT or namespace in (None, key.namespace)
            else:
                is_seen = kind == RLMODEL or self._cache.has_answer(kind, (key.namespace, key.name))
                is_needed = namespace in (None, key.namespace) and not is_seen
            if is_needed:
                self._queue.add(key, Priority.ROUTINE)
        pools.queue_all(namespace)

    def _enqueue_pending(self) -> None:
        for namespace, name in self._phases.pending():
            self._queue.add(RunKey(namespace, name))

    def _enqueue_warm_starts(
        self, reconciler: Reconciler, namespace: str, checkpoint: str, readers: Collection[str]
    ) -> None:
        for key in reconciler.warm_starts(namespace, checkpoint):
            if key.namespace in readers:
                self._queue.add(key)


class _Tasks:
    """Context manager that cancels its tasks at the end of the block."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.append(task)
        return task

    async def __aenter__(self) -> "_Tasks":
        return self

    async def __aexit__(self, *_: object) -> None:
        await _end(self._tasks)


async def _end(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=STOP_SECONDS)
