"""HTTP routes of a shared pool's sidecar."""

from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler
from rlrun.constants import Reason
from rlrun.protocol.access import OPEN_PATHS, is_allowed
from rlrun.protocol.shared_pool import PoolOrder
from rlrun.service.access import UNAUTHORIZED, unauthorized_response
from rlrun.service.errors import ProblemError
from rlrun.service.server import json_response, problem_middleware, read_model

from rlrun_adapter_sidecar.policies.policy_loader import PolicyLoader
from rlrun_adapter_sidecar.policies.server import sidecar_routes
from rlrun_adapter_sidecar.pools.pool_runs import PoolRuns

ORDER_PATH = "/pool-order"


def pool_app(runs: PoolRuns, folder: Path, token: str) -> web.Application:
    """Return the application: the routes of a run's sidecar for each run of the current order, and PUT /pool-order,
    which needs the pool's token.
    """

    @web.middleware
    async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == ORDER_PATH or request.path in OPEN_PATHS:
            allowed = is_allowed(request.path, request.headers, token)
        else:
            allowed = runs.find(request.headers.get("Authorization", "")) is not None
        return await handler(request) if allowed else unauthorized_response()

    async def put_order(request: web.Request) -> web.Response:
        order = await read_model(request, PoolOrder)
        await runs.apply(order)
        return json_response(order)

    def loader_of(request: web.Request) -> PolicyLoader:
        # The run may have left the pool while its body arrived.
        found = runs.find(request.headers["Authorization"])
        if found is None:
            raise ProblemError.of(UNAUTHORIZED, Reason.TOKEN_INVALID, "the run is no longer in this pool")
        return found

    app = web.Application(middlewares=[problem_middleware, check_token])
    routes = sidecar_routes(loader_of, folder, runs.metrics, before_scrape=runs.usage.refresh)
    app.add_routes([web.put(ORDER_PATH, put_order), *routes])
    return app
