"""Routes that deploy adapters, and delete checkpoints and adapters, with the caller's permissions."""

from datetime import UTC, datetime

from fastapi import APIRouter, Request
from rlrun.api.artifact import expiry_text
from rlrun.api.base.names import Namespace
from rlrun.api.base.schema import Schema
from rlrun.constants import SERVER_FIELD_MANAGER, Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLADAPTER
from starlette.responses import Response

from rlrun_server.rest.base.access import Caller, requires
from rlrun_server.rest.base.problems import RestError, not_found
from rlrun_server.rest.base.responses import ArtifactName, schema_response
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import ArtifactSummary
from rlrun_server.rest.routes.artifacts import ArtifactDetail, artifact_response, find_artifact

router = APIRouter(tags=["artifacts"])


class DeletedArtifact(Schema):
    """Response to the deletion of a checkpoint or adapter."""

    namespace: str
    name: str
    uid: str


@router.post("/namespaces/{namespace}/adapters/{name}:deploy", response_model=ArtifactDetail)
async def deploy_adapter(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("patch", "rladapters")
) -> Response:
    """Deploy an adapter to a serving pool of the namespace. `deploymentState` shows when the adapter is served."""
    return await _set_deployed(request, namespace, name, caller, True)


@router.post("/namespaces/{namespace}/adapters/{name}:undeploy", response_model=ArtifactDetail)
async def undeploy_adapter(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("patch", "rladapters")
) -> Response:
    """Stop serving an adapter. The adapter is kept."""
    return await _set_deployed(request, namespace, name, caller, False)


@router.delete("/namespaces/{namespace}/adapters/{name}", response_model=DeletedArtifact)
async def delete_adapter(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("delete", "rladapters")
) -> Response:
    """Delete an adapter and its files in S3. The adapter must not be deployed. While its run exists, the request sets
    `expiresAt` to the current time, which needs the permission to patch the adapter, and retention deletes it.
    """
    return await _delete(request, services_of(request).objects.adapters, namespace, name, caller)


@router.delete("/namespaces/{namespace}/checkpoints/{name}", response_model=DeletedArtifact)
async def delete_checkpoint(
    request: Request, namespace: Namespace, name: ArtifactName, caller: Caller = requires("delete", "rlcheckpoints")
) -> Response:
    """Delete a checkpoint and its files in S3. While its run exists, the request sets `expiresAt` to the current time,
    which needs the permission to patch the checkpoint, and retention deletes it. The newest checkpoint is kept until
    the run has a newer one or has ended.
    """
    return await _delete(request, services_of(request).objects.checkpoints, namespace, name, caller)


async def _set_deployed(request: Request, namespace: str, name: str, caller: Caller, is_deployed: bool) -> Response:
    known = services_of(request).objects.adapters
    artifact = find_artifact(services_of(request), known, namespace, name)
    cluster = await caller_cluster(request, caller)
    # With the uid, the API server rejects the change if a different adapter has this name now.
    changes = {"metadata": {"uid": artifact.uid}, "spec": {"deployed": is_deployed}}
    known.put(await cluster.send(requests.patch(RLADAPTER, namespace, artifact.name, changes, SERVER_FIELD_MANAGER)))
    changed = known.find(namespace, name)
    if changed is None:
        raise not_found(f"RLAdapter {namespace}/{name}")
    return artifact_response(await services_of(request).load(known, changed))


async def _delete(
    request: Request, known: KeptObjects[ArtifactSummary], namespace: str, name: str, caller: Caller
) -> Response:
    artifact = find_artifact(services_of(request), known, namespace, name)
    if artifact.summary.deployed:
        detail = (
            f"RLAdapter {namespace}/{artifact.name} is deployed (spec.deployed). Undeploy it first: POST "
            f"{request.url.path}:undeploy."
        )
        raise RestError(409, Reason.ADAPTER_DEPLOYED, detail)
    cluster = await caller_cluster(request, caller)
    run = services_of(request).objects.runs.find(namespace, artifact.summary.run)
    if run is None or run.uid != artifact.summary.run_uid:
        await cluster.send(requests.delete(known.kind, namespace, artifact.name, artifact.uid))
    else:
        # The operator would create the object of an artifact in S3 again.
        expires_at = expiry_text(datetime.now(UTC))
        changes = {"metadata": {"uid": artifact.uid}, "spec": {"expiresAt": expires_at}}
        patch = requests.patch(known.kind, namespace, artifact.name, changes, SERVER_FIELD_MANAGER)
        known.put(await cluster.send(patch))
    return schema_response(DeletedArtifact(namespace=namespace, name=artifact.name, uid=artifact.uid))
