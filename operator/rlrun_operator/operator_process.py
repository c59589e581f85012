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
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rlrun.api.base.phases import Phase
from rlrun.garbage_collection.installation import CLUSTER_NAMESPACE
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import NAMESPACE, RLRUN, WORKLOAD
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.server import LimitedRunner, listen_on
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import S3Uri

from rlrun_operator import handlers
from rlrun_operator.cluster.informers import FOLLOWED, Informers
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.tenants import TenancyProblem, Tenants, no_problem
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue, names_local_queue
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.artifact_tombstones import ArtifactTombstones
from rlrun_operator.controller.container_logs import TerminatingPodLogs
from rlrun_operator.controller.garbage_collector import GarbageCollector
from rlrun_operator.controller.models.model_pod_check import ModelPodCheck
from rlrun_operator.controller.models.model_status import write_model_statuses
from rlrun_operator.controller.models.weights_caches import sweep_caches
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.orchestrator_client import OrchestratorClient
from rlrun_operator.controller.progress_writer import ProgressWriter
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.ending import resync_schedule
from rlrun_operator.planning.observation import RunKey, TrainerReport
from rlrun_operator.planning.status import is_finished
from rlrun_operator.resources.access.run_tokens import key_secret_name
from rlrun_operator.resources.access.storage_access import grant_key_secret_name
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.runtime.cooperative_iteration import iterate_cooperatively
from rlrun_operator.runtime.kopf_thread import KopfThread, in_this_loop
from rlrun_operator.runtime.leader_election import LeaderElection, LeaseLost
from rlrun_operator.runtime.metrics import (
    API_REQUESTS,
    CACHE_BYTES,
    LEADING,
    REGISTRY,
    GpuSecondsCollector,
    RunPhaseCollector,
)
from rlrun_operator.runtime.platform_key import ensure_api_keys, ensure_key
from rlrun_operator.runtime.probes import EventLoopWatchdog, web_app
from rlrun_operator.runtime.rate_limit import RateLimit, RateLimitedTransport
from rlrun_operator.runtime.server_certificate import ensure_authority, follow_authority
from rlrun_operator.runtime.work_queue import Priority, WorkQueue, namespace_limit, work
from rlrun_operator.serving.pool_usage import PoolUsageRecorder
from rlrun_operator.serving.reconciler import ServingController
from rlrun_operator.storage.artifact_store import ArtifactStore, Installation
from rlrun_operator.storage.usage_log import UsageLog

log = logging.getLogger(__name__)

SWEEP_SECONDS = 3600.0
"""Seconds between two reconciles of finished runs that need no further action."""
MARK_SECONDS = 60.0
"""Maximum seconds between two attempts to record in the bucket that this cluster owns the prefix."""
LISTS_SECONDS = 20.0
"""Time limit in seconds for the first lists of all kinds."""
STOP_SECONDS = 3.0
"""Maximum seconds to wait for tasks to end before the process exits."""


async def ensure_keys(cluster: AsyncKubeClient, settings: OperatorSettings) -> tuple[bytes, bytes]:
    """Create the platform's missing Secrets. Returns the key for run tokens and the key for storage grants.

    Raises ApiError, or KeyInvalid if an existing Secret has no usable key.
    """
    namespace, lease_name = settings.lease_namespace, settings.lease_name
    if (egress := settings.egress) is not None and egress.create_key:
        await ensure_key(cluster, egress.key_secret.namespace, egress.key_secret.name)
    if settings.api_keys is not None:
        await ensure_api_keys(cluster, settings.api_keys)
    return (
        await ensure_key(cluster, namespace, key_secret_name(lease_name)),
        await ensure_key(cluster, namespace, grant_key_secret_name(lease_name)),
    )


class Operator:
    """The operator process: a standby until it acquires the Lease, then the active operator."""

    def __init__(self, settings: OperatorSettings, identity: str | None = None) -> None:
        self._settings = settings
        self._identity = identity or f"{os.environ.get('HOSTNAME') or socket.gethostname()}_{uuid.uuid4().hex[:8]}"
        self._queue: WorkQueue[RunKey] = WorkQueue(namespace_limit=namespace_limit(settings.workers))
        self._model_pods = ModelPodCheck(settings)
        self._heartbeat = EventLoopWatchdog()
        self._clock = ClusterClock()
        self._stop = asyncio.Event()
        self._watching = asyncio.Event()
        self._may_work = asyncio.Event()
        """Set when the workers may start."""
        self._leading = False
        self._pool_gpus: Mapping[PoolIdentity, int] = {}
        self.port: int | None = None
        """Port of the web server, set once it listens."""

    def stop(self) -> None:
        """Stop the operator by making `run` return."""
        self._stop.set()

    def not_ready(self) -> str | None:
        """Return the reason why this process is not ready, or None if it is ready. A process that waits for the Lease
        is ready.
        """
        if self._leading and not self._watching.is_set():
            return "The watches have not started yet"
        return None

    async def run(self) -> None:
        """Run until `stop` is called, a signal arrives, or the CA of rlrun-server's certificate changes.

        Raises LeaseLost if the Lease is lost, KeyInvalid or CertificateMissing if a key or certificate is unusable,
        and any other error that ends a task of the operator.
        """
        self._listen_to_signals()
        configuration = await self._configure()
        # Each watch occupies a connection. Watches and requests for the Lease must not wait for other requests.
        watcher = AsyncKubeClient(
            AsyncApiTransport(configuration, connections=0, on_request=count_request, clock=self._clock)
        )
        informers = self._informers(watcher)
        lease = LeaderElection(
            watcher,
            self._settings.lease_namespace,
            self._settings.lease_name,
            self._identity,
            duration=self._settings.lease_seconds,
        )
        limit = RateLimit(self._settings.api.qps, self._settings.api.burst, time.monotonic)
        check = functools.partial(check_request, lease.is_held)
        transport = AsyncApiTransport(await self._configure(), on_request=check, clock=self._clock)
        objects = RunObjects(RateLimitedTransport(transport, limit), informers)
        poller = OrchestratorClient(self._settings.status_url_template, self._queue.add, self._settings.poll_seconds)
        runner = LimitedRunner(web_app(self._heartbeat.is_alive, self.not_ready, REGISTRY))
        artifacts = ArtifactStore(self._settings.s3_threads, lease.is_held)
        phases = RunPhaseCollector(
            lambda: (run.phase for run in informers.runs()), lambda: len(self._queue), lambda: self._queue.delayed
        )
        gpu_seconds = GpuSecondsCollector(functools.partial(self._held_gpus, informers), time.monotonic)
        REGISTRY.register(phases)
        REGISTRY.register(gpu_seconds)
        CACHE_BYTES.set_function(lambda: informers.stored_bytes)
        try:
            await self._serve(runner)
            async with _Tasks() as tasks:
                tasks.start(self._heartbeat.beat())
                await self._lead(tasks, lease, objects, informers, artifacts, poller)
        finally:
            LEADING.set(0)
            REGISTRY.unregister(phases)
            REGISTRY.unregister(gpu_seconds)
            self._queue.close()
            await runner.cleanup()
            await poller.close()
            artifacts.close()
            await objects.cluster.close()
            await watcher.close()

    async def _lead(
        self,
        tasks: "_Tasks",
        lease: LeaderElection,
        objects: RunObjects,
        informers: Informers,
        artifacts: ArtifactStore,
        poller: OrchestratorClient,
    ) -> None:
        stopped = tasks.start(self._stop.wait())
        acquired = tasks.start(lease.acquire())
        await asyncio.wait({stopped, acquired}, return_when=asyncio.FIRST_COMPLETED)
        if stopped.done():
            return
        acquired.result()
        self._leading = True
        LEADING.set(1)
        cluster = objects.cluster
        token_key, grant_key = await ensure_keys(cluster, self._settings)
        authority = await ensure_authority(cluster, self._settings, datetime.now(UTC))
        settings = self._settings.model_copy(update={"storage_server_authority": authority})
        tenants = Tenants(self._settings, informers)
        problem = tenants.problem
        pool_problems: dict[PoolIdentity, Problem] = {}
        pool_trainers: dict[PoolIdentity, TrainerReport] = {}
        observer = Observer(
            objects,
            artifacts,
            poller,
            settings,
            token_key,
            grant_key,
            tenancy_problem=problem,
            pool_problems=pool_problems,
            pool_trainers=pool_trainers,
        )
        # Use the same settings as for pods, because they determine the names of shared pools.
        admissions = AdmissionQueue(settings, self._queue.add)
        operator_name = f"{settings.lease_namespace}.{settings.lease_name}"
        usage = UsageLog(artifacts, S3Uri(settings.s3.bucket, settings.s3.prefix.strip("/")), operator_name)
        applier = Applier(cluster, artifacts, usage)
        reconciler = Reconciler(observer, applier, settings, self._clock, admissions)
        logs = TerminatingPodLogs(applier.logs, informers, observer.s3_variables, settings, problem)
        tombstones = ArtifactTombstones(artifacts, informers, observer.s3_variables, settings)
        pool_usage = PoolUsageRecorder(usage, observer.s3_variables)
        self._pool_gpus = pool_usage.gpus
        serving = ServingController(
            objects,
            observer,
            settings,
            token_key,
            self._clock,
            problem,
            pool_usage,
            pool_problems,
            pool_trainers,
            wake=self._wake,
        )
        informers.listeners.append(tenants.on_change)
        informers.listeners.append(handlers.Handlers(informers, self._queue, serving).on_change)
        informers.listeners.append(logs.on_change)
        informers.listeners.append(tombstones.on_change)

        kopf_thread = KopfThread(self._settings.watch_namespaces)
        registry = handlers.registry(
            self._configure,
            in_this_loop(informers.receive),
            on_startup=in_this_loop(self._watching.set),
            on_cleanup=in_this_loop(kopf_thread.restart),
        )
        watching = tasks.start(kopf_thread.run(registry))
        for job in informers.jobs(kopf_thread.restart):
            tasks.start(job)
        holding = tasks.start(lease.hold())
        working = [tasks.start(self._resync(cluster, informers, admissions, reconciler, logs, tenants))]
        if self._settings.tenant_labels:
            on_tenancy = functools.partial(self._on_tenancy, informers, serving)
            working.append(tasks.start(tenants.follow(cluster, on_tenancy)))
        progress = ProgressWriter(objects, poller, self._clock)
        working += [tasks.start(self._work(reconciler, progress)) for _ in range(self._settings.workers)]
        working += [tasks.start(job) for job in serving.jobs()]
        working.append(tasks.start(follow_authority(cluster, self._settings, authority)))
        working.append(tasks.start(tombstones.write()))
        if (garbage := settings.gc) is not None:
            collector = GarbageCollector(cluster, settings, garbage, observer.s3_variables, lease.is_held, problem)
            working.append(tasks.start(collector.run()))
        marking = tasks.start(self._mark_installation(cluster, artifacts, observer))
        done, _ = await asyncio.wait({stopped, watching, holding, *working}, return_when=asyncio.FIRST_COMPLETED)
        # Stop all writes before releasing the Lease. End the watches last.
        await _end([*working, marking, holding])
        await serving.close()
        await logs.close()
        lost = holding in done and isinstance(holding.exception(), LeaseLost)
        if not lost:
            await lease.release()
        for task in done:
            task.result()

    async def _mark_installation(self, cluster: AsyncKubeClient, artifacts: ArtifactStore, observer: Observer) -> None:
        """Write the object that records this cluster as the owner of the S3 prefix, unless the object exists.

        Retries until it succeeds.
        """
        backoff = Backoff(longest=MARK_SECONDS)
        while True:
            try:
                if artifacts.installation is None:
                    system = await cluster.get(NAMESPACE, None, CLUSTER_NAMESPACE)
                    s3, uid = self._settings.s3, str((system or {}).get("metadata", {}).get("uid") or "")
                    artifacts.installation = Installation(S3Uri(s3.bucket, s3.prefix.strip("/")), uid) if uid else None
                variables = await observer.s3_variables()
                if not isinstance(variables, Problem):
                    await artifacts.mark_installation(variables)
                    return
                problem = variables.message
            except (ApiError, StoreError) as error:
                problem = str(error)
            backoff.record_failure(time.monotonic())
            log.warning(
                "Could not record in the bucket that this cluster owns the S3 prefix. Until this succeeds, no files "
                "are deleted from S3; retrying in %.0f s: %s",
                backoff.pause,
                problem,
            )
            await asyncio.sleep(backoff.pause)

    def _held_gpus(self, informers: Informers) -> Iterator[tuple[str, str, int]]:
        """Yield kind, model and number of GPUs for each run and pool that holds GPUs, or nothing on a standby."""
        if self._leading:
            yield from (("run", run.model, run.gpus) for run in informers.runs() if run.gpus)
            yield from (("serving", pool.model, gpus) for pool, gpus in self._pool_gpus.items())

    def _wake(self, key: RunKey, seconds: float) -> None:
        """Queue a run whose session in a shared pool has changed."""
        self._queue.add_after(key, seconds, Priority.ROUTINE if seconds else Priority.EVENT)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # Signal handlers can only be set in the main thread; tests run the operator in another one.
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._stop.set)

    def _informers(self, watcher: AsyncKubeClient) -> Informers:
        kinds = (*FOLLOWED, *([WORKLOAD] if self._settings.kueue else []))
        return Informers(watcher, kinds, self._namespaces(), self._settings.tenant_labels)

    def _on_tenancy(self, informers: Informers, pools: ServingController, namespace: str) -> None:
        """Queue the runs and pools of a namespace that became a tenant or stopped being one."""
        for run in informers.runs():
            if run.namespace == namespace:
                self._queue.add(RunKey(namespace, run.name))
        pools.queue_all(namespace)

    def _namespaces(self) -> list[str | None]:
        return [*self._settings.watch_namespaces] or [None]

    async def _configure(self) -> Any:
        return await load_configuration(self._settings.kubeconfig)

    async def _serve(self, runner: LimitedRunner) -> None:
        await runner.setup()
        await listen_on(runner, self._settings.http_port)
        self.port = runner.addresses[0][1]
        log.info("serving /healthz, /readyz and /metrics on port %s", self.port)

    async def _work(self, reconciler: Reconciler, progress: ProgressWriter) -> None:
        await self._may_work.wait()
        await work(self._queue, reconciler.reconcile, progress.write)

    async def _resync(
        self,
        cluster: AsyncKubeClient,
        informers: Informers,
        admissions: AdmissionQueue,
        reconciler: Reconciler,
        logs: TerminatingPodLogs,
        tenants: Tenants,
    ) -> None:
        """Start the workers, and queue all runs periodically.

        Finished runs that need no further action are only reconciled in a slow sweep, for example to notice files
        deleted in S3.
        """
        await self._start_workers(informers, admissions)
        logs.begin(informers.pods())
        clock = asyncio.get_running_loop().time
        swept = clock()
        while True:
            is_sweep = clock() - swept >= SWEEP_SECONDS
            await self._queue_runs(informers, None if is_sweep else reconciler)
            swept = clock() if is_sweep else swept
            await self._write_models(cluster, informers, tenants.problem)
            await asyncio.sleep(self._settings.resync_seconds)

    async def _start_workers(self, informers: Informers, admissions: AdmissionQueue) -> None:
        """Start the workers once all kinds are listed.

        After LISTS_SECONDS, waits only for the runs and, if a label selects tenants, the Namespaces. Reconciles read
        other kinds from the API server until they are listed.
        """
        try:
            async with asyncio.timeout(LISTS_SECONDS):
                await informers.until_synced()
        except TimeoutError:
            log.warning(
                "Not all kinds were listed within %.0f s; until they are, their objects are read from the API server",
                LISTS_SECONDS,
            )
        if self._settings.tenant_labels:
            # Without Namespaces, no namespace would appear to be a tenant.
            await informers.until_synced(NAMESPACE)
        # The queue must know which runs have a slot.
        await informers.until_synced(RLRUN)
        # Without limits, only the slots of shared pools count.
        is_limited, queued = self._settings.queue.is_limited, Phase.queued.value
        listed = [(run, run.read_listed()) for run in informers.runs() if is_limited or run.pool or run.phase == queued]
        # Load all fields of runs that may have a slot or wait for one.
        admissions.load(
            run.read() if run.data is not None and (not is_finished(obj) or obj["status"].get("queue")) else obj
            for run, obj in listed
            if not names_local_queue(obj)
        )
        self._may_work.set()

    async def _write_models(
        self, cluster: AsyncKubeClient, informers: Informers, tenancy_problem: TenancyProblem = no_problem
    ) -> None:
        """Write the statuses of all RLModels, which count runs in all namespaces, and delete unused weights caches."""
        runs = [run.read_listed() for run in informers.runs()]
        caches = await sweep_caches(cluster, runs, self._namespaces(), tenancy_problem)
        # An operator that watches some namespaces knows only their caches, and another operator would write other
        # numbers.
        all_runs = None if self._settings.watch_namespaces else runs
        await write_model_statuses(
            cluster, self._clock(), all_runs, caches, self._model_pods, counts_caches=all_runs is not None
        )

    async def _queue_runs(self, informers: Informers, reconciler: Reconciler | None) -> None:
        """Queue all runs except those that `reconciler` has settled. If it is None, queue all runs."""
        due = []
        async for run in iterate_cooperatively(list(informers.runs())):
            key = RunKey(run.namespace, run.name)
            if reconciler is None or not reconciler.is_settled(key, str(run.version)):
                due.append(run.read_listed())
        async for key, pause in iterate_cooperatively(resync_schedule(due, self._clock())):
            self._queue.add_after(key, pause, Priority.RESYNC)


def count_request(request: KubeRequest) -> None:
    """Count a request to the API server by verb and kind. A dry run is counted under the verb `dry_run`."""
    verb = "dry_run" if "dryRun" in request.query else request.verb.name.lower()
    API_REQUESTS.labels(verb, request.kind.plural).inc()


def check_request(may_write: Callable[[], bool], request: KubeRequest) -> None:
    """Count a request to the API server before it is sent. Raises LeaseLost for a write if `may_write` is false."""
    if request.method != "GET" and not may_write():
        raise LeaseLost("The operator may have lost its Lease, so it no longer writes to the API server")
    count_request(request)


class _Tasks:
    """Context manager that cancels its tasks at the end of the block."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start a task that runs `work`. Returns the task."""
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
