"""Access to the trainer of a shared pool: the pool's token changes the order, and a run's token opens its session."""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from rlrun.protocol.access import OPEN_PATHS, TOKEN_VARIABLE, is_allowed
from rlrun.service.access import unauthorized_response

from rlrun_trainer.sessions.trained_runs import NOT_IN_POOL, TrainedRuns

ORDER_PATH = "/pool-order"


def pool_middleware(runs: TrainedRuns, token: str | None) -> Middleware:
    """Return a middleware that responds with 401 to requests without the token that their path needs. `token` is the
    pool's.
    """
    if not token:
        raise ValueError(f"the trainer of a shared pool needs the pool's token: set {TOKEN_VARIABLE}")

    @web.middleware
    async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == ORDER_PATH or request.path in OPEN_PATHS:
            allowed = is_allowed(request.path, request.headers, token)
        else:
            run = runs.find(request.headers.get("Authorization", ""))
            # The name that the handler will use. Paths without a route have none.
            allowed = run is not None and request.match_info.get("session") == run.uid
        return await handler(request) if allowed else unauthorized_response(NOT_IN_POOL)

    return check_token
