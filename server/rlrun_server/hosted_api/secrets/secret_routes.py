"""Routes for global secrets, with the caller's permissions. Values are never returned."""

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Request
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import SERVER_FIELD_MANAGER
from rlrun.kube import requests
from rlrun.kube.kinds import SECRET, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.base.wire import json_object
from rlrun_server.hosted_api.secrets.secret_objects import (
    HOSTED_LABEL,
    NewSecret,
    SecretChange,
    changed_object,
    global_secret,
    is_global,
    new_object,
)
from rlrun_server.http.body import read_body
from rlrun_server.http.client_memory import owner_of
from rlrun_server.rest.base.problems import invalid, not_found
from rlrun_server.rest.context.caller_cluster import CallerCluster, caller_cluster
from rlrun_server.rest.context.services import services_of

router = APIRouter(tags=["secrets"])

MAX_BODY = 512 * 1024
SecretId = Annotated[str, Path(min_length=1, max_length=253)]
LISTS = key_requires("list", "secrets", group="")
READS = key_requires("get", "secrets", group="")
CREATES = key_requires("create", "secrets", group="")
CHANGES = key_requires("update", "secrets", group="")
DELETES = key_requires("delete", "secrets", group="")

M = TypeVar("M", bound=Schema)
SecretRequest = Callable[[ResourceKind, str, str], KubeRequest]


@router.get("/secrets/")
async def list_secrets(request: Request, caller: HostedCaller = LISTS) -> Response:
    """List the global secrets by name. Only their metadata is requested from the API server, never their values."""
    cluster = await caller_cluster(request, caller.caller)
    page = await cluster.send(requests.list_metadata_page(SECRET, caller.namespace, {HOSTED_LABEL: "global"}))
    secrets = [global_secret(item) for item in page.get("items") or [] if is_global(item)]
    return json_object({"data": sorted(secrets, key=lambda secret: str(secret["name"]))})


@router.post("/secrets/")
async def create_secret(request: Request, caller: HostedCaller = CREATES) -> Response:
    """Create a global secret."""
    cluster = await caller_cluster(request, caller.caller)
    asked = await read_model(request, NewSecret)
    caller.require_team(asked.team_id)
    created = await cluster.send(requests.create(new_object(caller.namespace, asked), SERVER_FIELD_MANAGER))
    return json_object({"data": global_secret(created)}, 201)


@router.get("/secrets/{secret}")
async def get_secret(request: Request, secret: SecretId, caller: HostedCaller = READS) -> Response:
    """Return a global secret without its value."""
    cluster = await caller_cluster(request, caller.caller)
    return json_object({"data": global_secret(await find_global(cluster, caller.namespace, secret))})


@router.patch("/secrets/{secret}")
async def change_secret(request: Request, secret: SecretId, caller: HostedCaller = CHANGES) -> Response:
    """Change the name, value or description of a global secret."""
    cluster = await caller_cluster(request, caller.caller)
    change = await read_model(request, SecretChange)
    await find_global(cluster, caller.namespace, secret)
    held = await cluster.send(requests.get(SECRET, caller.namespace, secret))
    # Some API servers omit these two fields of built-in kinds.
    wanted = changed_object({"apiVersion": "v1", "kind": "Secret", **held}, change)
    return json_object({"data": global_secret(await cluster.send(requests.replace(wanted, SERVER_FIELD_MANAGER)))})


@router.delete("/secrets/{secret}")
async def delete_secret(request: Request, secret: SecretId, caller: HostedCaller = DELETES) -> Response:
    """Delete a global secret."""
    cluster = await caller_cluster(request, caller.caller)
    secret_object = await find_global(cluster, caller.namespace, secret)
    await cluster.send(requests.delete(SECRET, caller.namespace, secret, secret_object["metadata"]["uid"]))
    return Response(status_code=204)


async def find_global(
    cluster: CallerCluster, namespace: str, name: str, read: SecretRequest = requests.get_metadata
) -> Obj:
    """Return a global secret, by default only its metadata. Raises RestError if the Secret does not exist or does not
    store a global secret.
    """
    secret_object = await cluster.find(read(SECRET, namespace, name)) if "/" not in name else None
    if secret_object is None or not is_global(secret_object):
        raise not_found(f"Secret {name}")
    return secret_object


async def read_model(request: Request, model: type[M]) -> M:
    """Parse the body of a request. Error messages do not quote values of the body. Raises RestError, FieldProblems."""
    body = await read_body(request, MAX_BODY)

    def read() -> M:
        return parse(model, body, is_user_input=True)

    try:
        return await services_of(request).bodies.run(owner_of(request), read)
    except InputInvalid as error:
        if not error.faults:
            raise invalid(str(error)) from None
        raise FieldProblems([(fault.location, fault.message) for fault in error.faults]) from None
