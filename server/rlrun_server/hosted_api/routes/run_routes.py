"""Routes that list, create, show, stop, restart and delete runs, and list their environment servers."""

import logging
from collections.abc import Callable
from typing import Annotated, Concatenate, ParamSpec, TypeVar

from fastapi import APIRouter, Path, Query, Request
from rlrun.api.base.phases import Phase
from rlrun.api.base.received import InputInvalid
from rlrun.api.toml.client_requests import ClientRun
from rlrun.constants import ROLE_LABEL, RUN_LABEL, SERVER_FIELD_MANAGER, Reason, Role
from rlrun.kube import requests
from rlrun.kube.kinds import POD, RLRUN, SECRET
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest, Verb
from starlette.responses import Response

from rlrun_server.authentication.users import Check
from rlrun_server.hosted_api.base.caller import HostedCaller, key_requires
from rlrun_server.hosted_api.base.errors import FieldProblems
from rlrun_server.hosted_api.base.wire import Json, PageNumber, json_object
from rlrun_server.hosted_api.environments.environment_checks import environment_problems
from rlrun_server.hosted_api.objects.run_objects import (
    component_status,
    listed_run_of,
    number_servers,
    phase_of,
    run_of,
)
from rlrun_server.hosted_api.routes.new_runs import (
    owner_patch,
    read_client_run,
    reference_problems,
    run_name,
    run_object,
    secret_name,
    secret_object,
)
from rlrun_server.http.body import read_body
from rlrun_server.rest.base.access import access_of
from rlrun_server.rest.base.problems import RestError, invalid
from rlrun_server.rest.context.caller_cluster import CallerCluster, caller_cluster
from rlrun_server.rest.context.services import Services, services_of
from rlrun_server.rest.objects.summaries import ArtifactSummary
from rlrun_server.rest.routes.runs import KeptRun, find_run, load_run

log = logging.getLogger(__name__)
router = APIRouter(tags=["runs"])

MAX_BODY = 1024 * 1024
"""Maximum size in bytes of a request's body, including the values of secret variables."""
MAX_PAGE = 1000
RUNS_AT_ONCE = 100
"""Number of runs that are loaded and converted at a time, to limit the number of complete runs in memory."""
LIST_RLRUNS = key_requires("list", "rlruns")
CREATE_RLRUNS = key_requires("create", "rlruns")
GET_RLRUNS = key_requires("get", "rlruns")
PATCH_RLRUNS = key_requires("patch", "rlruns")
DELETECOLLECTION_PODS = key_requires("deletecollection", "pods", group="")
DELETE_RLRUNS = key_requires("delete", "rlruns")
LIST_PODS = key_requires("list", "pods", group="")
P = ParamSpec("P")
T = TypeVar("T")
RunId = Annotated[str, Path(min_length=1, max_length=64)]


@router.get("/rft/runs")
async def list_runs(
    request: Request,
    page: PageNumber | None = None,
    limit: Annotated[int | None, Query(ge=1, le=MAX_PAGE)] = None,
    caller: HostedCaller = LIST_RLRUNS,
) -> Response:
    """List runs, newest first: one page, or all runs for older clients, which send neither `page` nor `limit`."""
    services = services_of(request)
    services.objects.require(services.objects.runs)
    runs = [run for run in services.objects.runs.all() if run.namespace == caller.namespace]
    runs.sort(key=lambda run: (run.summary.created_at, run.name), reverse=True)
    if page is None and limit is None:
        return json_object({"runs": await _run_answers(services, caller, runs)})
    size, number = limit or 20, page or 1
    rows = runs[(number - 1) * size : number * size]
    answer = {"total": len(runs), "page": number, "limit": size, "total_pages": -(-len(runs) // size)}
    return json_object({"runs": await _run_answers(services, caller, rows), **answer})


@router.post("/rft/runs")
async def create_run(request: Request, caller: HostedCaller = CREATE_RLRUNS) -> Response:
    """Create a run, and a Secret with the variables in the request."""
    asked = await read_client_body(request, caller, read_client_run, caller.namespace)
    return _answer(services_of(request), caller, await submit_run(request, caller, asked))


async def read_client_body(
    request: Request, caller: HostedCaller, read: Callable[Concatenate[bytes, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Parse the body of the request with `read`. Raises FieldProblems, RestError, ProblemError."""
    body = await read_body(request, MAX_BODY)
    try:
        return await services_of(request).bodies.run(caller.caller.user.limited_as, read, body, *args, **kwargs)
    except InputInvalid as error:
        raise invalid(str(error)) from error


async def submit_run(request: Request, caller: HostedCaller, asked: ClientRun, name: str | None = None) -> Obj:
    """Check a run's model, checkpoint and environments, create it with the Secret for its variables, and return it.

    If `name` is None, a name with a random suffix is chosen. Raises FieldProblems, RestError, ProblemError.
    """
    services = services_of(request)
    cluster = await caller_cluster(request, caller.caller)
    caller.require_team(asked.team_id)
    services.objects.require(services.objects.models)
    models = [model.summary.id for model in services.objects.models.all()]
    checkpoints = {summary.name: summary for summary in checkpoints_of(services, caller)}
    problems = reference_problems(asked.spec, caller.namespace, models, checkpoints)
    problems += await environment_problems(request, caller, asked.spec)
    if problems:
        located = [asked.locate(problem) for problem in problems]
        raise FieldProblems([(problem.location, problem.message) for problem in located])
    created = await _create(cluster, asked, name or run_name(asked.spec), caller.namespace, caller.caller.user.name)
    services.objects.runs.put(created)
    return created


def checkpoints_of(services: Services, caller: HostedCaller) -> list[ArtifactSummary]:
    """Return the checkpoints of the caller's namespace. Raises RestError until the server has listed them."""
    known = services.objects.checkpoints
    services.objects.require(known)
    return [kept.summary for kept in known.all() if kept.namespace == caller.namespace]


@router.get("/rft/runs/{run}")
async def get_run(request: Request, run: RunId, caller: HostedCaller = GET_RLRUNS) -> Response:
    """Return a run."""
    services = services_of(request)
    kept_run = await load_run(services, caller.namespace, run)
    return await services.show(
        caller.caller.user.limited_as, kept_run, lambda: _answer(services, caller, kept_run.read())
    )


@router.put("/rft/runs/{run}/stop")
async def stop_run(request: Request, run: RunId, caller: HostedCaller = PATCH_RLRUNS) -> Response:
    """Stop a run permanently. It becomes STOPPED when its pods have terminated."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller.caller)
    kept_run = await load_run(services, caller.namespace, run)
    if phase_of(kept_run.read()).finished:
        return _answer(services, caller, kept_run.read())
    return _answer(services, caller, await set_in_spec(services, cluster, kept_run, stop=True))


async def set_in_spec(services: Services, cluster: CallerCluster, run: KeptRun, **fields: bool) -> Obj:
    """Set fields of a run's spec, and return the changed run. Raises RestError."""
    changes = {"metadata": {"uid": run.uid}, "spec": fields}
    changed = await cluster.send(requests.patch(RLRUN, run.namespace, run.name, changes, SERVER_FIELD_MANAGER))
    services.objects.runs.put(changed)
    return changed


@router.put("/rft/runs/{run}/restart")
async def restart_run(request: Request, run: RunId, caller: HostedCaller = DELETECOLLECTION_PODS) -> Response:
    """Delete all pods of a running run. The operator replaces them, and training continues from the last saved state.

    A single request to the API server deletes all pods.
    """
    services = services_of(request)
    await require_run(request, caller)
    cluster = await caller_cluster(request, caller.caller)
    kept_run = await load_run(services, caller.namespace, run)
    obj = kept_run.read()
    phase, spec = phase_of(obj), obj.get("spec") or {}
    if phase is not Phase.running or spec.get("stop") or spec.get("suspend"):
        state = phase.value if phase is not Phase.running else "stopping" if spec.get("stop") else "pausing"
        detail = f"Run {kept_run.name} is {state}. Only a run that is RUNNING can be restarted."
        raise RestError(409, Reason.INVALID_REQUEST, detail)
    pods = {"labelSelector": f"{RUN_LABEL}={kept_run.name}"}
    await cluster.send(KubeRequest(Verb.DELETE, POD, caller.namespace, query=pods))
    return _answer(services, caller, obj)


@router.delete("/rft/runs/{run}")
async def delete_run(request: Request, run: RunId, caller: HostedCaller = DELETE_RLRUNS) -> Response:
    """Delete a run and its pods. Its files and checkpoints are kept or deleted according to `artifactPolicy`."""
    services = services_of(request)
    cluster = await caller_cluster(request, caller.caller)
    kept_run = find_run(services, caller.namespace, run)
    await cluster.send(requests.delete(RLRUN, caller.namespace, kept_run.name, kept_run.uid))
    return Response(status_code=204)


@router.get("/rft/runs/{run}/env-servers")
async def list_components(request: Request, run: RunId, caller: HostedCaller = LIST_PODS) -> Response:
    """List the environment pods of a run."""
    services = services_of(request)
    await require_run(request, caller)
    cluster = await caller_cluster(request, caller.caller)
    kept_run = await load_run(services, caller.namespace, run)
    labels = {RUN_LABEL: kept_run.name, ROLE_LABEL: Role.environment.value}
    page = await cluster.send(requests.list_page(POD, caller.namespace, labels))
    obj = kept_run.read()
    servers = [component_status(obj, pod) for pod in page.get("items") or []]
    return json_object({"env_servers": number_servers(servers)})


async def require_run(request: Request, caller: HostedCaller) -> None:
    """Check that the caller may get runs, in addition to the permission that the route requires. Raises RestError."""
    await access_of(request).require(caller.caller.user, Check("get", "rlruns", caller.namespace))


async def _create(cluster: CallerCluster, asked: ClientRun, name: str, namespace: str, user: str) -> Obj:
    if asked.secrets:
        await cluster.send(requests.create(secret_object(name, namespace, asked.secrets), SERVER_FIELD_MANAGER))
    try:
        wanted = run_object(asked, name, namespace, user)
        created = await cluster.send(requests.create(wanted, SERVER_FIELD_MANAGER), "spec")
    except BaseException as error:
        if asked.secrets:
            is_refused = isinstance(error, RestError) and error.status < 500
            # Without a response, the run may have been created.
            stored = None if is_refused else await cluster.find(requests.get(RLRUN, namespace, name))
            if stored is None:
                await cluster.find(requests.delete(SECRET, namespace, secret_name(name)))
            else:
                await _own_secret(cluster, stored)
        raise
    if asked.secrets:
        await _own_secret(cluster, created)
    return created


async def _own_secret(cluster: CallerCluster, run: Obj) -> None:
    namespace, secret = run["metadata"]["namespace"], secret_name(run["metadata"]["name"])
    try:
        await cluster.send(requests.patch(SECRET, namespace, secret, owner_patch(run), SERVER_FIELD_MANAGER))
    except RestError as error:
        log.warning(
            "could not make the run the owner of Secret %s/%s, so the Secret is not deleted with the run: %s",
            namespace,
            secret,
            error.reason,
        )


async def _run_answers(services: Services, caller: HostedCaller, runs: list[KeptRun]) -> list[Json]:
    lengths = _sequence_lengths(services)

    def read(part: list[KeptRun]) -> list[Json]:
        return [listed_run_of(run.read(), caller.user_id, lengths.get(run.summary.model)) for run in part]

    answers: list[Json] = []
    for start in range(0, len(runs), RUNS_AT_ONCE):
        part = await services.load_all(services.objects.runs, runs[start : start + RUNS_AT_ONCE])
        # A thousand runs take half a second, which would block the event loop.
        answers += await services.metrics.compute(caller.caller.user.limited_as, read, part)
    return answers


def _answer(services: Services, caller: HostedCaller, run: Obj) -> Response:
    model = str((run.get("spec") or {}).get("model") or "")
    return json_object({"run": run_of(run, caller.user_id, _sequence_lengths(services).get(model))})


def _sequence_lengths(services: Services) -> dict[str, int | None]:
    return {model.summary.id: model.summary.seq_len for model in services.objects.models.all()}
