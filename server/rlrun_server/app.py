"""HTTP routes of the server."""

import time
from collections.abc import Callable, Sequence

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from rlrun.api.base.received import parse
from rlrun.protocol.api_keys import KEY_DELETION_PATH, KEY_PATH, KEYS_PATH, NewApiKey
from rlrun.protocol.storage_access import (
    MAX_SIGN_BYTES,
    SIGN_BATCH_PATH,
    SIGN_PATH,
    RequestToSign,
    SignBatchRequest,
    SignedBatch,
    SignedHeaders,
    SignRequest,
)
from rlrun.protocol.user_storage import LOCATION_PATH, USER_SIGN_PATH, UserSignRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from rlrun_server.authentication.api_key_management import ApiKeyManagement
from rlrun_server.authentication.sessions import BrowserSessions
from rlrun_server.http.body import read_body
from rlrun_server.http.client_memory import WithMemory
from rlrun_server.http.endpoint import ByPrefix, Endpoint, PathDispatcher, json_response
from rlrun_server.http.request import SESSIONS, bearer_of, client_of, user_token_of
from rlrun_server.page.page_app import PageApp
from rlrun_server.page.page_files import PageFiles
from rlrun_server.runtime.metrics import REGISTRY, SIGN_SECONDS
from rlrun_server.signing.pod_signing import Signing, require_token
from rlrun_server.signing.user_signing import UserSigning

HOSTED_PREFIX = "/api/v1"
INFERENCE_PREFIX = "/v1"
MAX_KEY_BYTES = 4096


def server_app(
    signing: Signing,
    users: UserSigning,
    keys: ApiKeyManagement,
    rest: FastAPI,
    *,
    hosted: ASGIApp | None = None,
    inference: ASGIApp | None = None,
    page: PageFiles | None = None,
    sessions: BrowserSessions | None = None,
    client_models: Sequence[Route] = (),
) -> ASGIApp:
    """Return the application for pods of runs and for users.

    Args:
        signing: Signs S3 requests of pods.
        users: Signs S3 requests of users.
        keys: Creates, lists and deletes API keys.
        rest: The REST API, which handles all other requests of users.
        hosted: Prime Intellect's hosted API, for its command-line client.
        inference: The API of deployed adapters.
        page: Files of the web page.
        sessions: Browser sessions of the web page, whose cookies the REST API and the inference API accept.
        client_models: Routes for models that users' own programs train.
    """

    async def sign_requests(request: Request, grant: str, requests: Sequence[RequestToSign]) -> list[SignedHeaders]:
        started = time.monotonic()
        try:
            return await signing.sign(bearer_of(request), grant, requests)
        finally:
            SIGN_SECONDS.observe(time.monotonic() - started)

    async def sign(request: Request) -> Response:
        require_token(bearer_of(request))
        asked = parse(SignRequest, await read_body(request, MAX_SIGN_BYTES))
        (headers,) = await sign_requests(request, asked.grant, [asked])
        return json_response(headers)

    async def sign_batch(request: Request) -> Response:
        require_token(bearer_of(request))
        asked = parse(SignBatchRequest, await read_body(request, MAX_SIGN_BYTES))
        return json_response(SignedBatch(signed=await sign_requests(request, asked.grant, asked.requests)))

    async def sign_for_user(request: Request) -> Response:
        async def read() -> UserSignRequest:
            return parse(UserSignRequest, await read_body(request, MAX_SIGN_BYTES))

        return json_response(await users.sign(user_token_of(request), client_of(request), read))

    async def location(request: Request) -> Response:
        return json_response(await users.location(user_token_of(request), client_of(request)))

    # Must come before the routes of FastAPI, which have the same prefix.
    rest.router.routes[:0] = [
        Route(LOCATION_PATH, Endpoint(location), methods=["GET"]),
        *key_routes(keys),
        *client_models,
    ]
    posts = {SIGN_PATH: sign, SIGN_BATCH_PATH: sign_batch, USER_SIGN_PATH: sign_for_user}
    others: ASGIApp = WithSessions(
        rest if inference is None else ByPrefix({INFERENCE_PREFIX: inference}, rest), sessions
    )
    if page is not None:
        others = PageApp(page, others)
    if hosted is not None:
        others = ByPrefix({HOSTED_PREFIX: hosted}, others)
    return WithMemory(PathDispatcher({path: Endpoint(handler) for path, handler in posts.items()}, others))


class WithSessions:
    """Application that accepts session cookies as credentials. If `sessions` is None, no cookie is accepted."""

    def __init__(self, app: ASGIApp, sessions: BrowserSessions | None) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the request."""
        await self._app({**scope, SESSIONS: self._sessions}, receive, send)


def key_routes(keys: ApiKeyManagement) -> list[Route]:
    """Return the routes that create, list and delete API keys."""

    async def create(request: Request) -> Response:
        async def read() -> NewApiKey:
            return parse(NewApiKey, await read_body(request, MAX_KEY_BYTES) or b"{}", is_user_input=True)

        return json_response(await keys.create(*_who_and_where(request), read), 201)

    async def list_keys(request: Request) -> Response:
        return json_response(await keys.list(*_who_and_where(request)))

    async def delete(request: Request) -> Response:
        return json_response(await keys.delete(*_who_and_where(request), request.path_params["id"]))

    return [
        Route(KEYS_PATH, Endpoint(create), methods=["POST"]),
        Route(KEYS_PATH, Endpoint(list_keys), methods=["GET"]),
        Route(KEY_PATH, Endpoint(delete), methods=["DELETE"]),
        Route(KEY_DELETION_PATH, Endpoint(delete), methods=["POST"]),
    ]


def _who_and_where(request: Request) -> tuple[str, str, str]:
    return user_token_of(request), client_of(request), request.path_params["namespace"]


def probes_app(ready: Callable[[], str | None], shortcoming: Callable[[], str]) -> ASGIApp:
    """Return the application for probes and metrics. `ready` returns why the server is not ready, or None.
    `shortcoming` returns why no S3 requests are signed or which feature the S3 server lacks, or an empty string. If it
    is not empty, /storez, which `helm test` checks, responds with 503.
    """

    async def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def readyz(_: Request) -> Response:
        reason = ready()
        return PlainTextResponse("ok\n") if reason is None else PlainTextResponse(reason, 503)

    async def storez(_: Request) -> Response:
        lack = shortcoming()
        return PlainTextResponse(lack, 503) if lack else PlainTextResponse("ok\n")

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    routes = {"/healthz": healthz, "/readyz": readyz, "/storez": storez, "/metrics": metrics}
    return Starlette(routes=[Route(path, answer) for path, answer in routes.items()])
