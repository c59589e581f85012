"""Routes that list and change a namespace's Secrets, with the caller's permissions. Values are never returned."""

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from pydantic import Field
from rlrun.api.base.field_errors import FieldProblem, path_of
from rlrun.api.base.names import SUBDOMAIN, Namespace
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, SERVER_FIELD_MANAGER, Reason
from rlrun.kube import requests
from rlrun.kube.kinds import SECRET
from rlrun.kube.objects import Obj, label
from starlette.responses import Response

from rlrun_server.http.body import read_body
from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.problems import RestError, from_field_problems, invalid
from rlrun_server.rest.base.responses import schema_response
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of

router = APIRouter(tags=["secrets"])

MAX_BODY = 1024 * 1024
MAX_SECRETS = 500
OPAQUE = "Opaque"

SecretName = Annotated[str, Path(min_length=1, max_length=253, pattern=SUBDOMAIN)]
Key = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class SecretValues(Schema):
    """Values of a Secret."""

    data: dict[Key, str] = Field(min_length=1, max_length=200)
    """Values by key, as text: `{"WANDB_API_KEY": "…"}`."""


class SecretSummary(Schema):
    """Secret without its values."""

    namespace: str
    name: str
    created_at: str | None = None


class SecretList(Schema):
    """Secrets of a namespace, ordered by name."""

    items: list[SecretSummary]
    is_complete: bool
    """False if there are more Secrets than one response holds."""


SECRET_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": SecretValues.model_json_schema()}},
    }
}


@router.get("/namespaces/{namespace}/secrets", response_model=SecretList)
async def list_secrets(
    request: Request, namespace: Namespace, caller: Caller = requires("list", "secrets", group="")
) -> Response:
    """List the Secrets of type Opaque, except those of the operator, without their values."""
    cluster = await caller_cluster(request, caller)
    # Request only metadata, so that values do not reach this process.
    answer = await cluster.send(requests.list_metadata(SECRET, namespace, f"type={OPAQUE}", MAX_SECRETS))
    items = [summary_of(item) for item in answer.get("items") or [] if not _is_operators(item)]
    return schema_response(
        SecretList(
            items=sorted(items, key=lambda item: item.name),
            is_complete=not (answer.get("metadata") or {}).get("continue"),
        )
    )


@router.put(
    "/namespaces/{namespace}/secrets/{name}",
    responses={200: {"model": SecretSummary}, 201: {"model": SecretSummary}},
    openapi_extra=SECRET_BODY,
)
async def put_secret(
    request: Request, namespace: Namespace, name: SecretName, caller: Caller = requires("update", "secrets", group="")
) -> Response:
    """Create a Secret, or replace all its values. Runs name it in `envFrom`. Needs `create`, `update` and `get`."""
    cluster = await caller_cluster(request, caller)
    body = await read_body(request, MAX_BODY)
    values = await services_of(request).bodies.run(caller.user.limited_as, read_values, body)
    existing = await cluster.find(requests.get_metadata(SECRET, namespace, name))
    wanted = secret_object(namespace, name, values, existing)
    if existing is None:
        return schema_response(summary_of(await cluster.send(requests.create(wanted, SERVER_FIELD_MANAGER))), 201)
    return schema_response(summary_of(await cluster.send(requests.replace(wanted, SERVER_FIELD_MANAGER))))


@router.delete("/namespaces/{namespace}/secrets/{name}", response_model=SecretSummary)
async def delete_secret(
    request: Request, namespace: Namespace, name: SecretName, caller: Caller = requires("delete", "secrets", group="")
) -> Response:
    """Delete a Secret. Needs `delete` and `get`."""
    cluster = await caller_cluster(request, caller)
    existing = await cluster.send(requests.get_metadata(SECRET, namespace, name))
    check_not_operators(existing)
    await cluster.send(requests.delete(SECRET, namespace, name, existing["metadata"]["uid"]))
    return schema_response(summary_of(existing))


def read_values(body: bytes) -> SecretValues:
    """Return the values in a body. Errors name keys, and contain no values. Raises RestError."""
    try:
        return parse(SecretValues, body, is_user_input=True)
    except InputInvalid as error:
        if not error.faults:
            raise invalid(str(error)) from None
        message = "the value must be text, and the key may contain only letters, digits, `-`, `_` and `.`"
        found = [FieldProblem(path_of(fault.location), message) for fault in error.faults]
        raise invalid("The field `data` must map keys to values.", from_field_problems(found), 422) from None


def secret_object(namespace: str, name: str, values: SecretValues, existing: Obj | None) -> Obj:
    """Return the Secret to write, with the labels and annotations of the existing Secret, if any. Raises RestError."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if existing is not None:
        check_not_operators(existing)
        kept = ("labels", "annotations", "ownerReferences", "finalizers", "resourceVersion", "uid")
        metadata |= {field: existing["metadata"][field] for field in kept if existing["metadata"].get(field)}
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": OPAQUE, "data": data}


def summary_of(secret: Obj) -> SecretSummary:
    """Return the summary of a Secret, without values."""
    metadata = secret["metadata"]
    return SecretSummary(
        namespace=metadata["namespace"], name=metadata["name"], created_at=metadata.get("creationTimestamp")
    )


def _is_operators(secret: Obj) -> bool:
    return label(secret, MANAGED_BY_LABEL) == FIELD_MANAGER


def check_not_operators(secret: Obj) -> None:
    """Check that the Secret does not belong to the operator. Raises RestError."""
    if _is_operators(secret):
        detail = f"Secret {secret['metadata']['name']} belongs to the operator. Choose another name."
        raise RestError(409, Reason.SECRET_RESERVED, detail)
