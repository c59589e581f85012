"""HTTP server of an environment. It responds immediately and is ready once the package is installed and loaded."""

import asyncio
import logging
import time

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from rlrun.constants import Reason
from rlrun.protocol.environment import (
    MAX_REQUEST_BYTES,
    DemonstrationRequest,
    EnvironmentConfig,
    EnvironmentInfo,
    GroupRequest,
    GroupResult,
)
from rlrun.protocol.problem import Problem
from rlrun.service.access import token_middleware
from rlrun.service.errors import ProblemError
from rlrun.service.server import healthz, json_response, metrics_handler, problem_middleware, read_model

from rlrun_environment.package_installer import PackageError, install_environment
from rlrun_environment.settings import EnvironmentProcessSettings
from rlrun_environment.worker_interpreter import choose_interpreter
from rlrun_environment.worker_pool import WorkerPool

log = logging.getLogger(__name__)

GROUP_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600, 1800)


class EnvironmentMetrics:
    """Prometheus metrics of the environment server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.groups = Counter("rlrun_environment_groups", "Finished groups.", ["split"], registry=self.registry)
        self.rollouts = Counter(
            "rlrun_environment_rollouts",
            "Finished rollouts, with reason ok or the reason of the failure.",
            ["reason"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "rlrun_environment_group_seconds", "Seconds per group.", registry=self.registry, buckets=GROUP_BUCKETS
        )
        self.in_flight = Gauge("rlrun_environment_groups_in_flight", "Groups in progress.", registry=self.registry)
        self.ready = Gauge("rlrun_environment_workers_ready", "Workers that accept groups.", registry=self.registry)
        self.restarts = Gauge("rlrun_environment_worker_restarts", "Worker restarts.", registry=self.registry)

    def of(self, request: GroupRequest, result: GroupResult) -> None:
        """Count one finished group and its rollouts."""
        self.groups.labels(request.split.value).inc()
        self.seconds.observe(result.seconds)
        for rollout in result.rollouts:
            self.rollouts.labels(rollout.error.reason if rollout.error else "ok").inc()


class EnvironmentServer:
    """Server of one environment, which installs its package and starts its workers."""

    def __init__(self, config: EnvironmentConfig, process_settings: EnvironmentProcessSettings) -> None:
        self.config = config
        self.process_settings = process_settings
        self.metrics = EnvironmentMetrics()
        self.version = config.version
        self.stage = "waiting for its package"
        self.problem: Problem | None = None
        self.pool = WorkerPool(
            config,
            process_settings.dir,
            process_settings.load_deadline,
            process_settings.hang_grace,
            process_limit=process_settings.process_limit,
        )
        self.metrics.ready.set_function(lambda: sum(w.ready for w in self.pool.workers))
        self.metrics.restarts.set_function(lambda: sum(w.restarts for w in self.pool.workers))

    async def prepare(self) -> None:
        """Install the package and start the workers. If the package cannot be installed, reports the problem and waits
        until cancelled. Raises PackageError if a restart may help.
        """
        started = time.monotonic()
        try:
            self.version = await install_environment(
                self.config,
                self.process_settings.dir,
                self.process_settings.package_deadline,
                self._report,
                self.process_settings.token,
            )
            interpreter = await asyncio.to_thread(
                choose_interpreter, self.config.package, self.process_settings.dir, self.process_settings.interpreters
            )
        except PackageError as error:
            self.problem = error.problem
            log.error("%s: %s", error.problem.reason, error.problem.message)
            if error.problem.reason != Reason.ENVIRONMENT_INSTALL_FAILED:
                raise
            # A restart would install the same wheel, so stay up and report the problem.
            await asyncio.Event().wait()
        self.problem = None
        self.stage = "loading"
        log.info("Package ready after %.1f s, starting %d workers", time.monotonic() - started, self.config.workers)
        self.pool.start(self.version, interpreter)

    def info(self) -> EnvironmentInfo:
        """Return the environment's state. `problem` is set only if a user has to resolve it."""
        loaded = self.pool.info
        ready = self.pool.ready
        problem = None if ready else self.problem or self.pool.problem
        return EnvironmentInfo(
            name=self.config.name or self.config.package,
            id=self.config.id,
            version=self.version,
            ready=ready,
            problem=problem,
            train_examples=loaded.train_examples if loaded else 0,
            eval_examples=loaded.eval_examples if loaded else 0,
            workers=self.config.workers,
            rollouts_at_once=loaded.rollouts_at_once if loaded else None,
        )

    def app(self) -> web.Application:
        """Return the application with all routes."""
        app = web.Application(
            middlewares=[problem_middleware, token_middleware(self.process_settings.token)],
            client_max_size=MAX_REQUEST_BYTES,
        )
        app.add_routes(
            [
                web.get("/healthz", healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", metrics_handler(self.metrics.registry)),
                web.get("/info", self._info),
                web.post("/groups", self._groups),
                web.post("/demonstrations", self._demonstrations),
            ]
        )
        return app

    def _report(self, problem: Problem | None) -> None:
        self.problem = problem

    def _not_ready(self) -> Problem:
        known = self.info().problem
        if known is not None:
            return known
        stage = self.stage if self.pool.info is None else "restarting its workers"
        return Problem(reason=Reason.ENVIRONMENT_STARTING, message=f"{self.config.id} is {stage}. Retry later.")

    async def _readyz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n") if self.pool.ready else json_response(self._not_ready(), 503)

    async def _info(self, _: web.Request) -> web.Response:
        return json_response(self.info())

    async def _groups(self, request: web.Request) -> web.Response:
        group = await read_model(request, GroupRequest)
        if not self.pool.ready:
            raise ProblemError(503, self._not_ready())
        with self.metrics.in_flight.track_inprogress():
            result = await self.pool.run(group)
        self.metrics.of(group, result)
        return json_response(result)

    async def _demonstrations(self, request: web.Request) -> web.Response:
        wanted = await read_model(request, DemonstrationRequest)
        if not self.pool.ready:
            raise ProblemError(503, self._not_ready())
        return json_response(await self.pool.demonstrate(wanted))
