"""OpenAI-compatible API of deployed models, for the users of the REST API: completions, chat and models."""

import time
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from rlrun.constants import VERSION
from rlrun.protocol.user_storage import TOKEN_HEADER
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlrun_server.http.connection_limits import MAX_COMPLETIONS
from rlrun_server.inference import errors
from rlrun_server.inference.capacity import Capacity
from rlrun_server.inference.completions import Completions
from rlrun_server.inference.deployed_models import DeployedModels
from rlrun_server.inference.model_access import ModelAccess
from rlrun_server.inference.pool_client import PoolClient
from rlrun_server.rest.base.access import IDENTIFIED, Caller
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.rest.context.services import Services
from rlrun_server.rest.rest_app import Guard

PREFIX = "/v1"
OPENAPI_PATH = f"{PREFIX}/openapi.json"
OWNER = "rlrun"
DESCRIPTION = """Deployed adapters and their base models, for clients of OpenAI's API.

Send a Kubernetes token or an API key as `Authorization: Bearer`. A model is named `{base model}:{adapter}`, or with \
its namespace `{namespace}/{adapter}`. Requests need the permission `create rladapters/chat` in the namespace of the \
adapter. All fields of the body except `model` are those of vLLM."""

SECURITY: list[dict[str, list[str]]] = [{"token": []}, {"proxied": []}]
SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "Kubernetes token or API key"},
    "proxied": {"type": "apiKey", "in": "header", "name": TOKEN_HEADER},
}
router = APIRouter(tags=["inference"])


class Model(BaseModel):
    """A model that the caller may use. Field names are those of OpenAI and vLLM."""

    id: str
    """Name of the model in requests."""
    object: str = "model"
    created: int
    owned_by: str = OWNER
    root: str
    """Id of the base model."""
    parent: str | None = None
    """Id of the base model, for an adapter."""
    namespace: str
    adapter: str | None = None
    """Name of the RLAdapter."""
    ready: bool


class ListModelsResponse(BaseModel):
    """All models that the caller may use."""

    object: str = "list"
    data: list[Model]


class Error(BaseModel):
    """Error in OpenAI's format."""

    message: str
    """Explanation for users: what happened, and what to do."""
    type: str
    param: str | None
    code: str
    """Stable code for programs."""


class Failure(BaseModel):
    """Body of all errors."""

    error: Error


def _operation(example: dict[str, Any]) -> dict[str, Any]:
    properties = {
        "model": {"type": "string", "description": "Name of a deployed adapter or base model."},
        "stream": {"type": "boolean", "description": "Send the answer as server-sent events."},
        "max_tokens": {"type": "integer"},
    }
    schema = {"type": "object", "required": list(example), "properties": {**properties, **_types(example)}}
    body = {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}
    stream = {"text/event-stream": {"schema": {"type": "string"}}, "application/json": {"schema": {"type": "object"}}}
    responses = {"200": {"description": "Completion, or its parts as events if `stream` is true", "content": stream}}
    return {"requestBody": body, "responses": responses, "security": SECURITY}


def _types(example: dict[str, Any]) -> dict[str, Any]:
    array = {"type": "array", "items": {"type": "object"}}
    return {
        name: array if isinstance(value, list) else {"type": "string"}
        for name, value in example.items()
        if name != "model"
    }


CHAT = {"model": "Qwen/Qwen3-4B:my-adapter", "messages": [{"role": "user", "content": "Hello"}]}
COMPLETION = {"model": "Qwen/Qwen3-4B:my-adapter", "prompt": "Hello"}


@router.post("/chat/completions", response_class=JSONResponse, openapi_extra=_operation(CHAT))
async def create_chat_completion(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """Complete a conversation."""
    return await _completions(request).answer(request, caller.user, "/chat/completions")


@router.post("/completions", response_class=JSONResponse, openapi_extra=_operation(COMPLETION))
async def create_completion(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """Complete a text."""
    return await _completions(request).answer(request, caller.user, "/completions")


@router.get(
    "/models",
    responses={200: {"model": ListModelsResponse}},
    response_class=JSONResponse,
    openapi_extra={"security": SECURITY},
)
async def list_models(request: Request, caller: Caller = IDENTIFIED) -> Response:
    """List the deployed adapters that you may use, and their base models."""
    models = [
        Model(
            id=name,
            created=model.created,
            root=model.base,
            parent=model.base if model.adapter else None,
            namespace=model.namespace,
            adapter=model.adapter or None,
            ready=model.is_ready,
        )
        for name, model in await _completions(request).access.list_permitted(caller.user)
    ]
    return Response(ListModelsResponse(data=models).model_dump_json(), media_type="application/json")


def inference_app(
    services: Services | None = None,
    pools: PoolClient | None = None,
    clock: Callable[[], float] = time.monotonic,
    *,
    names_tenants: bool = False,
    max_completions: int = MAX_COMPLETIONS,
) -> FastAPI:
    """Return the application. If `services` or `pools` is None, it only provides the OpenAPI document.

    `names_tenants` has the same meaning as in `Completions`. `max_completions` is the maximum number of concurrent
    requests of all users.
    """
    app = FastAPI(
        title="rlrun-server: deployed adapters",
        version=VERSION,
        description=DESCRIPTION,
        openapi_url=OPENAPI_PATH,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(router, prefix=PREFIX, responses={"4XX": {"model": Failure}, "5XX": {"model": Failure}})
    app.openapi().setdefault("components", {})["securitySchemes"] = SCHEMES
    errors.install(app)
    app.add_middleware(Guard, internal_error=errors.unexpected_response, respond=errors.rest_error_response)
    if services is not None and pools is not None:
        app.state.services = services
        app.state.access = services.access
        models = DeployedModels(services.objects.adapters)
        access = ModelAccess(models, services.access)
        app.state.completions = Completions(
            TenantQueue(1, "completions"),
            models,
            access,
            pools,
            Capacity(in_all=max_completions),
            clock,
            names_tenants=names_tenants,
        )
    return app


def _completions(request: Request) -> Completions:
    """Return the handler of completions. Raises RestError until all adapters have been listed."""
    services: Services = request.app.state.services
    services.objects.require(services.objects.adapters)
    completions: Completions = request.app.state.completions
    return completions
