"""HTTP routes of the sidecar."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web
from rlrun.constants import Reason
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import NAME
from rlrun.protocol.problem import Problem
from rlrun.service.access import token_middleware
from rlrun.service.errors import ProblemError
from rlrun.service.server import healthz, json_response, metrics_handler, problem_middleware, read_model

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.policies.policy_loader import PolicyLoader


def sidecar_app(adapters: PolicyLoader, folder: Path, token: str | None = None) -> web.Application:
    """Return the application with the routes of `sidecar_routes` for one run.

    `token` is the run's token, required by all routes except probes and metrics.
    """
    app = web.Application(middlewares=[problem_middleware, token_middleware(token)])
    app.add_routes(sidecar_routes(lambda _: adapters, folder, adapters.metrics))
    return app


def sidecar_routes(
    loader_of: Callable[[web.Request], PolicyLoader],
    folder: Path,
    metrics: SidecarMetrics,
    before_scrape: Callable[[], Awaitable[None]] | None = None,
) -> list[web.RouteDef]:
    """Return the routes: GET /adapters, PUT and DELETE /adapters/{name}, probes and metrics.

    `loader_of` returns the loader of the run that sent a request. `folder` contains the policies' files.
    `before_scrape` is called before the metrics are collected.
    """

    async def get_adapters(request: web.Request) -> web.Response:
        return json_response(await loader_of(request).list())

    async def put_adapter(request: web.Request) -> web.Response:
        policy = await read_model(request, LoadRequest)
        name = _name_in(request)
        if name != policy.name:
            message = f"the path names {name} but the body names {policy.name}; both must name the same policy"
            raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
        return json_response(await loader_of(request).load(policy))

    async def delete_adapter(request: web.Request) -> web.Response:
        return json_response(await loader_of(request).unload(_name_in(request)))

    async def readyz(_: web.Request) -> web.Response:
        # The engine has its own probe. Only the sidecar knows whether an adapter could be stored.
        if os.access(folder, os.W_OK | os.X_OK):
            return web.Response(text="ok\n")
        return json_response(
            Problem(reason=Reason.ADAPTERS_FOLDER_NOT_WRITABLE, message=f"{folder} is not writable"), 503
        )

    return [
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/metrics", metrics_handler(metrics.registry, before_scrape)),
        web.get("/adapters", get_adapters),
        web.put("/adapters/{name}", put_adapter),
        web.delete("/adapters/{name}", delete_adapter),
    ]


def _name_in(request: web.Request) -> str:
    name = request.match_info["name"]
    # The name becomes a folder, so only policy names are accepted.
    if not NAME.fullmatch(name):
        message = f"{name!r} is not a policy name such as policy-v000041-1a2b3c4d"
        raise ProblemError.of(422, Reason.INVALID_REQUEST, message)
    return name
