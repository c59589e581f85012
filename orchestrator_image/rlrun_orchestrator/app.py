"""One attempt at a run: servers first, then the waits, then the loop; and the last word in the termination message."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from aiohttp import web
from rlrun.artifacts.layout import RunLayout, S3Uri
from rlrun.artifacts.store import AccessDenied, BucketMissing, Store, StoreError
from rlrun.schema.resolved import EnvironmentUse, ResolvedRun
from rlrun.schema.wire import Problem

from rlrun_orchestrator.answers import runner_of
from rlrun_orchestrator.board import Board
from rlrun_orchestrator.buffer import Buffer, BufferSettings
from rlrun_orchestrator.dispatcher import Dispatcher, DispatchSettings
from rlrun_orchestrator.environment_client import EnvironmentClient
from rlrun_orchestrator.environments import Environments
from rlrun_orchestrator.errors import EXIT_COMPLETED, EXIT_CONFIGURATION, EXIT_RESTART, RunFailed
from rlrun_orchestrator.evaluator import Evaluator, measurements
from rlrun_orchestrator.exposition import RunCollector, registry_of
from rlrun_orchestrator.gateway.groups import LiveGroups
from rlrun_orchestrator.gateway.packages import Packages
from rlrun_orchestrator.gateway.routing import Router
from rlrun_orchestrator.gateway.sampling import SamplingRules
from rlrun_orchestrator.gateway.server import Gateway
from rlrun_orchestrator.inference import ReplicaPool, Resolver, dns_resolver
from rlrun_orchestrator.loop import Cadence, RunLoop
from rlrun_orchestrator.recorder import Recorder, saved_state
from rlrun_orchestrator.rollouts import Scoring
from rlrun_orchestrator.scheduler import Scheduler, SchedulerSettings
from rlrun_orchestrator.settings import Settings
from rlrun_orchestrator.status_server import status_application
from rlrun_orchestrator.trainer_client import TrainerClient
from rlrun_orchestrator.trainer_session import TrainerSession

log = logging.getLogger(__name__)


class Orchestrator:
    """Everything one attempt consists of."""

    def __init__(
        self,
        run: ResolvedRun,
        settings: Settings,
        store: Store,
        http: aiohttp.ClientSession,
        resolve: Resolver | None = None,
    ) -> None:
        """`resolve` finds the inference replicas; DNS when not given."""
        self.board = Board(run.spec.max_steps)
        self._run = run
        self._settings = settings
        self._store = store
        self._http = http
        self._layout = RunLayout(S3Uri.parse(run.artifacts.run_uri))
        self._groups = LiveGroups()
        resolve = resolve or dns_resolver(run.endpoints.inference_host, settings.inference_port, settings.sidecar_port)
        self._pool = ReplicaPool(http, resolve, self._groups.policies, poll_interval=settings.poll_interval)
        self._recorder = Recorder(store, self._layout)
        self._router = Router(
            http, self._pool, self._groups, wait=settings.request_wait, deadline=settings.group_deadline
        )
        self._rules = sampling_rules(run)
        self._environments = {
            use: Environments(
                [EnvironmentClient(http, e.name, e.url) for e in run.endpoints.environments if e.use is use],
                self.board.wait,
                poll_interval=settings.poll_interval,
                grace=settings.configuration_grace,
                lost_deadline=settings.environment_deadline,
                backoff=settings.environment_backoff,
            )
            for use in EnvironmentUse
        }

    async def run(self) -> None:
        """The whole attempt. Raises RunFailed."""
        async with self._serving():
            self._pool.start()
            self._recorder.start()
            try:
                await self._train()
            finally:
                await self._recorder.close(self._settings.drain_deadline)
                for environments in self._environments.values():
                    await environments.close()
                await self._pool.close()

    async def _train(self) -> None:
        deadline = float(min(self._settings.start_deadline, self._run.spec.start_deadline_seconds))
        # S3 first, because everyone else needs it too and would complain in less clear words.
        await self._wait_for_s3(deadline)
        saved = await self._saved_state(deadline)
        session = TrainerSession(
            TrainerClient(self._http, self._run.endpoints.trainer_url, self._run.run.uid),
            self._run,
            self._store,
            self._layout,
            self.board,
            self._settings,
        )
        state, *_ = await _all_or_first_failure(
            session.open(deadline), *(members.wait_ready(deadline) for members in self._environments.values())
        )
        loop = self._loop(session, saved, state.orchestrator_state)
        try:
            await loop.run(state)
        finally:
            await loop.close()

    def _loop(
        self, session: TrainerSession, saved: dict[str, Any] | None, checkpointed: dict[str, Any] | None
    ) -> RunLoop:
        run, spec, settings = self._run, self._run.spec, self._settings
        buffer = self._buffer()
        own = saved or (checkpointed if self._run.warm_start_from is None else None)
        _restore(self.board, buffer, own, checkpointed)
        before = self.board.groups
        scheduler = Scheduler(
            SchedulerSettings.of(
                batch_size=spec.batch_size,
                rollouts_per_example=spec.rollouts_per_example,
                oversampling_factor=spec.oversampling_factor,
                max_async_level=spec.max_async_level,
                max_steps=spec.max_steps,
            ),
            trained=before.trained,
            filtered=before.filtered,
            errored=before.errored,
            # What an earlier process had in flight ended with it.
            stale=before.stale + before.in_flight,
        )
        sampling: dict[str, object] = {
            "temperature": spec.sampling.temperature,
            "max_tokens": spec.sampling.max_tokens,
        }
        dispatcher = Dispatcher(
            scheduler,
            buffer,
            self._environments[EnvironmentUse.train],
            self._groups,
            self._pool,
            Scoring(
                rollouts_per_example=spec.rollouts_per_example,
                strategy=spec.trajectory_strategy,
                seq_len=run.model.seq_len,
                online_filtering=spec.buffer.online_difficulty_filtering,
            ),
            DispatchSettings(
                gateway_url=run.endpoints.gateway_url,
                rollouts_per_example=spec.rollouts_per_example,
                sampling=sampling,
                group_deadline=settings.group_deadline,
                inference_deadline=settings.inference_deadline,
                empty_batch_backoff=settings.empty_batch_backoff,
            ),
            self.board,
        )
        evaluator = Evaluator(
            measurements(run),
            self._environments,
            self._groups,
            self.board,
            gateway_url=run.endpoints.gateway_url,
            max_steps=spec.max_steps,
            sampling=sampling,
            group_deadline=settings.group_deadline,
            before_training=spec.eval is not None and spec.eval.eval_base_model,
        )
        return RunLoop(
            session,
            dispatcher,
            self._pool,
            self._recorder,
            evaluator,
            self.board,
            Cadence(spec.max_steps, spec.checkpoints.interval or settings.checkpoint_interval, spec.adapters.interval),
            settings,
            spec.rollouts_per_example,
        )

    def _buffer(self) -> Buffer:
        spec = self._run.spec
        members = self._environments[EnvironmentUse.train].members
        sizes = {name: member.info.train_examples if member.info else 0 for name, member in members.items()}
        by_environment = [e.weight for e in spec.env if e.weight is not None]
        try:
            return Buffer(
                sizes,
                spec.buffer.env_ratios or by_environment or None,
                BufferSettings(
                    seed=spec.buffer.seed if spec.buffer.seed is not None else spec.seed,
                    filtering=spec.buffer.online_difficulty_filtering,
                    easy_threshold=spec.buffer.easy_threshold,
                    hard_threshold=spec.buffer.hard_threshold,
                    easy_fraction=spec.buffer.easy_fraction,
                    hard_fraction=spec.buffer.hard_fraction,
                ),
            )
        except ValueError as error:
            message = f"{error}: load_environment must give a dataset with examples"
            raise RunFailed(Problem(reason="NoExamples", message=message), EXIT_CONFIGURATION) from error

    # --- servers and first waits --------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        packages = Packages(self._store, self._run.artifacts.environments_uri)
        gateway = Gateway(self._groups, self._rules, self._router, packages).application()
        registry = registry_of(RunCollector(self.board, self._pool, self._groups, self._router.stats, self._recorder))
        runners = [
            (runner_of(gateway), self._settings.gateway_port),
            (runner_of(status_application(self.board, registry)), self._settings.status_port),
        ]
        try:
            for runner, port in runners:
                await runner.setup()
                await web.TCPSite(runner, port=port, backlog=1024).start()
            yield
        finally:
            for runner, _ in runners:
                await runner.cleanup()

    async def _wait_for_s3(self, deadline: float) -> None:
        start = time.monotonic()
        while True:
            try:
                await asyncio.to_thread(self._store.check, self._layout.root.bucket)
                self.board.wait("s3", None)
                return
            except StoreError as error:
                mistake = isinstance(error, AccessDenied | BucketMissing)
                self.board.wait("s3", error.problem)
                patience = min(deadline, self._settings.configuration_grace) if mistake else deadline
                if time.monotonic() - start >= patience:
                    raise RunFailed(error.problem, EXIT_CONFIGURATION if mistake else EXIT_RESTART) from error
                log.warning("%s", error)
                await asyncio.sleep(self._settings.poll_interval)

    async def _saved_state(self, deadline: float) -> dict[str, Any] | None:
        start = time.monotonic()
        while True:
            try:
                return await saved_state(self._store, self._layout)
            except ValueError as error:
                log.warning("the saved state of the orchestrator cannot be read and is left: %s", error)
                return None
            except StoreError as error:
                self.board.wait("s3", error.problem)
                if time.monotonic() - start >= deadline:
                    raise RunFailed(error.problem, EXIT_RESTART) from error
                await asyncio.sleep(self._settings.poll_interval)


def sampling_rules(run: ResolvedRun) -> SamplingRules:
    """The run's sampling section as the gateway applies it."""
    sampling = run.spec.sampling
    return SamplingRules(
        max_tokens=sampling.max_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop=list(sampling.stop),
        min_tokens=sampling.min_tokens,
        repetition_penalty=sampling.repetition_penalty,
        seed=sampling.seed,
    )


async def attempt(
    run: ResolvedRun, settings: Settings, stop: asyncio.Event, store: Store, resolve: Resolver | None = None
) -> int:
    """Runs until completion, failure or `stop`; writes the termination message; returns the exit code."""
    # The engine's server closes idle connections after 5 s; a request must not be the one to find out.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=5, keepalive_timeout=3.0)
    async with aiohttp.ClientSession(connector=connector) as http:
        orchestrator = Orchestrator(run, settings, store, http, resolve)
        work = asyncio.create_task(orchestrator.run(), name="run")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        board = orchestrator.board
        if not work.done():
            log.info("asked to stop: leaving at step %d", board.step)
            _last_word(settings, board)
            work.cancel()
            await asyncio.wait({work}, timeout=5.0)
            return EXIT_RESTART
        stopped.cancel()
        code = _outcome(work, board)
        _last_word(settings, board)
        return code


def _outcome(work: "asyncio.Task[None]", board: Board) -> int:
    error = work.exception()
    if error is None:
        return EXIT_COMPLETED
    if isinstance(error, RunFailed):
        log.error("the run failed: %s", error)
        board.failed(error.problem)
        return error.exit_code
    log.error("the orchestrator failed", exc_info=error)
    message = f"{type(error).__name__}: {error}. This is an error of the orchestrator: see its log"
    board.failed(Problem(reason="InternalError", message=message[:1000]))
    return EXIT_RESTART


def _last_word(settings: Settings, board: Board) -> None:
    try:
        settings.termination_log.write_bytes(board.termination_message())
    except OSError as error:
        log.warning("no termination message at %s: %s", settings.termination_log, error)


def _restore(board: Board, buffer: Buffer, own: dict[str, Any] | None, any_state: dict[str, Any] | None) -> None:
    """Counters continue from this run's own state; the buffer also from that of the run it started from."""
    try:
        if own:
            board.restore(own["board"])
        source = own or any_state
        if source:
            buffer.restore(source["buffer"])
    except (KeyError, TypeError, ValueError) as error:
        log.warning("saved state is of another shape and is not used: %s: %s", type(error).__name__, error)


async def _all_or_first_failure(*waits: Any) -> list[Any]:
    """Results of all; the first failure ends the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
