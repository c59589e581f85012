"""One attempt of a run: starts servers, waits for all components, trains, and writes the termination message."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any

import aiohttp
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.access import bearer
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import EnvironmentEndpoint, EnvironmentUse, ResolvedRun
from rlrun.service.errors import FatalError
from rlrun.service.listening import MANY_CONNECTIONS
from rlrun.service.outgoing_client import OutgoingClient
from rlrun.service.server import LimitedRunner, listen_on
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store

from rlrun_orchestrator import config_mapping
from rlrun_orchestrator.config import OrchestratorSettings
from rlrun_orchestrator.config_watcher import ConfigWatcher
from rlrun_orchestrator.data.example_sampler import ExampleSampler
from rlrun_orchestrator.data.reward_histogram import RewardHistograms
from rlrun_orchestrator.evaluation.evaluator import Evaluator, evaluation_tasks
from rlrun_orchestrator.inference.chat_tokenizer import ChatTokenizer
from rlrun_orchestrator.inference.gateway.environment_packages import PackageReader
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroups
from rlrun_orchestrator.inference.gateway.package_pins import PackagePins, PackageRef
from rlrun_orchestrator.inference.gateway.request_router import RequestRouter
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import ReplicaPool, Resolver, dns_resolver
from rlrun_orchestrator.loop import RunLoop
from rlrun_orchestrator.reporting.prometheus import RunCollector, make_registry
from rlrun_orchestrator.reporting.step_reporter import StepReporter
from rlrun_orchestrator.reporting.wandb_client import WandbLog
from rlrun_orchestrator.rollouts.demonstrations import DemonstrationLoader
from rlrun_orchestrator.rollouts.dispatcher import Dispatcher
from rlrun_orchestrator.rollouts.distillation import DistillationTeacher
from rlrun_orchestrator.rollouts.environment_client import EnvironmentClient
from rlrun_orchestrator.rollouts.environment_replicas import Addresses, EnvironmentReplicas, pod_urls
from rlrun_orchestrator.rollouts.environments import EnvironmentPool
from rlrun_orchestrator.status.run_progress import RunProgress
from rlrun_orchestrator.status.run_status import build_run_status, termination_message
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.status.status_server import status_application
from rlrun_orchestrator.storage.package_recorder import record_packages
from rlrun_orchestrator.storage.recovery import KnownStates, checkpoint_lacks_state, newest_state
from rlrun_orchestrator.storage.resume_state import ResumeState
from rlrun_orchestrator.storage.run_recorder import RunRecorder
from rlrun_orchestrator.storage.startup import StartupStateLoader, StartupTimeouts
from rlrun_orchestrator.storage.upload_spool import UploadSpool
from rlrun_orchestrator.training.trainer_client import TrainerClient
from rlrun_orchestrator.training.trainer_session import TrainerSession

log = logging.getLogger(__name__)

CLOSE_TIMEOUT = 10.0
"""Time in seconds for servers and connections to close during a shutdown, in addition to the time for uploads."""


class Orchestrator:
    """All components of one attempt."""

    def __init__(
        self,
        run: ResolvedRun,
        settings: OrchestratorSettings,
        store: Store,
        http: aiohttp.ClientSession,
        resolve: Resolver | None = None,
        addresses: Addresses = pod_urls,
    ) -> None:
        """`resolve` finds the inference replicas, and `addresses` the pods of an environment. Both default to DNS."""
        self._schedule = config_mapping.run_schedule(run, settings)
        self.progress = RunProgress()
        self._conditions = StatusConditions()
        self._run = run
        self._settings = settings
        self._store = store
        self._http = http
        self._outgoing = OutgoingClient(settings.private_addresses)
        self._layout = RunLayout(S3Uri.parse(run.artifacts.run_uri))
        self._groups = LiveGroups(run.model.id)
        resolve = resolve or dns_resolver(run.endpoints.inference_host, settings.inference_port, settings.sidecar_port)
        self._pool = ReplicaPool(
            http,
            resolve,
            self._groups.policies,
            poll_interval=settings.poll_interval,
            fallback_url=f"{run.endpoints.trainer_url}/sessions/{run.run.uid}/policies",
        )
        self._packages = PackageReader(
            store,
            run.artifacts.environments_uri,
            config_mapping.used_packages(run),
            PackagePins(run.environment_packages, config_mapping.pinned_digests(run)),
        )
        self._spool = UploadSpool(settings.spool / run.run.uid, settings.spool_bytes)
        self._recorder = RunRecorder(
            store,
            self._layout,
            self._spool,
            lambda problem: self._conditions.set_condition("s3", problem),
            redact=run.spec.samples.redact,
        )
        self._closing_deadline = settings.drain_deadline
        self._router = RequestRouter(
            http,
            self._pool,
            self._groups,
            wait=settings.request_wait,
            deadline=config_mapping.longest_group_deadline(run),
        )
        self._rules = config_mapping.sampling_rules(run)
        self._rewards = RewardHistograms()
        self._wandb = WandbLog(run, store, self._layout) if run.spec.wandb is not None else None
        self._reporter = StepReporter(
            self._schedule,
            self.progress,
            self._conditions,
            self._recorder,
            self._rewards,
            self._wandb,
            learns_from_rewards=config_mapping.scoring(run).learns_from_rewards,
        )
        self._environments = {
            use: EnvironmentPool(
                _environment_clients(http, run, use, settings, addresses),
                self._conditions.set_waiting,
                config_mapping.load_limits(run, use),
                poll_interval=settings.poll_interval,
                grace=settings.configuration_grace,
                lost_deadline=settings.environment_deadline,
                backoff=settings.environment_backoff,
            )
            for use in EnvironmentUse
        }

    async def run(self) -> None:
        """Run the whole attempt. Raises FatalError."""
        async with self._serving():
            self._pool.start()
            self._recorder.start()
            try:
                if self._wandb is not None:
                    await self._wandb.start()
                await _first_to_end(self._train(), self._packages.watch())
            finally:
                closing = [self._recorder.close(self._closing_deadline)]
                if self._wandb is not None:
                    closing.append(self._wandb.close(self._closing_deadline))
                await asyncio.gather(*closing)
                for environments in self._environments.values():
                    await environments.close()
                await self._pool.close()
                await self._outgoing.close()

    def status(self) -> RunStatus:
        """Return the current status of the run."""
        return build_run_status(self.progress, self._conditions, self._schedule, self._packages.pins.packages)

    def shorten_deadlines(self) -> None:
        """Limit the remaining uploads to the pod's grace period, because the process is shutting down."""
        self._closing_deadline = self._settings.stop_deadline

    async def _train(self) -> None:
        timeouts = config_mapping.startup_timeouts(self._run, self._settings)
        # Wait for S3 first: the other components need it too, and their errors would be less clear.
        s3 = StartupStateLoader(self._store, self._layout, self._conditions, timeouts, self._spool)
        await s3.wait_for_bucket()
        self._recorder.state_uri, saved = await s3.claim_state()
        session = TrainerSession(
            TrainerClient(
                self._http,
                self._run.endpoints.trainer_url,
                self._run.run.uid,
                uuid.uuid4().hex,
                is_shared=self._run.trains_in_pool,
            ),
            self._run,
            self._schedule,
            self._store,
            self._layout,
            self._conditions,
            config_mapping.trainer_timeouts(self._run, self._settings),
        )
        state, *_ = await _all_or_first_failure(
            session.open(timeouts.trainer),
            self._wait_for_environments(timeouts),
        )
        sampler = ExampleSampler(config_mapping.buffer(self._run, self._examples()))
        uid = self._run.run.uid
        checkpoint = ResumeState.parse(state.orchestrator_state, "the trainer's checkpoint")
        newest = newest_state(uid, saved, checkpoint)
        kept = await s3.load_state(state.step) if checkpoint_lacks_state(uid, state.step, checkpoint) else None
        if newest is not None:
            self.progress.restore(newest.board)
        loop = self._loop(session, sampler)
        settings = self._settings
        watcher = ConfigWatcher(settings.config, self._run, settings.config_interval, self._schedule)
        watching = asyncio.create_task(watcher.watch(), name="configuration")
        try:
            await loop.run(state, KnownStates(checkpoint, newest, kept))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await loop.close()

    async def _wait_for_environments(self, timeouts: StartupTimeouts) -> None:
        await _all_or_first_failure(
            *(members.wait_ready(timeouts.component) for members in self._environments.values())
        )
        # Do not wait for the trainer first: it may need more minutes, and environment pods may restart meanwhile.
        await record_packages(self._packages, self._installed_versions(), self._conditions, timeouts)

    def _installed_versions(self) -> dict[PackageRef, list[str | None]]:
        """Return the versions that the environments report, by package: one entry per pod, None if it reported none."""
        versions: dict[PackageRef, list[str | None]] = {}
        for use, entry in config_mapping.environment_entries(self._run):
            member = self._environments[use].environments[entry.effective_name]
            told = [member.info.version if member.info else None]
            if isinstance(member.client, EnvironmentReplicas):
                told = member.client.versions
            pods = [*told, *[None] * (entry.replicas - len(told))]
            versions.setdefault(PackageRef.of(entry.id, entry.version), []).extend(pods)
        return versions

    def _examples(self) -> dict[str, int]:
        members = self._environments[EnvironmentUse.train].environments
        return {name: member.info.train_examples if member.info else 0 for name, member in members.items()}

    def _loop(self, session: TrainerSession, sampler: ExampleSampler) -> RunLoop:
        run, spec, settings = self._run, self._run.spec, self._settings
        environments = self._environments[EnvironmentUse.train]
        dispatcher = Dispatcher(
            config_mapping.group_tracker(run, self._schedule, self.progress.groups),
            sampler,
            environments,
            self._groups,
            self._pool,
            config_mapping.scoring(run),
            config_mapping.dispatch(run, settings),
            self.progress,
            self._conditions,
            self._teacher(),
        )
        tokenizer = ChatTokenizer(
            self._http,
            self._pool,
            run.model.id,
            run.spec.sampling.template_variables,
            deadline=settings.inference_deadline,
        )
        demonstrations = DemonstrationLoader(
            sampler,
            environments,
            tokenizer,
            batch_size=spec.batch_size,
            seq_len=run.model.seq_len,
            templates={
                name: own.apply_to(spec.sampling).template_variables
                for name, own in config_mapping.sampling_overrides(run).items()
            },
        )

        def save_state() -> None:
            # The loop combines the state of all components and is created after the evaluator, which is one of them.
            self._recorder.save_state(loop.state().to_json())

        evaluator = Evaluator(
            evaluation_tasks(run),
            self._environments,
            self._groups,
            self.progress,
            self._conditions,
            self._schedule,
            config_mapping.evaluation(run),
            self._reporter.record_evaluation,
            self._recorder.rollouts,
            save_state,
        )
        loop = RunLoop(
            run.run.uid,
            session,
            dispatcher,
            demonstrations,
            self._pool,
            self._recorder,
            self._reporter,
            evaluator,
            self.progress,
            self._conditions,
            self._schedule,
            config_mapping.loop_timeouts(run, settings),
            config_mapping.publish_timeouts(settings),
            spec.rollouts_per_example,
        )
        return loop

    def _teacher(self) -> DistillationTeacher | None:
        spec = self._run.spec.algorithm.teacher
        deadline = self._settings.teacher_deadline
        return (
            DistillationTeacher(self._outgoing, spec, self._conditions.set_waiting, deadline=deadline)
            if spec is not None
            else None
        )

    # --- servers ------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        exact = config_mapping.exact_prefixes(self._run)
        gateway = Gateway(
            self._groups,
            self._rules,
            self._router,
            self._packages,
            exact_prefixes=exact,
            package_token=self._settings.environment_token,
        ).application()
        registry = make_registry(
            RunCollector(
                self._schedule,
                self.progress,
                lambda: self._reporter.latest_metrics,
                self._pool,
                self._groups,
                self._router.stats,
                self._recorder,
                self._rewards,
            )
        )
        runners = [
            (LimitedRunner(gateway, connections=MANY_CONNECTIONS), self._settings.gateway_port),
            (
                LimitedRunner(status_application(self.status, registry, self._settings.token)),
                self._settings.status_port,
            ),
        ]
        try:
            for runner, port in runners:
                await runner.setup()
                await listen_on(runner, port)
            yield
        finally:
            for runner, _ in runners:
                await runner.cleanup()


def _environment_clients(
    http: aiohttp.ClientSession,
    run: ResolvedRun,
    use: EnvironmentUse,
    settings: OrchestratorSettings,
    addresses: Addresses,
) -> list[EnvironmentClient | EnvironmentReplicas]:
    deadlines, replicas = config_mapping.group_deadlines(run, use), config_mapping.replica_counts(run, use)

    def client_of(endpoint: EnvironmentEndpoint) -> EnvironmentClient | EnvironmentReplicas:
        name, deadline = endpoint.name, deadlines[endpoint.name]
        connect = partial(EnvironmentClient, http, name, group_deadline=deadline, token=settings.environment_token)
        if replicas[name] == 1:
            return connect(endpoint.url)
        find = partial(addresses, endpoint.url)
        return EnvironmentReplicas(
            name, deadline, find, connect, poll_interval=settings.poll_interval, backoff=settings.environment_backoff
        )

    return [client_of(endpoint) for endpoint in run.endpoints.environments if endpoint.use is use]


async def attempt(
    run: ResolvedRun,
    settings: OrchestratorSettings,
    stop: asyncio.Event,
    store: Store,
    resolve: Resolver | None = None,
    addresses: Addresses = pod_urls,
) -> int:
    """Run until completion, failure or `stop`, write the termination message, and return the exit code."""
    # The engine's server closes idle connections after 5 s, and a request on a closed connection would fail.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=5, keepalive_timeout=3.0)
    async with aiohttp.ClientSession(connector=connector, headers=bearer(settings.token)) as http:
        orchestrator = Orchestrator(run, settings, store, http, resolve, addresses)
        work = asyncio.create_task(orchestrator.run(), name="run")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            log.info("shutting down at step %d after a stop signal", orchestrator.progress.step)
            _write_termination_message(settings, orchestrator.status())
            orchestrator.shorten_deadlines()
            work.cancel()
            await asyncio.wait({work}, timeout=settings.stop_deadline + CLOSE_TIMEOUT)
            return ExitCode.RESTART
        stopped.cancel()
        code = _outcome(work, orchestrator.progress)
        _write_termination_message(settings, orchestrator.status())
        return code


def _outcome(work: "asyncio.Task[None]", progress: RunProgress) -> int:
    error = work.exception()
    if error is None:
        return ExitCode.COMPLETED
    if isinstance(error, FatalError):
        log.error("the run failed: %s", error)
        progress.mark_failed(error.problem)
        return error.exit_code
    log.error("the orchestrator failed", exc_info=error)
    message = f"{type(error).__name__}: {error}. This is a bug in the orchestrator; see its log"
    progress.mark_failed(Problem(reason=Reason.INTERNAL_ERROR, message=message[:1000]))
    return ExitCode.RESTART


def _write_termination_message(settings: OrchestratorSettings, status: RunStatus) -> None:
    try:
        settings.termination_log.write_bytes(termination_message(status))
    except OSError as error:
        log.warning("could not write the termination message to %s: %s", settings.termination_log, error)


async def _first_to_end(work: Coroutine[Any, Any, None], watch: Coroutine[Any, Any, None]) -> None:
    """Wait until one of the two ends, and cancel the other. Raises the exception of the first one, if it failed."""
    tasks = [asyncio.create_task(work), asyncio.create_task(watch)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _all_or_first_failure(*waits: Any) -> list[Any]:
    """Return the results of all awaitables. The first failure cancels the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
