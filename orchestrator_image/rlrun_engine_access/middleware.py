"""Middleware for vLLM that requires a token on all paths except open paths.

vLLM's own key protects only `/v1` and a few more prefixes. Other paths tokenize, pause the engine or call methods of
its workers. Users of a serving pool must not have a key that loads adapters, so their key is valid only on the users'
paths.

rlrun-server has its own key for the users' paths. It sends a nonce and discards a response that does not prove
knowledge of the same key (`rlrun.protocol.engine_proof`), because a Service's name may resolve to a different server.

A shared pool's engine serves several runs (`rlrun_engine_access.shared_pool`). The paths for sampling
and tokenizing accept each run's token, for the base model and the run's own policies. All other paths accept only the
pool's token, which is valid on every path.

The operator passes the class in vLLM's `--middleware`, and tokens and paths in variables. If no token is set, all
requests are accepted, except in a shared pool, which does not start.
"""

import hashlib
import hmac
import os
from pathlib import Path

from rlrun_engine_access.asgi import UNAUTHORIZED, App, Message, Receive, Rejection, Send, header_values
from rlrun_engine_access.shared_pool import RUN_PATHS, SAMPLING_PATHS, USAGE_PATHS, SharedPool

TOKEN_VARIABLE = "RLRUN_TOKEN"
OPEN_PATHS_VARIABLE = "RLRUN_OPEN_PATHS"
POOL_API_KEY_VARIABLE = "RLRUN_POOL_API_KEY"
POOL_API_KEY_SECRET_VARIABLE = "RLRUN_POOL_API_KEY_SECRET"
POOL_SERVER_KEY_VARIABLE = "RLRUN_POOL_SERVER_KEY"
USER_PATHS_VARIABLE = "RLRUN_USER_PATHS"
ORDER_FILE_VARIABLE = "RLRUN_POOL_ORDER_FILE"
"""Variable with the path of the file that lists a shared pool's runs."""
MAX_LORAS_VARIABLE = "RLRUN_MAX_LORAS"
"""Variable with the maximum number of adapters in one batch of a shared pool's engine."""
MAX_SEQUENCES_VARIABLE = "RLRUN_MAX_SEQUENCES"
"""Variable with the maximum number of sequences in one batch of a shared pool's engine."""
MAX_BODY_VARIABLE = "RLRUN_MAX_BODY"
"""Variable with the maximum size in bytes of a request's body in a shared pool."""
NONCE_HEADER = b"x-rlrun-nonce"
PROOF_HEADER = b"x-rlrun-proof"
POLICY_VIOLATION = 1008
"""Close code for a WebSocket (RFC 6455)."""


class EngineAccess:
    """ASGI middleware that rejects requests without a valid token before anything else handles them."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._token = _read_digest(TOKEN_VARIABLE)
        self._api_key = _read_digest(POOL_API_KEY_VARIABLE)
        self._server_key = os.environ.get(POOL_SERVER_KEY_VARIABLE, "").encode()
        self._secret = os.environ.get(POOL_API_KEY_SECRET_VARIABLE, "")
        self._open = _paths(OPEN_PATHS_VARIABLE)
        self._users = _paths(USER_PATHS_VARIABLE)
        self._shared = _shared_pool(app)
        if self._shared is not None and self._token is None:
            raise ValueError(f"{TOKEN_VARIABLE} is not set; a shared pool's engine must have the pool's token")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass the request on to vLLM or the shared pool, respond with 401, or close the WebSocket."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif self._is_server(scope):
            await self._app(scope, receive, self._proving(scope, send))
        elif self._is_allowed(scope):
            if self._shared is not None and _is_http(scope, "POST", SAMPLING_PATHS):
                await self._shared.serve_pool(scope, receive, send)
            elif self._shared is not None and _is_http(scope, "GET", USAGE_PATHS):
                await self._shared.send_usage(send)
            else:
                await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        elif self._shared is not None and _is_http(scope, "POST", RUN_PATHS):
            await self._shared(scope, receive, send)
        else:
            await self._refuse(scope["path"], send)

    def _is_allowed(self, scope: Message) -> bool:
        # The text that vLLM matches against its routes: decoded, without the query.
        path = scope["path"]
        if self._token is None or path in self._open:
            return True
        accepted = [self._token]
        if self._api_key is not None and path in self._users:
            accepted.append(self._api_key)
        return any(
            hmac.compare_digest(value, expected)
            for value in header_values(scope, b"authorization")
            for expected in accepted
        )

    def _is_server(self, scope: Message) -> bool:
        if scope["type"] != "http" or not self._server_key or scope["path"] not in self._users:
            return False
        expected = b"Bearer " + self._server_key
        return any(hmac.compare_digest(value, expected) for value in header_values(scope, b"authorization"))

    def _proving(self, scope: Message, send: Send) -> Send:
        nonce = b"".join(value for name, value in scope["headers"] if name == NONCE_HEADER)
        proof = hmac.new(self._server_key, b"proof/" + nonce, hashlib.sha256).hexdigest()

        async def send_with_proof(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (PROOF_HEADER, proof.encode())]
            await send(message)

        return send_with_proof

    async def _refuse(self, path: str, send: Send) -> None:
        if path in self._users:
            message = (
                "This path requires the serving pool's API key as `Authorization: Bearer KEY`; the key is "
                f"OPENAI_API_KEY in Secret {self._secret} in the pool's namespace"
            )
        else:
            message = (
                "This path requires the token of the engine's run or serving pool, which only platform processes "
                f"have. Paths without a token: {', '.join(self._open)}"
            )
        await Rejection(UNAUTHORIZED, message).respond(send)


def _read_digest(variable: str) -> bytes | None:
    secret = os.environ.get(variable, "")
    return f"Bearer {secret}".encode() if secret else None


def _paths(variable: str) -> tuple[str, ...]:
    return tuple(path for path in os.environ.get(variable, "").split(",") if path)


def _is_http(scope: Message, method: str, paths: frozenset[str]) -> bool:
    return scope["type"] == "http" and scope["method"] == method and scope["path"] in paths


def _shared_pool(app: App) -> SharedPool | None:
    path = os.environ.get(ORDER_FILE_VARIABLE, "")
    if not path:
        return None
    loras, sequences, body = (
        int(os.environ[name]) for name in (MAX_LORAS_VARIABLE, MAX_SEQUENCES_VARIABLE, MAX_BODY_VARIABLE)
    )
    return SharedPool(app, Path(path), max_loras=loras, max_sequences=sequences, max_body=body)
