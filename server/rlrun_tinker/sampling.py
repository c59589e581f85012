"""Handlers of the Tinker API for samplers and samples.

A sampler is only an id, which identifies the weights to load (`rlrun.protocol.client_run.SamplerId`), so any process
can sample from it.
"""

import asyncio
import contextlib
from collections.abc import Callable

from rlrun.api.base.received import BODY, InputInvalid, parse
from rlrun.protocol.client_command import CommandError, CommandPending, CommandState, ErrorCategory
from rlrun.protocol.client_run import ClientModel, ModelId, NewClientModel, SamplerId, SavedStateUri, SaveKind
from rlrun.protocol.policy import PolicyRef
from rlrun_server.http.body import read_body
from rlrun_server.http.client_memory import CountedBody
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rlrun_tinker.callers import Callers, CredentialHolder
from rlrun_tinker.engine_client import SampleRefused
from rlrun_tinker.engine_registry import EngineRegistry, RunEngines, SampleFailed, SampleLost
from rlrun_tinker.errors import RETRYABLE, TinkerError
from rlrun_tinker.futures import MAX_REASON, ended
from rlrun_tinker.open_models import Heartbeats, OpenModels
from rlrun_tinker.pool_trainer_client import CommandRejected, PoolTrainerClient, TrainerUnready
from rlrun_tinker.requests import RetrieveFuture, parse_id
from rlrun_tinker.run_server import RunServer
from rlrun_tinker.sample_futures import SampleFutures, SamplesFailed, SamplesLost, Tell
from rlrun_tinker.sample_requests import (
    MAX_SAMPLE_BODY,
    CreateSamplingSession,
    ValidatedSampleRequest,
    read_sample_request,
)
from rlrun_tinker.sample_response import encode_response

FIRST_BASE_NUMBER = 900_000
"""First number of a session's models that are created only to sample from a base model."""
BASE_RANK = 1
"""Rank of the models that are created only to sample from a base model. They are never trained, and no RLModel refuses
this rank.
"""
TOUCH_SECONDS = 60.0
"""Seconds between two heartbeats to the trainer of a run that is sampled. The client may sample in a session other than
the run's own, whose heartbeats do not reach this trainer.
"""
MAX_JSON = 256 * 1024


class SamplingApi:
    """Handlers of samplers and samples."""

    def __init__(
        self,
        callers: Callers,
        server: RunServer,
        models: OpenModels,
        heartbeats: Heartbeats,
        trainers: PoolTrainerClient,
        samples: SampleFutures,
        engines: EngineRegistry,
        clock: Callable[[], float],
    ) -> None:
        self._callers = callers
        self._server = server
        self._models = models
        self._heartbeats = heartbeats
        self._trainers = trainers
        self._samples = samples
        self._engines = engines
        self._clock = clock
        self._touches: set[asyncio.Task[None]] = set()

    async def create_session(self, request: Request, caller: CredentialHolder) -> Response:
        """Return the id of a sampler for saved weights or for a base model."""
        body = parse(CreateSamplingSession, await read_body(request, MAX_JSON), is_user_input=True)
        if body.model_path is not None:
            sampler = await self._sampler_of(caller, parse_id(SavedStateUri.parse, body.model_path))
        elif body.base_model is not None:
            model = ModelId(body.session, FIRST_BASE_NUMBER + body.sampling_session_seq_id)
            await self._server.create(caller, model, NewClientModel(base_model=body.base_model, rank=BASE_RANK))
            self._heartbeats.remember(caller, model)
            sampler = SamplerId(model)
        else:
            raise InputInvalid(BODY, "has neither `model_path` nor `base_model`.")
        return JSONResponse({"type": "create_sampling_session", "sampling_session_id": str(sampler)})

    async def get_sampler(self, request: Request, caller: CredentialHolder) -> Response:
        """Return the base model of a sampler, and the path of its saved weights if they have a name."""
        sampler = parse_id(SamplerId.parse, request.path_params["sampler"])
        found = await self._server.read(caller, sampler.model)
        answer = {"sampler_id": str(sampler), "base_model": found.base_model}
        states = found.saved.sampler_weights if found.saved is not None and sampler.is_named else {}
        name = next((name for name, state in states.items() if state.step == sampler.step), None)
        if name is not None:
            answer["model_path"] = str(SavedStateUri(sampler.model, SaveKind.sampler_weights, name))
        return JSONResponse(answer)

    async def sample(self, request: Request, caller: CredentialHolder) -> Response:
        """Start sampling, and return the id of the samples' future."""
        if not self._callers.is_accepted(caller):
            # An unknown client's body would be received and decoded before anything else asks rlrun-server.
            await self._server.check(caller)
            request.state.limited_as = caller.digest
        held = CountedBody(request)
        try:
            asked = read_sample_request(await read_body(request, MAX_SAMPLE_BODY, held=held))
        finally:
            held.release()
        sampler = parse_id(SamplerId.parse, asked.sampler)
        model = await self._models.open(caller, sampler.model)
        if model.has_ended:
            raise TinkerError(400, _ended(model))
        policy = policy_of(sampler, model)
        self._heartbeats.remember(caller, sampler.model)
        engines = self._engines.of(model.uid)

        async def open_model(is_stale: bool) -> ClientModel | CommandPending:
            return await self._open(caller, sampler.model, engines, is_stale=is_stale)

        async def work(tell: Tell) -> bytes:
            numbers = range(asked.count)
            each = (engines.sample(open_model, policy, asked, number, tell) for number in numbers)
            tasks = [asyncio.ensure_future(one) for one in each]
            try:
                return encode_response(await asyncio.gather(*tasks))
            except SampleRefused as error:
                raise SamplesFailed(CommandError(message=str(error), category=ErrorCategory.user)) from None
            except SampleFailed as error:
                raise SamplesFailed(CommandError(message=str(error), category=ErrorCategory.server)) from None
            except SampleLost:
                raise SamplesLost from None
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        request_id = self._samples.start(caller, len(asked.prompt), asked.count, work)
        return JSONResponse(_promise(request_id, sampler, asked))

    async def cancel(self, request: Request, caller: CredentialHolder) -> Response:
        """Cancel samples."""
        body = parse(RetrieveFuture, await read_body(request, MAX_JSON) or b"{}", is_user_input=True)
        self._samples.cancel(caller, body.request_id)
        return Response(status_code=204)

    async def _sampler_of(self, caller: CredentialHolder, state: SavedStateUri) -> SamplerId:
        if state.kind is not SaveKind.sampler_weights:
            message = "is a state for training. Sample from weights saved by save_weights_for_sampler(name)."
            raise InputInvalid("`model_path`", message)
        found = await self._server.read(caller, state.model)
        if found.has_ended:
            raise TinkerError(400, _ended(found))
        saved = None if found.saved is None else found.saved.sampler_weights.get(state.name)
        if saved is None:
            raise TinkerError(404, f"{state} does not exist: it was never saved, was deleted or has expired.")
        if saved.digest is None or saved.step < 1:
            raise TinkerError(400, f"{state} was saved by an older version. Save the weights again.")
        return SamplerId(state.model, saved.step, saved.digest[:8], is_named=True)

    async def _open(
        self, caller: CredentialHolder, model: ModelId, engines: RunEngines, *, is_stale: bool
    ) -> ClientModel | CommandPending:
        """Return the run, or the reason why rlrun-server does not return it now. Raises SampleRefused."""
        if is_stale:
            self._models.forget(caller, model)
        try:
            found = await self._models.open(caller, model)
        except TinkerError as error:
            if error.status not in RETRYABLE:
                raise SampleRefused(error.message) from None
            return CommandPending(state=CommandState.paused_capacity, reason=error.message[:MAX_REASON])
        if found.has_ended:
            raise SampleRefused(_ended(found))
        if found.trainer_url is not None and self._clock() >= engines.touched + TOUCH_SECONDS:
            engines.touched = self._clock()
            touch = asyncio.create_task(self._touch(found))
            self._touches.add(touch)
            touch.add_done_callback(self._touches.discard)
        return found

    async def _touch(self, model: ClientModel) -> None:
        with contextlib.suppress(TrainerUnready, CommandRejected):
            await self._trainers.touch(model)


def policy_of(sampler: SamplerId, model: ClientModel) -> PolicyRef | None:
    """Return the policy that engines load for a sampler, or None for the base model. Raises TinkerError."""
    if sampler.step is None:
        return None
    if model.run_uri is None:
        message = "rlrun-server did not return the location of the weights, because its version differs from this "
        raise TinkerError(503, f"{message}server's. Ask the platform team to run both at the same version.")
    # As `rlrun.storage.layout.RunLayout`, which this program may not import.
    folder = f"adapters/step-{sampler.step:06d}" if sampler.is_named else f"policy/v{sampler.step:06d}-{sampler.digest}"
    return PolicyRef(version=sampler.step, digest=sampler.digest, uri=f"{model.run_uri.rstrip('/')}/{folder}")


def _promise(request_id: str, sampler: SamplerId, asked: ValidatedSampleRequest) -> dict[str, object]:
    return {
        "request_id": request_id,
        "model_id": str(sampler.model),
        "sample_sequence_ids": [f"{request_id}.{number}" for number in range(asked.count)],
    }


def _ended(model: ClientModel) -> str:
    return (
        f"{ended(model)}: its weights can no longer be sampled from. Deploy the adapter (rlrun adapters deploy) and "
        "use its OpenAI API, or load the state into a new model."
    )
