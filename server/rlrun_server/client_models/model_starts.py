"""Chooses the base model and the initial weights for a new model."""

from collections.abc import Iterator

from rlrun.api.model import RLModelSpec
from rlrun.constants import Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj, artifact_name
from rlrun.kube.references import checkpoint_id, find_model
from rlrun.protocol.client_run import LoadedState, ModelId, NewClientModel, SavedStateUri, SaveKind
from rlrun.protocol.problem import Problem
from starlette.requests import Request

from rlrun_server.authentication.users import Check
from rlrun_server.client_models.model_objects import ModelStart, check_base_model, listed, rank_of, refused_field
from rlrun_server.client_models.saved_states import SavedStateReader, is_deleted
from rlrun_server.rest.base.access import Caller
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.caller_cluster import caller_cluster
from rlrun_server.rest.context.services import Services, services_of


async def choose_start(
    request: Request, caller: Caller, namespace: str, asked: NewClientModel, saved: SavedStateReader
) -> ModelStart:
    """Return base model, rank and initial weights for a new model in `namespace`. Raises RestError, ProblemError."""
    services = services_of(request)
    if asked.load is None:
        if asked.base_model is None or asked.rank is None:
            missing = "base_model" if asked.base_model is None else "rank"
            raise refused_field(missing, "is required unless `load` names a saved state")
        start = ModelStart(asked.base_model, asked.rank)
    else:
        start = await _saved_start(request, caller, namespace, asked.load, saved)
        for field, wanted, found in (
            ("base_model", asked.base_model, start.base_model),
            ("rank", asked.rank, start.rank),
        ):
            if wanted not in (None, found):
                text = f"is {wanted}, but {asked.load.path} was saved with {found}. Omit it, or set it to {found}"
                raise refused_field(field, text)
    check_base_model(await _base_model(services, start.base_model), start.rank, _known_models(services))
    return start


async def find_run(request: Request, caller: Caller, model: ModelId) -> Obj | None:
    """Return the RLRun of a model, or None if it does not exist. Raises RestError, ProblemError."""
    services = services_of(request)
    runs = services.objects.runs
    services.objects.require(runs)
    kept = runs.find(model.namespace, model.run)
    if kept is not None:
        return (await services.load(runs, kept)).read()
    # Another replica of the server may have created the run a moment ago.
    cluster = await caller_cluster(request, caller)
    found = await cluster.find(requests.get(RLRUN, model.namespace, model.run))
    if found is not None:
        runs.put(found)
    return found


async def _saved_start(
    request: Request, caller: Caller, namespace: str, load: LoadedState, saved: SavedStateReader
) -> ModelStart:
    try:
        uri = SavedStateUri.parse(load.path)
    except ValueError as error:
        raise refused_field("load.path", str(error)) from None
    if uri.kind is not SaveKind.weights:
        text = f"{uri} is an adapter for sampling, which training cannot continue. Load a path with /weights/."
        raise refused_field("load.path", text)
    services, model = services_of(request), uri.model
    await services.access.require(caller.user, Check("get", "rlruns", model.namespace))
    run = await find_run(request, caller, model)
    rank = None if run is None else rank_of(run)
    if run is None or rank is None:
        text = (
            f"{uri} cannot be found, because model {model} does not exist or was deleted. The model's checkpoints may "
            f"still exist: rlrun checkpoints list -n {model.namespace}"
        )
        raise RestError(404, Reason.OBJECT_NOT_FOUND, f"load.path: {text}")
    uid = str(run["metadata"]["uid"])
    layout, tenant = saved.layout(model.namespace, uid), caller.user.limited_as
    states = (await saved.read(tenant, layout)).weights
    state = states.get(uri.name)
    if state is None:
        text = f"model {model} has no saved state {uri.name!r}. Load one of: {listed(states)}"
        raise RestError(404, Reason.CHECKPOINT_NOT_FOUND, f"load.path: {text}")
    name = artifact_name(model.run, uid, state.step)
    services.objects.require(services.objects.checkpoints)
    checkpoint = services.objects.checkpoints.find(model.namespace, name)
    is_gone = is_deleted(state, None if checkpoint is None else checkpoint.summary)
    # The operator creates the object some seconds after the save. A run that names the checkpoint waits for it.
    if is_gone or (checkpoint is None and not await saved.is_complete(tenant, layout.checkpoint(state.step))):
        text = f"{uri} was deleted, has expired, or its upload did not complete. Load another state: {listed(states)}"
        raise RestError(404, Reason.CHECKPOINT_NOT_FOUND, f"load.path: {text}")
    if model.namespace != namespace and (checkpoint is None or namespace not in checkpoint.summary.shared_with):
        text = (
            f"RLCheckpoint {model.namespace}/{name} is not shared with namespace {namespace}. Ask its owner to add "
            f"{namespace} to spec.sharedWith, or create the session in namespace {model.namespace}."
        )
        raise RestError(403, Reason.CHECKPOINT_NOT_FOUND, f"load.path: {text}")
    return ModelStart(str(run["spec"]["model"]), rank, checkpoint_id(model.namespace, name))


async def _base_model(services: Services, wanted: str) -> RLModelSpec:
    models = services.objects.models
    services.objects.require(models)
    kept = next((model for model in models.all() if model.summary.id == wanted), None)
    if kept is None:
        usable = listed(model.id for model in _known_models(services) if model.has_shared_trainer)
        text = f"no RLModel has the id {wanted[:200]!r}. Models that clients' programs can train: {usable}"
        raise refused_field("base_model", text, Reason.MODEL_NOT_FOUND)
    found = find_model(wanted, [(await services.load(models, kept)).read()])
    if isinstance(found, Problem):
        raise RestError(422, found.reason, found.message)
    return found


def _known_models(services: Services) -> Iterator[RLModelSpec]:
    """Yield the valid RLModels, except those too large to be kept in memory."""
    for kept in services.objects.models.all():
        found = find_model(kept.summary.id, [kept.read()]) if kept.data is not None else None
        if isinstance(found, RLModelSpec):
            yield found
