"""HTTP routes of the server."""

import time
from collections.abc import Callable, Sequence

from aiohttp import web
from rlrun.protocol.api_keys import KEY_PATH, KEYS_PATH, NewApiKey
from rlrun.protocol.storage_access import (
    SIGN_BATCH_PATH,
    SIGN_PATH,
    RequestToSign,
    SignBatchRequest,
    SignedBatch,
    SignedHeaders,
    SignRequest,
)
from rlrun.protocol.user_storage import LOCATION_PATH, TOKEN_HEADER, USER_SIGN_PATH, UserSignRequest
from rlrun.service.server import healthz, json_response, metrics_handler, problem_middleware

from rlrun_server.api_key_management import ApiKeyManagement
from rlrun_server.metrics import REGISTRY, SIGN_SECONDS
from rlrun_server.signing import Signing
from rlrun_server.user_signing import UserSigning

MAX_BODY = 256 * 1024
"""Bytes of a batch with the longest URLs, and of the longest grant."""
SCHEME = "Bearer "


def server_app(signing: Signing, users: UserSigning, keys: ApiKeyManagement) -> web.Application:
    """Return the application for run pods and users."""

    async def signed(request: web.Request, grant: str, requests: Sequence[RequestToSign]) -> list[SignedHeaders]:
        started = time.monotonic()
        try:
            return await signing.sign(_bearer(request), grant, requests)
        finally:
            SIGN_SECONDS.observe(time.monotonic() - started)

    async def sign(request: web.Request) -> web.Response:
        asked = SignRequest.model_validate_json(await request.read())
        (headers,) = await signed(request, asked.grant, [asked])
        return json_response(headers)

    async def sign_batch(request: web.Request) -> web.Response:
        asked = SignBatchRequest.model_validate_json(await request.read())
        return json_response(SignedBatch(signed=await signed(request, asked.grant, asked.requests)))

    async def sign_for_user(request: web.Request) -> web.Response:
        asked = UserSignRequest.model_validate_json(await request.read())
        return json_response(await users.sign(_user_token(request), request.remote or "", asked))

    async def location(request: web.Request) -> web.Response:
        return json_response(await users.location(_user_token(request), request.remote or ""))

    app = web.Application(middlewares=[problem_middleware], client_max_size=MAX_BODY)
    app.router.add_post(SIGN_PATH, sign)
    app.router.add_post(SIGN_BATCH_PATH, sign_batch)
    app.router.add_post(USER_SIGN_PATH, sign_for_user)
    app.router.add_get(LOCATION_PATH, location)
    add_key_routes(app, keys)
    return app


def add_key_routes(app: web.Application, keys: ApiKeyManagement) -> None:
    """Add the routes of API keys."""

    async def create(request: web.Request) -> web.Response:
        asked = NewApiKey.model_validate_json(await request.read() or b"{}")
        return json_response(await keys.create(*_who_and_where(request), asked), 201)

    async def list_keys(request: web.Request) -> web.Response:
        return json_response(await keys.list(*_who_and_where(request)))

    async def delete(request: web.Request) -> web.Response:
        return json_response(await keys.delete(*_who_and_where(request), request.match_info["id"]))

    app.router.add_post(KEYS_PATH, create)
    app.router.add_get(KEYS_PATH, list_keys)
    app.router.add_delete(KEY_PATH, delete)


def _who_and_where(request: web.Request) -> tuple[str, str, str]:
    return _user_token(request), request.remote or "", request.match_info["namespace"]


def _bearer(request: web.Request) -> str:
    given = request.headers.get("Authorization", "")
    return given.removeprefix(SCHEME) if given.startswith(SCHEME) else ""


def _user_token(request: web.Request) -> str:
    return _bearer(request) or request.headers.get(TOKEN_HEADER, "")


def probes_app(ready: Callable[[], str | None]) -> web.Application:
    """Return the application of the second port. `ready` returns why the server cannot serve, or None."""

    async def readyz(_: web.Request) -> web.Response:
        reason = ready()
        return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=reason)

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics_handler(REGISTRY))
    return app
