"""Access to the trainer of a shared pool. The pool's token allows replacing the `TrainerOrder`, which lists the pool's
runs. A run's token allows the requests of the run's driver to the run's own session.
"""

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.access import OPEN_PATHS, TOKEN_VARIABLE, is_allowed
from rlrun.protocol.engine_proof import NONCE_HEADER, PROOF_HEADER, proof_of
from rlrun.protocol.shared_pool import TrainedRun
from rlrun.service.access import unauthorized_response
from rlrun.service.errors import ProblemError
from rlrun.service.pool_orders import SCHEME

from rlrun_trainer.sessions.trained_runs import NOT_IN_POOL, TrainedRuns

ORDER_PATH = "/pool-order"
COMMAND_PATH = "/sessions/{session}/commands/{number}"
RESULT_PATH = "/sessions/{session}/results/{number}"
HEARTBEAT_PATH = "/sessions/{session}/heartbeat"
CLIENT_PATHS = frozenset({COMMAND_PATH, RESULT_PATH, HEARTBEAT_PATH})
"""Routes of runs whose training loop is a client's program."""
MAX_NONCE = 256
"""Maximum length of a nonce in characters. Responses to longer nonces contain no proof."""
TOKEN = web.RequestKey("token", str)
"""Token of an accepted request."""


def pool_middleware(runs: TrainedRuns, token: str | None) -> Middleware:
    """Return a middleware that responds with 401 to requests without the token that their path requires. `token` is the
    pool's token. Raises ValueError if it is empty or None.
    """
    if not token:
        raise ValueError(f"The trainer of a shared pool needs the pool's token. Set {TOKEN_VARIABLE}.")

    @web.middleware
    async def check_token(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == ORDER_PATH or request.path in OPEN_PATHS:
            allowed = is_allowed(request.path, request.headers, token)
        else:
            run = runs.find(request.headers.get("Authorization", ""))
            # The name that the handler will use. Paths without a route have none.
            allowed = run is not None and request.match_info.get("session") == run.uid
            if run is not None and allowed:
                request[TOKEN] = request.headers["Authorization"].removeprefix(SCHEME)
                _check_driver(run, request)
        return await handler(request) if allowed else unauthorized_response(NOT_IN_POOL)

    return check_token


@web.middleware
async def prove_token(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the proof for the nonce in a run's accepted request to the response (see `rlrun.protocol.engine_proof`)."""
    response = await handler(request)
    nonce, token = request.headers.get(NONCE_HEADER, ""), request.get(TOKEN)
    if token is not None and 0 < len(nonce) <= MAX_NONCE:
        response.headers[PROOF_HEADER] = proof_of(token, nonce)
    return response


def _check_driver(run: TrainedRun, request: web.Request) -> None:
    """Raise ProblemError (`SessionConflict`, 409) if the route does not belong to the run's driver."""
    resource = request.match_info.route.resource
    is_for_clients = resource is not None and resource.canonical in CLIENT_PATHS
    if is_for_clients == (run.client is not None):
        return
    message = (
        "Commands are for runs with driver Client; this run has an orchestrator. Use /steps."
        if is_for_clients
        else "The trainer opens and saves the session of a run with driver Client by itself. Send commands."
    )
    raise ProblemError.of(CONFLICT, Reason.SESSION_CONFLICT, message)
