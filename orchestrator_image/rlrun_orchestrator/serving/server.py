"""The serving sidecar's routes."""

from aiohttp import web
from rlrun.schema.serving import ServingOrder

from rlrun_orchestrator.answers import answer, healthz, metrics_handler, problems
from rlrun_orchestrator.serving.keeper import Keeper


def serving_app(keeper: Keeper) -> web.Application:
    """GET and PUT /adapters, and the probes."""

    async def get_adapters(_: web.Request) -> web.Response:
        return answer(keeper.report())

    async def put_adapters(request: web.Request) -> web.Response:
        keeper.take(ServingOrder.model_validate_json(await request.read()))
        return answer(keeper.report())

    async def readyz(_: web.Request) -> web.Response:
        problem = keeper.not_ready
        return web.Response(text="ok\n") if problem is None else answer(problem, 503)

    app = web.Application(middlewares=[problems])
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics_handler(keeper.metrics.registry)),
            web.get("/adapters", get_adapters),
            web.put("/adapters", put_adapters),
        ]
    )
    return app
