"""HTTP server of a shared pool's trainer: receives the `TrainerOrder`, which lists the pool's runs, and serves the
routes of each run's driver.
"""

from contextlib import AbstractContextManager

from aiohttp import web
from aiohttp.typedefs import Middleware
from rlrun.api.base.received import limits_of
from rlrun.api.base.rules import ADMITTED
from rlrun.protocol.pool_usage import PoolUsage
from rlrun.protocol.shared_pool import TrainerOrder, TrainerSessions
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.server import json_response, read_model
from typing_extensions import override

from rlrun_trainer.server.client_routes import ClientRoutes
from rlrun_trainer.server.http_server import Server, answer_problems
from rlrun_trainer.server.pool_access import ORDER_PATH, pool_middleware, prove_token
from rlrun_trainer.server.prometheus import TrainerMetrics
from rlrun_trainer.sessions.client_runs import ClientRuns
from rlrun_trainer.sessions.trained_runs import RunStorage, TrainedRuns


class PoolServer(Server):
    """HTTP server of a shared pool's trainer."""

    def __init__(self, token: str | None, runs: TrainedRuns) -> None:
        """`token` is the pool's token. It gives access only to the route of the `TrainerOrder`; a run's token gives
        access only to the run's session.
        """
        super().__init__(token)
        self._access = pool_middleware(runs, token)
        self._runs = runs
        self._clients = ClientRuns(runs)
        self.metrics = TrainerMetrics(self._pool_usage)
        self._follow_order()

    @override
    def _middlewares(self) -> list[Middleware]:
        return [prove_token, answer_problems, self._access]

    @override
    def _routes(self) -> list[web.RouteDef]:
        return [web.put(ORDER_PATH, self._put_order), *ClientRoutes(self._clients).all(), *super()._routes()]

    async def _put_order(self, request: web.Request) -> web.Response:
        body = request.clone(client_max_size=limits_of(TrainerOrder).size)
        # The runs were admitted earlier, so the sections of their sessions may violate newer rules.
        self._runs.apply(await read_model(body, TrainerOrder, context=ADMITTED))
        self._follow_order()
        names = [] if self._sessions is None else self._sessions.names()
        return json_response(TrainerSessions(sessions=names, clients=self._clients.activities))

    def _follow_order(self) -> None:
        """Remove the state of runs that are not in the current `TrainerOrder`, and open the sessions of clients' runs
        that are in it.
        """
        self._owners.keep_only(self._runs.uids)
        if self._sessions is not None:
            self._sessions.keep_only(self._runs.uids)
        self._clients.follow_order(self._sessions)

    @override
    def _on_loaded(self) -> None:
        self._follow_order()

    @override
    async def _metrics(self, request: web.Request) -> web.Response:
        for client in self._clients.activities:
            if client.is_open:
                self.metrics.set_step(client.uid, client.updates)
        return await super()._metrics(request)

    @override
    def _require(self, name: str) -> None:
        self._runs.require(name)

    @override
    async def _storage_for(self, name: str, spec: SessionSpec) -> RunStorage | None:
        self._runs.check(name, spec)
        return await self._runs.storage(name)

    @override
    def _check_batch(self, name: str, size: int | None) -> None:
        self._runs.check_batch(name, size)

    @override
    def _on_step(self, name: str) -> None:
        self._runs.on_step(name)

    @override
    def _counting_memory(self, name: str) -> AbstractContextManager[None]:
        return self._runs.counting_memory(name)

    def _pool_usage(self) -> PoolUsage | None:
        return None if self._sessions is None else self._sessions.usage.current()
