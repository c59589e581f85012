"""Routes for dedicated runs: create, pause and resume runs, and list models and GPU types. The runs are the same as in
`/rft/runs`.
"""

from fastapi import APIRouter, Request
from rlrun.constants import Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj
from starlette.responses import Response

from rlrun_server.hosted_api.base.caller import KEY_IDENTIFIED, HostedCaller
from rlrun_server.hosted_api.base.errors import no_counterpart
from rlrun_server.hosted_api.base.wire import json_object
from rlrun_server.hosted_api.objects.run_objects import is_paused, phase_of, status_of
from rlrun_server.hosted_api.routes.artifact_routes import model_ids
from rlrun_server.hosted_api.routes.new_runs import (
    continue_from,
    continues,
    newest_checkpoint,
    read_dedicated_run,
    read_variables,
    require_paused,
    resumed_name,
    resumed_run,
)
from rlrun_server.hosted_api.routes.run_routes import (
    CREATE_RLRUNS,
    PATCH_RLRUNS,
    RunId,
    checkpoints_of,
    read_client_body,
    require_run,
    set_in_spec,
    submit_run,
)
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.summaries import ArtifactSummary
from rlrun_server.rest.routes.runs import load_run

router = APIRouter(tags=["dedicated runs"])


@router.post("/training/runs")
async def create_dedicated_run(request: Request, caller: HostedCaller = CREATE_RLRUNS) -> Response:
    """Create a run from a prime-rl configuration, from scratch or from a paused run's newest checkpoint."""
    asked = await read_client_body(request, caller, read_dedicated_run, caller.namespace)
    run = asked.run
    if asked.resume_from is not None:
        run = continue_from(run, *await _paused_run(request, caller, asked.resume_from))
    return _answer_with_id(await submit_run(request, caller, run))


@router.post("/training/runs/{run}/pause")
async def pause_run(request: Request, run: RunId, caller: HostedCaller = PATCH_RLRUNS) -> Response:
    """Suspend a run: the trainer saves a checkpoint, and the pods and their GPUs are released."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller.caller)
    kept_run = await load_run(services, caller.namespace, run)
    obj = kept_run.read()
    if phase_of(obj).finished or obj["spec"].get("stop"):
        state = status_of(obj) if phase_of(obj).finished else "being stopped"
        detail = f"Run {kept_run.name} is {state}. Only a run that has not ended can be paused."
        raise RestError(409, Reason.INVALID_REQUEST, detail)
    if not obj["spec"].get("suspend"):
        obj = await set_in_spec(services, cluster, kept_run, suspend=True)
    return json_object({"status": "PAUSED" if is_paused(obj) else "PAUSING"})


@router.post("/training/runs/{run}/resume")
async def resume_run(request: Request, run: RunId, caller: HostedCaller = CREATE_RLRUNS) -> Response:
    """Create a run that continues a paused run from its newest checkpoint. The paused run is not changed. Repeating the
    request does not create another run while the created run is active.
    """
    variables = await read_client_body(request, caller, read_variables)
    paused, checkpoint = await _paused_run(request, caller, run)
    asked = resumed_run(paused, checkpoint, variables)
    name = resumed_name(paused, asked.spec)
    try:
        return _answer_with_id(await submit_run(request, caller, asked, name))
    except RestError as error:
        if error.reason != Reason.NAME_TAKEN:
            raise
        cluster = await caller_cluster(request, caller.caller)
        existing = await cluster.find(requests.get(RLRUN, caller.namespace, name))
        if existing is None:
            raise
    if continues(existing, asked.spec):
        return _answer_with_id(existing)
    return _answer_with_id(await submit_run(request, caller, asked))


@router.get("/training/available-fft-models")
async def list_dedicated_models(request: Request, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """List the models that runs may use, without clusters or on-demand capacity, because all runs use this cluster."""
    return json_object({"models": [{"name": name, "clusters": []} for name in model_ids(request)], "onDemand": []})


@router.get("/training/available-gpu-types")
async def list_gpu_types(caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Return an empty list of GPU types, because the RLModel of a run configures its pods."""
    return json_object({"gpuTypes": []})


@router.get("/training/{path:path}")
@router.post("/training/{path:path}")
async def answer_about_others(path: str, caller: HostedCaller = KEY_IDENTIFIED) -> Response:
    """Respond with 404 to requests about volumes, local validation and other unsupported features. Clients then start a
    run without these features.
    """
    raise no_counterpart(
        "volumes, local validation and related features. A run's files are in S3, and a run is validated when it is "
        "created.",
        status=404,
    )


async def _paused_run(request: Request, caller: HostedCaller, run: str) -> tuple[Obj, ArtifactSummary | None]:
    """Return a paused run and its newest checkpoint. Raises RestError, including if the caller may not get runs."""
    await require_run(request, caller)
    services = services_of(request)
    paused = (await load_run(services, caller.namespace, run)).read()
    require_paused(paused)
    return paused, newest_checkpoint(paused, checkpoints_of(services, caller))


def _answer_with_id(run: Obj) -> Response:
    return json_object({"runId": run["metadata"]["name"], "tokenValue": ""})
