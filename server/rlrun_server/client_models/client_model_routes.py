"""Routes in `rlrun.protocol.client_run`, with which rlrun-tinker creates, reads and opens models of clients' programs.

Every request has the user's credential. The server checks permissions as for the REST API, and writes to the cluster
with the user's permissions. A model's token gives control over the training, so only the user who created the model,
and users who may patch its RLRun, receive the token.

The server sends one request to the API server when a model is created or resumed, and when a saved state is deleted or
its expiry is changed, in addition to cached reviews of tokens and permissions. Other requests are answered from memory
and S3, except requests for a model that is not in memory, for example because another replica has just created it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta

from rlrun.api.artifact import NEVER, expiry_text
from rlrun.api.base.names import MAX_NAMESPACE, NAMESPACE
from rlrun.api.base.received import parse
from rlrun.constants import REQUEST_ANNOTATION, SERVER_FIELD_MANAGER, USER_ANNOTATION, Reason
from rlrun.kube import requests
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN
from rlrun.kube.objects import Obj, annotation, artifact_name
from rlrun.protocol.client_run import (
    CLIENT_MODEL_PATH,
    CLIENT_SAVE_PATH,
    CLIENT_SESSIONS_PATH,
    ClientSessionPlace,
    ModelId,
    NewClientModel,
    NewClientSession,
    SavedState,
    SavedStates,
    SavedStateTtl,
    SaveKind,
    client_token,
)
from rlrun.service.errors import ProblemError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlrun_server.authentication.users import Check, User
from rlrun_server.client_models.model_objects import (
    is_silent,
    listed,
    new_run,
    rank_of,
    refused_field,
    request_digest,
    to_client_model,
)
from rlrun_server.client_models.model_starts import choose_start, find_run
from rlrun_server.client_models.saved_states import SavedStateReader, is_deleted, with_expiry
from rlrun_server.http.body import read_body
from rlrun_server.http.endpoint import Endpoint, Handler, json_response
from rlrun_server.rest.base.access import Caller, namespace_not_found
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.context.caller_cluster import CallerCluster, caller_cluster
from rlrun_server.rest.context.services import services_of
from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import ArtifactSummary

MAX_SESSION_BYTES = 4096
MAX_MODEL_BYTES = 128 * 1024
"""Maximum size in bytes of a request to create a model. One byte of metadata may take six bytes in JSON."""
MAX_TTL_BYTES = 1024
MAX_LOOKUPS = 8
"""Maximum number of saved states of one kind that one request looks up in S3."""
SAVED_KINDS = {
    SaveKind.weights: (RLCHECKPOINT, "rlcheckpoints", Reason.CHECKPOINT_NOT_READY),
    SaveKind.sampler_weights: (RLADAPTER, "rladapters", Reason.ADAPTER_NOT_READY),
}
"""By kind of saved state: the Kubernetes kind, the resource in permissions, and the error's reason while the object
does not exist yet.
"""


def client_model_routes(saved: SavedStateReader, platform_key: Callable[[], bytes]) -> list[Route]:
    """Return the routes. `platform_key` returns the key from which models' tokens are derived."""
    models = ClientModels(saved, platform_key)

    def route(path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> Route:
        return Route(path, Endpoint(_with_problems(handler)), methods=[method])

    return [
        route(CLIENT_SESSIONS_PATH, models.create_session, "POST"),
        route(CLIENT_MODEL_PATH, models.create, "PUT"),
        route(CLIENT_MODEL_PATH, models.get, "GET"),
        route(f"{CLIENT_MODEL_PATH}/open", models.open, "POST"),
        route(CLIENT_SAVE_PATH, models.delete_save, "DELETE"),
        route(f"{CLIENT_SAVE_PATH}/ttl", models.set_ttl, "PUT"),
    ]


class ClientModels:
    """Handlers for the routes. All raise RestError, ProblemError, InputInvalid."""

    def __init__(self, saved: SavedStateReader, platform_key: Callable[[], bytes]) -> None:
        self._saved = saved
        self._platform_key = platform_key

    async def create_session(self, request: Request) -> Response:
        """Return the namespace for a new session. Raises an error if the caller may not create runs there."""
        access = services_of(request).access
        caller = await access.identify(request)
        body = await read_body(request, MAX_SESSION_BYTES)
        asked = parse(NewClientSession, body or b"{}", is_user_input=True)
        namespace = await self._namespace_of(request, caller.user, asked.namespace or "")
        await access.require(caller.user, Check("create", "rlruns", namespace))
        # Raises RestError if API keys are read-only.
        await caller_cluster(request, caller)
        return json_response(ClientSessionPlace(namespace=namespace))

    async def create(self, request: Request) -> Response:
        """Create the RLRun of a model, or return the model that an earlier, identical request created."""
        caller, model = await _authorize(request, Check("create", "rlruns", ""))
        cluster = await caller_cluster(request, caller)
        body = await read_body(request, MAX_MODEL_BYTES)
        asked = parse(NewClientModel, body, is_user_input=True)
        runs = services_of(request).objects.runs
        user, kept = caller.user.name, runs.find(model.namespace, model.run)
        run = None if kept is None else await find_run(request, caller, model)
        if run is None:
            start = await choose_start(request, caller, model.namespace, asked, self._saved)
            run = await _create(cluster, new_run(model, asked, start, user))
            runs.put(run)
        if annotation(run, REQUEST_ANNOTATION) != request_digest(asked, user):
            detail = (
                f"Model {model} already exists, created by a different request. Create a new session, or use the next "
                "number for another model."
            )
            raise RestError(409, Reason.CLIENT_MODEL_CONFLICT, detail)
        return json_response(to_client_model(run))

    async def get(self, request: Request) -> Response:
        """Return a model with its saved states."""
        caller, model = await _authorize(request, Check("get", "rlruns", ""))
        run = await _require_model(request, caller, model)
        layout = self._saved.layout(model.namespace, str(run["metadata"]["uid"]))
        states = await self._saved.read(caller.user.limited_as, layout)
        saved = {kind.value: await self._existing(request, caller, run, kind, states.of(kind)) for kind in SaveKind}
        return json_response(to_client_model(run).model_copy(update={"saved": SavedStates(**saved)}))

    async def open(self, request: Request) -> Response:
        """Return a model with its token. Resumes the run if it was suspended because its client was silent.

        A model that has ended is returned without a token.
        """
        caller, model = await _authorize(request, Check("create", "rlruns", ""), Check("get", "rlruns", ""))
        cluster = await caller_cluster(request, caller)
        run = await _require_model(request, caller, model)
        await _require_control(request, caller, model, run)
        if is_silent(run) and not to_client_model(run).has_ended:
            run = await _resume(cluster, run)
            services_of(request).objects.runs.put(run)
        found = to_client_model(run)
        if not found.has_ended:
            found.token = client_token(self._platform_key(), found.uid)
            found.run_uri = str(self._saved.layout(found.namespace, found.uid).root)
        return json_response(found)

    async def delete_save(self, request: Request) -> Response:
        """Delete a saved state by letting it expire now; the operator then deletes its files and object. Repeating this
        has no effect.
        """
        return await self._expire(request)

    async def set_ttl(self, request: Request) -> Response:
        """Change the expiry of a saved state."""
        return await self._expire(request, has_ttl=True)

    async def _expire(self, request: Request, *, has_ttl: bool = False) -> Response:
        """Set the expiry of the state's object, with the caller's permissions, to the time in the request if `has_ttl`
        is set, otherwise to the current time.

        Raises RestError if the model or the state does not exist, if the operator has not created the object yet, or
        if `has_ttl` is set and the state was deleted or has expired.
        """
        caller, model = await _authorize(request, Check("get", "rlruns", ""))
        kind = _save_kind(request)
        resource, plural, not_ready = SAVED_KINDS[kind]
        await services_of(request).access.require(caller.user, Check("patch", plural, model.namespace))
        cluster = await caller_cluster(request, caller)
        expires_at = await _time_of(request) if has_ttl else datetime.now(UTC)
        run = await _require_model(request, caller, model)
        uid, name = str(run["metadata"]["uid"]), request.path_params["name"]
        layout, tenant = self._saved.layout(model.namespace, uid), caller.user.limited_as
        states = (await self._saved.read(tenant, layout)).of(kind)
        state = states.get(name)
        if state is None:
            detail = f"Model {model} has no saved state {kind}/{name[:128]}. Saved under {kind}/: {listed(states)}."
            raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)
        recorded, artifact = _recorded(request, kind), artifact_name(model.run, uid, state.step)
        known = recorded.find(model.namespace, artifact)
        detail = f"Saved state {kind}/{name} of model {model} was deleted or has expired."
        gone = RestError(404, Reason.OBJECT_NOT_FOUND, detail)
        if has_ttl and is_deleted(state, None if known is None else known.summary):
            raise gone
        changes = {"spec": {"expiresAt": expiry_text(expires_at)}}
        patch = requests.patch(resource, model.namespace, artifact, changes, SERVER_FIELD_MANAGER)
        changed = await cluster.find(patch)
        if changed is not None:
            recorded.put(changed)
            return Response(status_code=204)
        folder = (layout.checkpoint if kind is SaveKind.weights else layout.adapter)(state.step)
        # A deletion removes the manifest first, so files without an object are not recorded yet.
        if await self._saved.is_complete(tenant, folder):
            detail = f"The operator has not recorded saved state {kind}/{name} yet. Retry the request in a few seconds."
            raise RestError(503, not_ready, detail)
        if has_ttl:
            raise gone
        return Response(status_code=204)

    async def _existing(
        self, request: Request, caller: Caller, run: Obj, kind: SaveKind, states: Mapping[str, SavedState]
    ) -> dict[str, SavedState]:
        """Return the states that still exist, newest first. `states` may contain deleted states, because the trainer
        keeps their names.

        The operator creates an object some seconds after the save, so the newest states without one, at most
        MAX_LOOKUPS, are looked up in S3. If all of these are complete, the operator is behind, and older states without
        an object are returned too.
        """
        recorded, metadata = _recorded(request, kind), run["metadata"]
        namespace, uid = metadata["namespace"], str(metadata["uid"])
        layout = self._saved.layout(namespace, uid)
        existing, looked, is_behind = dict[str, SavedState](), 0, True
        for name, state in sorted(states.items(), key=lambda item: item[1].step, reverse=True):
            found = recorded.find(namespace, artifact_name(metadata["name"], uid, state.step))
            artifact = None if found is None else found.summary
            if found is not None or is_deleted(state, None):
                exists = not is_deleted(state, artifact)
            elif looked < MAX_LOOKUPS:
                looked += 1
                folder = (layout.checkpoint if kind is SaveKind.weights else layout.adapter)(state.step)
                exists = await self._saved.is_complete(caller.user.limited_as, folder)
                is_behind = is_behind and exists
            else:
                exists = is_behind
            if exists:
                existing[name] = with_expiry(state, artifact)
        return existing

    async def _namespace_of(self, request: Request, user: User, asked: str) -> str:
        if asked and user.namespace not in ("", asked):
            text = (
                f"the API key belongs to namespace {user.namespace}, not to {asked[:MAX_NAMESPACE]}. Leave project_id "
                "out, or use a key of that namespace."
            )
            raise RestError(403, Reason.ACCESS_FORBIDDEN, f"namespace: {text}")
        if asked:
            return _checked_namespace(asked)
        if user.namespace:
            return user.namespace
        services = services_of(request)
        services.objects.require(services.objects.runs)
        visible = await services.visible.of(user)
        if len(visible.names) == 1 and visible.is_complete and not visible.has_all:
            return next(iter(visible.names))
        text = (
            "is required with a Kubernetes token: set project_id in the SDK to the namespace for your runs, or use an "
            f"API key, which belongs to one. Namespaces with runs that you may list: {listed(visible.names)}"
        )
        raise refused_field("namespace", text)


def _with_problems(handler: Handler) -> Handler:
    """Return a handler that converts RestErrors to ProblemErrors."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except RestError as error:
            causes = "".join(f" {each.pointer}: {each.detail.rstrip('.')}." for each in error.errors)
            raise ProblemError.of(error.status, error.reason, f"{error.detail}{causes}") from error

    return handle


async def _authorize(request: Request, *checks: Check) -> tuple[Caller, ModelId]:
    """Identify the caller, and require the permissions in `checks` for the namespace in the path.

    Returns the caller and the model. The namespaces in `checks` are ignored.
    """
    access = services_of(request).access
    caller = await access.identify(request)
    namespace, run = _checked_namespace(request.path_params["namespace"]), request.path_params["run"]
    for check in checks:
        await access.require(caller.user, Check(check.verb, check.resource, namespace))
    try:
        return caller, ModelId.of_run(namespace, run)
    except ValueError as error:
        raise RestError(404, Reason.OBJECT_NOT_FOUND, f"The model does not exist: {error}.") from None


def _checked_namespace(name: str) -> str:
    if len(name) > MAX_NAMESPACE or not re.fullmatch(NAMESPACE, name):
        raise namespace_not_found(name[:MAX_NAMESPACE])
    return name


def _recorded(request: Request, kind: SaveKind) -> KeptObjects[ArtifactSummary]:
    """Return the objects for saved states of the kind. Raises RestError until the server has listed them."""
    objects = services_of(request).objects
    recorded = objects.checkpoints if kind is SaveKind.weights else objects.adapters
    objects.require(recorded)
    return recorded


async def _time_of(request: Request) -> datetime:
    """Return the new expiry in the request's body, or NEVER if its `ttl_seconds` is None."""
    asked = parse(SavedStateTtl, await read_body(request, MAX_TTL_BYTES) or b"{}", is_user_input=True)
    return NEVER if asked.ttl_seconds is None else datetime.now(UTC) + timedelta(seconds=asked.ttl_seconds)


def _save_kind(request: Request) -> SaveKind:
    try:
        return SaveKind(request.path_params["kind"])
    except ValueError:
        detail = f"{request.path_params['kind'][:32]!r} is not a kind of saved state: use {' or '.join(SaveKind)}."
        raise RestError(404, Reason.OBJECT_NOT_FOUND, detail) from None


async def _require_model(request: Request, caller: Caller, model: ModelId) -> Obj:
    run = await find_run(request, caller, model)
    if run is None or rank_of(run) is None:
        detail = f"Model {model} does not exist, or its RLRun was deleted. Create a new model."
        raise RestError(404, Reason.OBJECT_NOT_FOUND, detail)
    return run


async def _require_control(request: Request, caller: Caller, model: ModelId, run: Obj) -> None:
    """Check that the caller created the run or may patch it. Raises RestError."""
    user = caller.user.name
    if annotation(run, USER_ANNOTATION) == user:
        return
    if not await services_of(request).access.may(caller.user, Check("patch", "rlruns", model.namespace)):
        detail = (
            f"User {user} may not train model {model}, which another user created. Load one of its saved states into a "
            f"model of your own, or ask for the permission to patch rlruns in namespace {model.namespace}."
        )
        raise RestError(403, Reason.ACCESS_FORBIDDEN, detail)


async def _create(cluster: CallerCluster, wanted: Obj) -> Obj:
    """Create a run. Returns the existing run if there is one with this name."""
    metadata = wanted["metadata"]
    try:
        return await cluster.send(requests.create(wanted, SERVER_FIELD_MANAGER))
    except RestError as error:
        if error.reason != Reason.NAME_TAKEN:
            raise
        existing = await cluster.find(requests.get(RLRUN, metadata["namespace"], metadata["name"]))
        if existing is not None:
            return existing
    detail = f"Run {metadata['name']} was deleted during the request. Retry the request."
    raise RestError(503, Reason.OBJECT_CHANGED, detail)


async def _resume(cluster: CallerCluster, run: Obj) -> Obj:
    """Resume a run that was suspended because its client was silent. Returns the current run unchanged if this no
    longer holds. Raises RestError if the run keeps changing or was replaced.
    """
    metadata = run["metadata"]
    for _ in range(2):
        seen = {key: run["metadata"][key] for key in ("uid", "resourceVersion")}
        changes = {"metadata": seen, "spec": {"suspend": False}}
        try:
            return await cluster.send(
                requests.patch(RLRUN, metadata["namespace"], metadata["name"], changes, SERVER_FIELD_MANAGER)
            )
        except RestError as error:
            if error.reason != Reason.OBJECT_CHANGED:
                raise
        run = await cluster.send(requests.get(RLRUN, metadata["namespace"], metadata["name"]))
        if run["metadata"]["uid"] != metadata["uid"]:
            break
        if not is_silent(run):
            return run
    raise RestError(
        503, Reason.OBJECT_CHANGED, f"Run {metadata['name']} changed during the request. Retry the request."
    )
