"""Routes that create, change and delete runs, with the caller's permissions."""

import dataclasses
from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from rlrun.constants import REQUEST_ANNOTATION, SERVER_FIELD_MANAGER, Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj, annotation
from starlette.responses import Response

from rlrun_server.http.body import read_body
from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.problems import RestError, not_found
from rlrun_server.rest.base.responses import RunName, schema_response
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.kept_objects import keep_object
from rlrun_server.rest.objects.run_bodies import (
    JSON,
    MERGE_PATCH,
    TOML,
    YAML,
    digest_of,
    read_changes,
    read_run,
    to_object,
)
from rlrun_server.rest.objects.summaries import summarize_run
from rlrun_server.rest.routes.runs import RunDetail, find_run, run_response

router = APIRouter(tags=["runs"])

MAX_BODY = 256 * 1024
"""Maximum size of a request body, in bytes. A run with larger environment arguments could not start."""
CREATED: dict[int | str, Any] = {
    201: {"model": RunDetail},
    200: {
        "model": RunDetail,
        "description": "An earlier request with the same Idempotency-Key created the run, or `dryRun` is set",
    },
}
SPEC_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {"schema": {"type": "object", "description": "Spec of a run, or an RLRun"}},
            YAML: {"schema": {"type": "object"}},
            TOML: {"schema": {"type": "string"}},
        },
    }
}
PATCH_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            MERGE_PATCH: {
                "schema": {"type": "object", "properties": {"spec": {"type": "object"}}, "required": ["spec"]}
            }
        },
    }
}


class DryRun(StrEnum):
    """Values of `dryRun`."""

    all = "all"


class Artifacts(StrEnum):
    """Policy for the files of a deleted run in S3."""

    retain = "retain"
    delete = "delete"


POLICIES = {Artifacts.retain: "Retain", Artifacts.delete: "Delete"}


class Deleted(Schema):
    """Response to the deletion of a run."""

    namespace: str
    name: str
    uid: str


DryRunQuery = Annotated[
    DryRun | None, Query(alias="dryRun", description="`all` checks the request without changing anything.")
]
IfMatch = Annotated[
    str | None,
    Header(max_length=64, description="ETag of the run. The request fails if the run has changed since then."),
]


@router.post("/namespaces/{namespace}/runs", status_code=201, responses=CREATED, openapi_extra=SPEC_BODY)
async def create_run(
    request: Request,
    namespace: Namespace,
    dry_run: DryRunQuery = None,
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=128, description="A retry with the same key does not create a second run."),
    ] = None,
    caller: Caller = requires("create", "rlruns"),
) -> Response:
    """Create a run from its spec or an RLRun (JSON, YAML), or from a TOML file."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller)
    body = await read_body(request, MAX_BODY)
    # The YAML and TOML parsers are written in Python: other requests must not wait for the largest bodies.
    run = await services.bodies.run(caller.user.limited_as, read_run, media_type_of(request), body, namespace)
    identity = f"{caller.user.name}\n{caller.user.uid}\n{namespace}"
    wanted = to_object(run, namespace, caller.user.name, identity, idempotency_key or "", body)
    created = requests.create(wanted, SERVER_FIELD_MANAGER)
    removed_prefix = "" if run.pointer else "spec"
    if dry_run is not None:
        created = dataclasses.replace(created, query={**created.query, "dryRun": "All"})
        checked = await cluster.send(created, removed_prefix)
        return _response(services, checked, headers=run.warning(), is_stored=False)
    try:
        answer = await cluster.send(created, removed_prefix)
    except RestError as error:
        if error.reason != Reason.NAME_TAKEN or not idempotency_key:
            raise
        existing = await cluster.send(requests.get(RLRUN, namespace, wanted["metadata"]["name"]))
        if annotation(existing, REQUEST_ANNOTATION) != digest_of(body):
            detail = "The Idempotency-Key was used for a different request. Choose a new key for each run."
            raise RestError(422, Reason.IDEMPOTENCY_KEY_REUSED, detail) from error
        return _response(services, existing)
    location = {"Location": f"/rlrun/v1/namespaces/{namespace}/runs/{answer['metadata']['name']}"}
    return _response(services, answer, 201, location | run.warning())


@router.patch("/namespaces/{namespace}/runs/{run}", response_model=RunDetail, openapi_extra=PATCH_BODY)
async def change_run(
    request: Request,
    namespace: Namespace,
    run: RunName,
    dry_run: DryRunQuery = None,
    if_match: IfMatch = None,
    caller: Caller = requires("patch", "rlruns"),
) -> Response:
    """Change mutable fields of a run's spec with a JSON merge patch."""
    body = await read_body(request, MAX_BODY)
    bodies = services_of(request).bodies
    changes = await bodies.run(caller.user.limited_as, read_changes, media_type_of(request), body)
    return await _patch(request, namespace, run, changes, caller, if_match or "", dry_run)


@router.delete("/namespaces/{namespace}/runs/{run}", response_model=Deleted)
async def delete_run(
    request: Request,
    namespace: Namespace,
    run: RunName,
    artifacts: Annotated[
        Artifacts | None,
        Query(description=("Policy for the files of the run in S3. Defaults to `artifactPolicy` of the run.")),
    ] = None,
    if_match: IfMatch = None,
    caller: Caller = requires("delete", "rlruns"),
) -> Response:
    """Delete a run and its pods."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller)
    kept_run = find_run(services, namespace, run)
    version = _version(if_match or "")
    if artifacts is not None:
        changes = {"metadata": _precondition(kept_run.uid, version), "spec": {"artifactPolicy": POLICIES[artifacts]}}
        patched = await cluster.send(requests.patch(RLRUN, namespace, kept_run.name, changes, SERVER_FIELD_MANAGER))
        version = str(patched["metadata"]["resourceVersion"]) if version else ""
    await cluster.send(requests.delete(RLRUN, namespace, kept_run.name, kept_run.uid, version or None))
    return schema_response(Deleted(namespace=namespace, name=kept_run.name, uid=kept_run.uid))


def _action(name: str, changes: dict[str, Any], text: str) -> None:
    @router.post(
        f"/namespaces/{{namespace}}/runs/{{run}}:{name}",
        response_model=RunDetail,
        operation_id=f"{name}_run",
        summary=f"{name.capitalize()} run",
        description=text,
    )
    async def act(
        request: Request,
        namespace: Namespace,
        run: RunName,
        if_match: IfMatch = None,
        caller: Caller = requires("patch", "rlruns"),
    ) -> Response:
        return await _patch(request, namespace, run, changes, caller, if_match or "", None)


_action("stop", {"stop": True}, "End a run permanently and keep its checkpoints and adapters.")
_action("suspend", {"suspend": True}, "Delete the pods of a run. `:resume` continues from the newest checkpoint.")
_action("resume", {"suspend": False}, "Continue a suspended run from its newest checkpoint.")


def media_type_of(request: Request) -> str:
    """Return the media type of the body without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _patch(
    request: Request,
    namespace: str,
    run: str,
    changes: dict[str, Any],
    caller: Caller,
    if_match: str,
    dry_run: DryRun | None,
) -> Response:
    services = services_of(request)
    cluster = await caller_cluster(request, caller)
    kept_run = find_run(services, namespace, run)
    body = {"metadata": _precondition(kept_run.uid, _version(if_match)), "spec": changes}
    asked = requests.patch(RLRUN, namespace, kept_run.name, body, SERVER_FIELD_MANAGER)
    if dry_run is not None:
        asked = dataclasses.replace(asked, query={**asked.query, "dryRun": "All"})
    return _response(services, await cluster.send(asked), is_stored=dry_run is None)


def _precondition(uid: str, version: str) -> dict[str, str]:
    return {"uid": uid, **({"resourceVersion": version} if version else {})}


def _version(if_match: str) -> str:
    """Return the version that a run must have, or an empty string if any version is accepted."""
    return "" if if_match.strip() == "*" else if_match.strip().removeprefix("W/").strip('"')


def _response(
    services: Services, obj: Obj, status: int = 200, headers: dict[str, str] | None = None, *, is_stored: bool = True
) -> Response:
    runs = services.objects.runs
    if is_stored:
        # The next read finds the run, even before the watch reports it.
        runs.put(obj)
        metadata = obj["metadata"]
        kept = runs.find(str(metadata["namespace"]), str(metadata["name"]))
        if kept is None:
            raise not_found(f"Run {metadata['namespace']}/{metadata['name']}")
        if kept.data is not None:
            return run_response(kept, status, headers)
    return run_response(keep_object(obj, summarize_run), status, headers)
