"""HTTP routes of the trainer. They parse requests, call the session, and report failures as a `Problem`."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.typedefs import Middleware
from pydantic import BaseModel
from rlrun.api.base.rules import ADMITTED
from rlrun.constants import LATER, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import ORCHESTRATOR_HEADER, STATE_LIMITS, CheckpointRequest, SessionSpec, SessionState
from rlrun.service.access import token_middleware
from rlrun.service.errors import ProblemError
from rlrun.service.server import read_batch, read_model

from rlrun_trainer.server.prometheus import TrainerMetrics
from rlrun_trainer.sessions.body_turns import BodyTurns
from rlrun_trainer.sessions.session_owners import SessionOwners
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.trained_runs import RunStorage
from rlrun_trainer.sessions.training_session import TrainingSession

log = logging.getLogger(__name__)

M = TypeVar("M", bound=BaseModel)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Save = Callable[[TrainingSession, int, dict[str, Any]], Awaitable[SessionState]]


class Server:
    """HTTP server of one run's trainer. Probes work immediately, and sessions once the model is loaded."""

    def __init__(self, token: str | None = None) -> None:
        """`token` is the run's token, required by all routes except probes and metrics. If it is None, all requests are
        accepted.
        """
        self._token = token
        self._sessions: Sessions | None = None
        self._owners = SessionOwners()
        self._batches, self._states = BodyTurns(), BodyTurns()
        self.metrics = TrainerMetrics()

    @property
    def sessions(self) -> Sessions | None:
        """Sessions, or None while the model is loading."""
        return self._sessions

    @sessions.setter
    def sessions(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._on_loaded()

    def application(self) -> web.Application:
        """Return the aiohttp application with all routes."""
        # The size limit is for bodies other than batches, which are read in pieces.
        app = web.Application(client_max_size=STATE_LIMITS.size, middlewares=self._middlewares())
        app.add_routes(self._routes())
        return app

    def _middlewares(self) -> list[Middleware]:
        return [answer_problems, token_middleware(self._token)]

    def _routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/metrics", self._metrics),
            web.put("/sessions/{session}", self._open),
            web.get("/sessions/{session}", self._state),
            web.delete("/sessions/{session}", self._close),
            web.post(r"/sessions/{session}/steps/{step:\d+}", self._step),
            web.post(r"/sessions/{session}/checkpoints/{step:\d+}", self._checkpoint),
            web.post(r"/sessions/{session}/adapters/{step:\d+}", self._adapter),
            web.get(r"/sessions/{session}/policies/{policy}/{file:.+}", self._policy),
        ]

    # A shared pool differs in the following.

    def _on_loaded(self) -> None:
        """Hook that is called when the model is loaded."""

    def _require(self, name: str) -> None:
        """Raise ProblemError if the run may not change its session."""

    async def _storage_for(self, name: str, spec: SessionSpec) -> RunStorage | None:
        """Return where the session's artifacts are stored, or None to use the process's own store. Raises
        ProblemError if the run may not open this session.
        """
        return None

    def _check_batch(self, name: str, size: int | None) -> None:
        """Raise ProblemError if the trainer may not read the run's batch of `size` bytes."""

    def _on_step(self, name: str) -> None:
        """Hook that is called after each step of the session."""

    def _counting_memory(self, name: str) -> AbstractContextManager[None]:
        """Return a context for a request that computes. A shared pool counts the request's out-of-memory failures in
        it.
        """
        return nullcontext()

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        self._ready()
        return web.Response(text="ok\n")

    async def _metrics(self, _: web.Request) -> web.Response:
        self._drop_metrics()
        return web.Response(body=self.metrics.text(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def _open(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        sessions, spec = self._ready(), await _body(request, SessionSpec)
        storage = await self._storage_for(name, spec)
        self._owners.take(name, _orchestrator(request))
        with self._counting_memory(name):
            session = await sessions.open(name, spec, storage)
        self._drop_metrics()
        self.metrics.set_step(name, session.state.step)
        return _json(session.state)

    async def _state(self, request: web.Request) -> web.Response:
        return _json(self._ready().get(request.match_info["session"]).state)

    async def _close(self, request: web.Request) -> web.Response:
        name = request.match_info["session"]
        self._owners.check(name, _orchestrator(request))
        await self._ready().close(name)
        return web.Response(status=204)

    async def _step(self, request: web.Request) -> web.Response:
        name = self._session_to_change(request).name
        self._check_batch(name, request.content_length)
        async with self._batches.turn(name):
            batch = await read_batch(request)
            session = self._session_to_change(request)
            with self._counting_memory(name):
                result = await session.train(int(request.match_info["step"]), batch.samples, batch.batch_id)
        self._on_step(name)
        self.metrics.on_step(name, result)
        return _json(result)

    async def _checkpoint(self, request: web.Request) -> web.Response:
        return await self._save(request, TrainingSession.save_checkpoint)

    async def _adapter(self, request: web.Request) -> web.Response:
        return await self._save(request, TrainingSession.save_adapter)

    async def _save(self, request: web.Request, save: Save) -> web.Response:
        name = self._session_to_change(request).name
        async with self._states.turn(name):
            state = (await _body(request, CheckpointRequest)).orchestrator_state
            session = self._session_to_change(request)
            return _json(await save(session, int(request.match_info["step"]), state), status=202)

    async def _policy(self, request: web.Request) -> web.StreamResponse:
        session = self._ready().get(request.match_info["session"])
        found = session.file(request.match_info["policy"], request.match_info["file"])
        return web.FileResponse(found) if isinstance(found, Path) else web.Response(body=found)

    def _session_to_change(self, request: web.Request) -> TrainingSession:
        """Return the request's session. Raises ProblemError if the orchestrator does not own the session, or if the run
        has left the pool. Called again after the body has arrived, because that may take long.
        """
        name = request.match_info["session"]
        self._require(name)
        self._owners.check(name, _orchestrator(request))
        return self._ready().get(name)

    def _drop_metrics(self) -> None:
        self.metrics.keep_only([] if self._sessions is None else [session.name for session in self._sessions.all()])

    def _ready(self) -> Sessions:
        if self._sessions is None:
            raise ProblemError.of(
                LATER, Reason.TRAINER_LOADING, "The base model is still loading. Retry in a few seconds."
            )
        return self._sessions


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Respond to every failure with a `Problem`."""
    try:
        return await handler(request)
    except ProblemError as error:
        if error.status != LATER:
            log.warning("%s %s: %s", request.method, request.path, error)
        return _json(error.problem, status=error.status)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        problem = Problem(reason=type(error).__name__.removeprefix("HTTP"), message=f"{request.path}: {error.reason}")
        return _json(problem, status=error.status)
    except Exception as error:
        log.exception("%s %s", request.method, request.path)
        return _json(Problem(reason=Reason.TRAINER_ERROR, message=f"{type(error).__name__}: {error}"), status=500)


def _orchestrator(request: web.Request) -> str:
    return request.headers.get(ORCHESTRATOR_HEADER, "")


async def _body(request: web.Request, model: type[M]) -> M:
    # The run was admitted earlier, so its sections may violate newer rules.
    return await read_model(request, model, context=ADMITTED, reason=f"{model.__name__}Invalid")


def _json(model: BaseModel, status: int = 200) -> web.Response:
    body = model.model_dump_json(by_alias=True, exclude_none=True)
    return web.Response(text=body, status=status, content_type="application/json")
