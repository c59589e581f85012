"""Routes for models, checkpoints and adapters."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request
from rlrun.constants import SERVER_FIELD_MANAGER, Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLADAPTER
from rlrun.kube.objects import Obj
from rlrun.kube.references import split_checkpoint_id
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller, key_requires
from rlrun_server.hosted_api.base.wire import Json, Offset, json_object
from rlrun_server.hosted_api.objects.artifact_objects import adapter_of, checkpoint_of, is_leaving, phase_of
from rlrun_server.hosted_api.routes.run_routes import RunId
from rlrun_server.rest.base.problems import RestError, not_found
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.kept_objects import KeptObject, KeptObjects
from rlrun_server.rest.objects.summaries import ArtifactSummary
from rlrun_server.rest.routes.runs import find_run

router = APIRouter(tags=["artifacts"])

MAX_ROWS = 1000
LIST_RLCHECKPOINTS = key_requires("list", "rlcheckpoints")
LIST_RLADAPTERS = key_requires("list", "rladapters")
GET_RLADAPTERS = key_requires("get", "rladapters")
PATCH_RLADAPTERS = key_requires("patch", "rladapters")
ArtifactId = Annotated[str, Path(min_length=1, max_length=320)]
KeptArtifact = KeptObject[ArtifactSummary]


@router.get("/rft/models")
async def list_models(request: Request, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """List the models that runs may use. The response contains no prices."""
    return json_object({"models": [{"name": name, "atCapacity": False} for name in model_ids(request)]})


@router.get("/rft/deployable-models")
async def list_deployable_models(request: Request, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """List the models whose adapters can be deployed. All models support this."""
    return json_object({"models": model_ids(request)})


@router.get("/rft/runs/{run}/checkpoints")
async def list_checkpoints(
    request: Request,
    run: RunId,
    status_filter: Annotated[Literal["PENDING", "UPLOADING", "READY", "FAILED"] | None, Query()] = None,
    caller: HostedCaller = LIST_RLCHECKPOINTS,
) -> Response:
    """List the checkpoints of a run, newest step first."""
    services = services_of(request)
    known = services.objects.checkpoints
    services.objects.require(known)
    uid = find_run(services, caller.namespace, run).uid
    of_run = [kept for kept in known.all() if kept.namespace == caller.namespace and kept.summary.run_uid == uid]
    rows = [
        obj
        for kept in await services.load_all(known, of_run)
        for obj in [kept.read()]
        if not is_leaving(obj) and status_filter in (None, phase_of(obj))
    ]
    rows.sort(key=lambda obj: int(obj["spec"]["step"]), reverse=True)
    return json_object({"checkpoints": [checkpoint_of(obj) for obj in rows[:MAX_ROWS]]})


@router.get("/rft/adapters")
async def list_adapters(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_ROWS)] = 20,
    offset: Offset = 0,
    caller: HostedCaller = LIST_RLADAPTERS,
) -> Response:
    """List the adapters, newest first."""
    services = services_of(request)
    known = services.objects.adapters
    services.objects.require(known)
    kept = [a for a in known.all() if a.namespace == caller.namespace and a.summary.phase != "Deleting"]
    kept.sort(key=lambda adapter: (adapter.summary.created_at, adapter.name), reverse=True)
    adapters = await services.load_all(known, kept[offset : offset + limit])
    rows = [_adapter_answer(services, caller, adapter.read()) for adapter in adapters]
    return json_object({"adapters": rows, "total": len(kept)})


@router.get("/rft/adapters/{adapter}")
async def get_adapter(request: Request, adapter: ArtifactId, caller: HostedCaller = GET_RLADAPTERS) -> Response:
    """Return an adapter."""
    services = services_of(request)
    known = services.objects.adapters
    kept_adapter = await services.load(known, _find(services, known, caller, adapter))
    return json_object({"adapter": _adapter_answer(services, caller, kept_adapter.read())})


@router.post("/rft/adapters/{adapter}/deploy")
async def deploy_adapter(request: Request, adapter: ArtifactId, caller: HostedCaller = PATCH_RLADAPTERS) -> Response:
    """Deploy an adapter. The response does not wait for the deployment."""
    services = services_of(request)
    return await _set_deployed(request, caller, _find(services, services.objects.adapters, caller, adapter), True)


@router.post("/rft/adapters/{adapter}/unload")
async def unload_adapter(request: Request, adapter: ArtifactId, caller: HostedCaller = PATCH_RLADAPTERS) -> Response:
    """Undeploy an adapter. The response does not wait until the adapter is unloaded."""
    services = services_of(request)
    return await _set_deployed(request, caller, _find(services, services.objects.adapters, caller, adapter), False)


@router.post("/rft/checkpoints/{checkpoint}/deploy")
async def deploy_checkpoint(
    request: Request, checkpoint: ArtifactId, caller: HostedCaller = PATCH_RLADAPTERS
) -> Response:
    """Deploy the adapter of the checkpoint's run and step."""
    services = services_of(request)
    services.objects.require(services.objects.adapters)
    summary = _find(services, services.objects.checkpoints, caller, checkpoint).summary
    same = [
        adapter
        for adapter in services.objects.adapters.all()
        if adapter.namespace == caller.namespace
        and (adapter.summary.run_uid, adapter.summary.step) == (summary.run_uid, summary.step)
        and adapter.summary.phase == "Ready"
    ]
    if not same:
        steps = sorted(
            a.summary.step
            for a in services.objects.adapters.all()
            if a.namespace == caller.namespace and a.summary.run_uid == summary.run_uid and a.summary.phase == "Ready"
        )
        others = "no ready adapters:"
        if steps:
            others = f"ready adapters for steps {', '.join(map(str, steps))}: deploy one of them, or"
        detail = (
            f"Run {summary.run} has no ready adapter for step {summary.step}, the checkpoint's step. It has {others} "
            "set adapters.interval in the next run so that adapters are saved at the same steps as checkpoints."
        )
        raise RestError(409, Reason.OBJECT_NOT_FOUND, detail)
    return await _set_deployed(request, caller, same[0], True)


async def _set_deployed(request: Request, caller: HostedCaller, adapter: KeptArtifact, wanted: bool) -> Response:
    services = services_of(request)
    cluster = await caller_cluster(request, caller.caller)
    changes = {"metadata": {"uid": adapter.uid}, "spec": {"deployed": wanted}}
    asked = requests.patch(RLADAPTER, caller.namespace, adapter.name, changes, SERVER_FIELD_MANAGER)
    changed = await cluster.send(asked)
    services.objects.adapters.put(changed)
    return json_object({"adapter": _adapter_answer(services, caller, changed)})


def _find(
    services: Services, known: KeptObjects[ArtifactSummary], caller: HostedCaller, reference: str
) -> KeptArtifact:
    services.objects.require(known)
    place, name = split_checkpoint_id(reference, caller.namespace)
    artifact = known.find(place, name) if place == caller.namespace else None
    if artifact is None or artifact.summary.phase == "Deleting":
        raise not_found(f"{known.kind.kind} {reference}")
    return artifact


def _adapter_answer(services: Services, caller: HostedCaller, adapter: Obj) -> Json:
    run = services.objects.runs.find_uid(caller.namespace, str(adapter["spec"].get("runUid") or ""))
    return adapter_of(adapter, caller.user_id, run.summary.display_name if run is not None else None)


def model_ids(request: Request) -> list[str]:
    """Return the ids of all models. Raises RestError until the server has listed them."""
    objects = services_of(request).objects
    objects.require(objects.models)
    return sorted(model.summary.id for model in objects.models.all())
