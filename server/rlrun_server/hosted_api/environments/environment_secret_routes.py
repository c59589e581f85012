"""Routes for an environment's secrets, which are the variables in the Secret linked to the environment by name."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from rlrun.constants import CLI_FIELD_MANAGER, MANAGED_BY_LABEL, SERVER_FIELD_MANAGER
from rlrun.kube import requests
from rlrun.kube.kinds import SECRET
from rlrun.kube.objects import Obj
from rlrun.protocol.environment import linked_secret
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import no_counterpart
from rlrun_server.hosted_api.base.wire import json_object
from rlrun_server.hosted_api.environments.environment_packages import read_environment_id
from rlrun_server.hosted_api.secrets.secret_objects import (
    NAME,
    NewSecret,
    SecretChange,
    encode_value,
    environment_secret,
    variable_of,
)
from rlrun_server.hosted_api.secrets.secret_routes import find_global, read_model
from rlrun_server.rest.base.problems import not_found
from rlrun_server.rest.context.caller_cluster import CallerCluster, caller_cluster
from rlrun_server.rest.routes.secrets import check_not_operators

router = APIRouter(tags=["environments"], prefix="/environmentshub/{environment}")

READS = key_requires("get", "secrets", group="")
CHANGES = key_requires("patch", "secrets", group="")
Environment = Annotated[str, Path(min_length=1, max_length=300)]
Variable = Annotated[str, Path(min_length=1, max_length=253)]


@router.get("/secrets")
async def list_environment_secrets(
    request: Request, environment: Environment, caller: HostedCaller = READS
) -> Response:
    """List the secrets of an environment in the caller's namespace."""
    cluster = await caller_cluster(request, caller.caller)
    held = await cluster.find(requests.get(SECRET, caller.namespace, _secret_of(environment)))
    names = sorted((held or {}).get("data") or {})
    return json_object({"data": [environment_secret(held, name) for name in names if held is not None]})


@router.post("/secrets")
async def create_environment_secret(
    request: Request, environment: Environment, caller: HostedCaller = CHANGES
) -> Response:
    """Set a secret of an environment, for runs that start later."""
    cluster = await caller_cluster(request, caller.caller)
    asked = await read_model(request, NewSecret)
    value = encode_value(asked.value, is_file=asked.is_file)
    held = await _set(cluster, caller.namespace, _secret_of(environment), {asked.name: value})
    return json_object({"data": environment_secret(held, asked.name)}, 201)


@router.post("/secrets/link/{secret}")
async def link_secret(
    request: Request, environment: Environment, secret: Variable, caller: HostedCaller = CHANGES
) -> Response:
    """Copy the current value of a global secret to the secrets of an environment."""
    cluster = await caller_cluster(request, caller.caller)
    secret_object = await find_global(cluster, caller.namespace, secret, requests.get)
    name = variable_of(secret_object)
    value = str((secret_object.get("data") or {}).get(name) or "")
    held = await _set(cluster, caller.namespace, _secret_of(environment), {name: value})
    link = {
        "id": name,
        "secretId": secret,
        "secretName": name,
        "environmentId": environment,
        "createdAt": str(held["metadata"].get("creationTimestamp") or ""),
    }
    return json_object({"data": link})


@router.delete("/secrets/link/{secret}")
async def unlink_secret(
    request: Request, environment: Environment, secret: Variable, caller: HostedCaller = CHANGES
) -> Response:
    """Remove a global secret from the secrets of an environment."""
    cluster = await caller_cluster(request, caller.caller)
    secret_object = await find_global(cluster, caller.namespace, secret)
    await _require(cluster, caller.namespace, environment, variable_of(secret_object))
    await _set(cluster, caller.namespace, _secret_of(environment), {variable_of(secret_object): None})
    return Response(status_code=204)


@router.patch("/secrets/{variable}")
async def change_environment_secret(
    request: Request, environment: Environment, variable: Variable, caller: HostedCaller = CHANGES
) -> Response:
    """Change the name or value of an environment's secret."""
    cluster = await caller_cluster(request, caller.caller)
    change = await read_model(request, SecretChange)
    held = await _require(cluster, caller.namespace, environment, variable)
    value = held["data"][variable] if change.value is None else encode_value(change.value, is_file=change.is_file)
    name = change.name or variable
    changed = await _set(cluster, caller.namespace, _secret_of(environment), {variable: None} | {name: value})
    return json_object({"data": environment_secret(changed, name)})


@router.delete("/secrets/{variable}")
async def delete_environment_secret(
    request: Request, environment: Environment, variable: Variable, caller: HostedCaller = CHANGES
) -> Response:
    """Remove a secret of an environment."""
    cluster = await caller_cluster(request, caller.caller)
    await _require(cluster, caller.namespace, environment, variable)
    await _set(cluster, caller.namespace, _secret_of(environment), {variable: None})
    return Response(status_code=204)


@router.get("/variables")
async def list_variables(environment: Environment, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Respond that environments have no variables with readable values."""
    raise no_counterpart(
        "variables of an environment. Use `args` of the run's environment, or the environment's secrets."
    )


@router.post("/variables")
async def create_variable(environment: Environment, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Respond that environments have no variables with readable values."""
    raise no_counterpart(
        "variables of an environment. Use `args` of the run's environment, or the environment's secrets."
    )


def _secret_of(environment: str) -> str:
    owner, name = read_environment_id(environment)
    return linked_secret(f"{owner}/{name}")


async def _require(cluster: CallerCluster, namespace: str, environment: str, variable: str) -> Obj:
    """Return the Secret of an environment. Raises RestError if the Secret lacks this variable."""
    held = await cluster.find(requests.get(SECRET, namespace, _secret_of(environment)))
    if held is None or not NAME.fullmatch(variable) or variable not in (held.get("data") or {}):
        raise not_found(f"Secret {variable} of the environment")
    return held


async def _set(cluster: CallerCluster, namespace: str, secret: str, data: dict[str, str | None]) -> Obj:
    """Set and remove variables of a Secret, which is created if it does not exist. Raises RestError."""
    existing = await cluster.find(requests.get_metadata(SECRET, namespace, secret))
    if existing is not None:
        check_not_operators(existing)
        return await cluster.send(requests.patch(SECRET, namespace, secret, {"data": data}, SERVER_FIELD_MANAGER))
    metadata = {"name": secret, "namespace": namespace, "labels": {MANAGED_BY_LABEL: CLI_FIELD_MANAGER}}
    wanted = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}
    return await cluster.send(requests.create(wanted, SERVER_FIELD_MANAGER))
