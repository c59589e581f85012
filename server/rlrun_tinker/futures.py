"""Futures of the Tinker API. The id of a future identifies the command, so that any replica can find the result."""

import asyncio
import base64
import binascii
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from rlrun.api.base.received import InputInvalid
from rlrun.constants import Reason
from rlrun.protocol.client_command import CommandError, CommandPending, CommandResult, CommandState, ErrorCategory
from rlrun.protocol.client_run import ClientModel, ModelId, SamplerId, SavedStateUri, SaveKind
from starlette.responses import JSONResponse, Response

from rlrun_tinker.callers import CredentialHolder
from rlrun_tinker.errors import RETRYABLE, TinkerError
from rlrun_tinker.forward_backward import encode_output, read_result
from rlrun_tinker.open_models import OpenModels
from rlrun_tinker.pool_trainer_client import CommandRejected, PoolTrainerClient, ResultMemory, TrainerUnready
from rlrun_tinker.run_server import RunServer

POLL_SECONDS = 25.0
"""Maximum wait in seconds of a request for a result. The SDK times out after 45 s."""
PAUSES = (0.2, 0.2, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.5, 3.0)
"""Pauses in seconds between requests to a trainer that is not ready. The last pause repeats. The first pauses are
short, because a running pool opens a slot within a second. Later ones are at most about half of the time waited so far.
"""
PROTOBUF = "application/x-protobuf"
MAX_REASON = 1024
INLINE_BYTES = 4 * 1024**2
"""Size in bytes above which the first response contains only the size of a result, so that the SDK can limit its
memory.
"""


class FutureKind(StrEnum):
    """Kind of a future, which determines the format of the result."""

    create = "c"
    load = "l"
    forward_backward = "f"
    optim_step = "o"
    weights = "w"
    sampler_weights = "s"
    policy = "p"
    """Weights that were saved for sampling without a name."""


SAVES = {FutureKind.weights: SaveKind.weights, FutureKind.sampler_weights: SaveKind.sampler_weights}


@dataclass(frozen=True)
class FutureId:
    """Id of a future."""

    kind: FutureKind
    model: ModelId
    seq: int = 0
    name: str = ""
    """Name of the saved state, or empty."""

    @classmethod
    def parse(cls, text: str) -> "FutureId":
        """Parse the text of an id. Raises ValueError."""
        try:
            plain = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True).decode("ascii")
            kind, seq, model, name = plain.split(" ")
            found = cls(FutureKind(kind), ModelId.parse(model), int(seq), name)
            if str(found) != text or not 0 <= found.seq < 2**31:
                raise ValueError(plain)
            if found.kind in SAVES:
                SavedStateUri.parse(found.path)
        except (binascii.Error, ValueError):
            raise ValueError(f"{text[:100]!r} is not the id of a request to this server") from None
        return found

    def __str__(self) -> str:
        plain = f"{self.kind.value} {self.seq} {self.model} {self.name}"
        return base64.urlsafe_b64encode(plain.encode()).decode()

    @property
    def path(self) -> str:
        """URI of the saved state. Only for the kinds in SAVES."""
        return str(SavedStateUri(self.model, SAVES[self.kind], self.name))

    def response(self) -> Response:
        """Return the response to a request that starts the future."""
        return JSONResponse({"request_id": str(self), "model_id": str(self.model)})


class _CommandFailed(Exception):
    def __init__(self, error: CommandError) -> None:
        super().__init__(error.message)
        self.error = error


class Futures:
    """Retrieves the results of commands."""

    def __init__(
        self,
        server: RunServer,
        models: OpenModels,
        trainers: PoolTrainerClient,
        poll_seconds: float = POLL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._models = models
        self._trainers = trainers
        self._poll_seconds = poll_seconds
        self._sleep = sleep

    async def retrieve(
        self, caller: CredentialHolder, future: FutureId, leaving: asyncio.Event, *, allow_metadata_only: bool
    ) -> Response:
        """Return the response with the result, the failure or the state of the future. Does not wait once `leaving` is
        set, so that the client asks another replica. Raises TinkerError.
        """
        retrieving = asyncio.create_task(self._retrieve(caller, future, allow_metadata_only=allow_metadata_only))
        left = asyncio.create_task(leaving.wait())
        try:
            await asyncio.wait({retrieving, left}, return_when=asyncio.FIRST_COMPLETED)
            if retrieving.done():
                return retrieving.result()
            response = _try_again(future, CommandPending(state=CommandState.active))
            response.headers["Connection"] = "close"
            return response
        finally:
            for task in (retrieving, left):
                task.cancel()
            await asyncio.gather(retrieving, left, return_exceptions=True)

    async def _retrieve(self, caller: CredentialHolder, future: FutureId, *, allow_metadata_only: bool) -> Response:
        deadline = asyncio.get_running_loop().time() + self._poll_seconds
        pauses = iter(PAUSES)
        try:
            while True:
                with self._trainers.memory(str(future.model)) as memory:
                    found = await self._look(caller, future, deadline, memory)
                    if not isinstance(found, CommandPending):
                        return _response(future, found, allow_metadata_only=allow_metadata_only)
                left = deadline - asyncio.get_running_loop().time()
                if left <= 0:
                    return _try_again(future, found)
                await self._sleep(min(left, next(pauses, PAUSES[-1])))
        except _CommandFailed as failed:
            return JSONResponse({"error": failed.error.message, "category": failed.error.category.value})

    async def _look(
        self, caller: CredentialHolder, future: FutureId, deadline: float, memory: ResultMemory
    ) -> tuple[CommandResult, memoryview] | CommandPending:
        """Return the result, or the state of the future. Raises TinkerError, _CommandFailed."""
        try:
            model = await self._models.open(caller, future.model)
        except TinkerError as error:
            if error.status not in RETRYABLE:
                raise
            # The SDK repeats retrieve_future after 503 without a pause.
            return _paused(error.message)
        if model.has_ended:
            raise _failure(end_of(model), ErrorCategory.user)
        if model.trainer_url is None:
            return _paused(waiting_reason(model))
        try:
            if future.kind in (FutureKind.create, FutureKind.load):
                await self._trainers.touch(model)
                return CommandResult(), memoryview(b"")
            wait = max(0.0, deadline - asyncio.get_running_loop().time())
            found = await self._trainers.result(model, future.seq, wait, memory)
            result = found if isinstance(found, CommandPending) else read_result(found)
        except TrainerUnready as error:
            self._models.forget(caller, future.model)
            return _paused(waiting_reason(model) or str(error))
        except InputInvalid as error:
            raise _failure(str(error), ErrorCategory.server) from None
        except CommandRejected as rejected:
            try:
                explained = await self._explain(caller, future, model, rejected)
            except TinkerError as error:
                if error.status not in RETRYABLE:
                    raise
                return _paused(error.message)
            raise explained from None
        if not isinstance(result, CommandPending) and result[0].error is not None:
            raise _CommandFailed(result[0].error)
        if future.kind is FutureKind.policy and not isinstance(result, CommandPending) and result[0].policy is None:
            raise _failure(
                "The trainer saved no weights for sampling, because its version differs from the server's. Ask the "
                "platform team to run both at the same version.",
                ErrorCategory.server,
            )
        return result

    async def _explain(
        self, caller: CredentialHolder, future: FutureId, model: ClientModel, rejected: CommandRejected
    ) -> Exception:
        """Return the exception that explains why the trainer does not have the result."""
        if rejected.problem.reason == Reason.COMMAND_UNKNOWN:
            saved = (await self._server.read(caller, future.model)).saved
            states = {} if saved is None else saved.weights
            newest = max(states, key=lambda name: states[name].step, default=None)
            advice = "Start again: no state of this model has been saved."
            if newest is not None:
                path = SavedStateUri(future.model, SaveKind.weights, newest)
                advice = (
                    f"Continue from the newest saved state: create_training_client_from_state_with_optimizer('{path}')."
                )
            message = (
                f"The trainer of {model.namespace}/{model.run} restarted, or the run was suspended, before the result "
                f"of request {future.seq} was read."
            )
            return _failure(f"{message} {advice}", ErrorCategory.server)
        if rejected.status == 429:
            return TinkerError(429, rejected.problem.message)
        return _failure(rejected.problem.message, ErrorCategory.server)


def waiting_reason(model: ClientModel) -> str | None:
    """Return the reason why the model's session is not open, or None."""
    return None if model.waiting is None else model.waiting.message


def end_of(model: ClientModel) -> str:
    """Return the error message for a model that has ended."""
    cause = waiting_reason(model) if model.phase.finished else None
    why = f": {cause.rstrip('.')}" if cause else ""
    return f"{ended(model)}{why}. Create another client."


def ended(model: ClientModel) -> str:
    """Return the beginning of a message about a model that has ended. A run ends some seconds after it was stopped."""
    state = f"has ended ({model.phase.value})" if model.phase.finished else "was stopped or deleted"
    return f"The run {model.namespace}/{model.run} {state}"


def _paused(reason: str | None) -> CommandPending:
    return CommandPending(state=CommandState.paused_capacity, reason=reason and reason[:MAX_REASON])


def _failure(message: str, category: ErrorCategory) -> _CommandFailed:
    return _CommandFailed(CommandError(message=message[:16_384], category=category))


def _try_again(future: FutureId, pending: CommandPending) -> Response:
    body = {"type": "try_again", "request_id": str(future), "queue_state": pending.state.value}
    if pending.reason:
        body["queue_state_reason"] = pending.reason
    return JSONResponse(body, 408)


def _response(future: FutureId, found: tuple[CommandResult, memoryview], *, allow_metadata_only: bool) -> Response:
    result, arrays = found
    model = str(future.model)
    match future.kind:
        case FutureKind.create:
            return JSONResponse({"model_id": model, "type": "create_model"})
        case FutureKind.load:
            return JSONResponse({"model_id": model, "type": "load_weights"})
        case FutureKind.optim_step:
            # JSONResponse refuses NaN, which a diverged run may have and the SDK reads.
            return Response(json.dumps({"metrics": result.metrics}), media_type="application/json")
        case FutureKind.forward_backward:
            if allow_metadata_only and len(arrays) > INLINE_BYTES:
                return JSONResponse({"status": "complete_metadata", "response_payload_size": len(arrays)})
            return Response(encode_output(result, arrays), media_type=PROTOBUF)
        case FutureKind.policy:
            assert result.policy is not None
            sampler = SamplerId(future.model, result.policy.version, result.policy.digest[:8])
            content = {"path": None, "sampling_session_id": str(sampler), "type": "save_weights_for_sampler"}
            return JSONResponse(content)
        case _:
            return JSONResponse({"path": future.path, "type": f"save_{_save_type(future.kind)}"})


def _save_type(kind: FutureKind) -> str:
    return "weights" if kind is FutureKind.weights else "weights_for_sampler"
