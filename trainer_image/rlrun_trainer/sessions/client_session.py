"""Session of a run whose training loop is a client's program: it executes the program's commands.

The step of its artifacts is the number of a command: a named state has that of the command that saved it, other
checkpoints that of the newest command. A command that fails changes nothing but this number.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic_core import to_json
from rlrun.constants import OUT_OF_MEMORY, UNPROCESSABLE, Reason
from rlrun.protocol.client_command import (
    Command,
    CommandError,
    CommandResult,
    DatumHeader,
    ErrorCategory,
    ForwardBackward,
    OptimStep,
    SaveState,
    frame,
)
from rlrun.protocol.client_run import MAX_METADATA_BYTES, MAX_SAVES, SavedState, SaveKind
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import StoreError
from typing_extensions import override

from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.saved_states import SavedStatesObject
from rlrun_trainer.artifacts.upload_queue import SavedName
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.sessions.received_command import ReceivedCommand
from rlrun_trainer.sessions.session import OpenedSlot, Session

log = logging.getLogger(__name__)

SAVE_SECONDS = 300.0
"""Seconds for which a save waits for capacity in the queue of uploads, and then for its upload, before it fails."""
UPDATES = "updates"
"""Entry of a checkpoint's state: the number of optimizer steps of the run."""
FLOAT_BYTES = 4
TARGETS = "target_tokens"
OF_USERS = frozenset({UNPROCESSABLE, OUT_OF_MEMORY})
"""Statuses of errors that the client's program can mend."""
KINDS = {SaveKind.weights: ArtifactKind.checkpoint, SaveKind.sampler_weights: ArtifactKind.adapter}

Outcome = bytes | asyncio.Task[bytes]
"""Result of a command as bytes, or an upload that ends with it."""


class ClientSession(Session):
    """Session of a client's program, created by `open_client_session`. Publishes no policy."""

    def __init__(self, slot: OpenedSlot, saved: SavedStatesObject) -> None:
        super().__init__(slot)
        state = slot.start.orchestrator_state if slot.start.saved_as is not None else None
        self.updates: int = (state or {}).get(UPDATES, 0)
        """Number of optimizer steps of this run."""
        self._saved = saved
        self._is_updated = False
        """True if the newest command was an optimizer step."""
        self._pending: dict[int, tuple[SaveKind, str]] = {}
        """Names of states whose uploads are not complete, by number of the command."""

    @property
    def newest_saved(self) -> str:
        """Description of the newest checkpoint with a name, for messages."""
        if (newest := self._saved.newest) is None:
            return "No state was saved"
        return f"The newest saved state is {newest[0]!r} of call {newest[1].step}"

    @property
    def held_seconds(self) -> float:
        """Seconds for which the current command has waited for units of other runs."""
        return self._compute.held_seconds(self.name)

    @property
    @override
    def _progress(self) -> CheckpointProgress:
        return self._progress_at(self._step)

    def _progress_at(self, step: int) -> CheckpointProgress:
        return CheckpointProgress(step, self.spec.run_uid, {UPDATES: self.updates})

    async def execute(self, number: int, received: ReceivedCommand) -> Outcome:
        """Execute the command with the next number. An error is a result, too. Raises ProblemError (`TrainerStopping`)
        if the session executes no more commands.
        """
        command = received.command
        failure: ProblemError | None = None
        if isinstance(command, SaveState):
            # Outside of the turn, so that a last checkpoint need not wait.
            try:
                await self.uploads.wait_for_capacity(KINDS[command.saved_as], SAVE_SECONDS)
            except ProblemError as error:
                failure = error
        async with self._turn:
            self.require_staying()
            try:
                if failure is not None:
                    raise failure
                outcome = await self._execute(number, command, received.buffers)
            except ProblemError as error:
                category = ErrorCategory.user if error.status in OF_USERS else ErrorCategory.server
                outcome = failed(error.problem.message, category)
            except Exception as error:
                log.exception("Session %s: command %d failed", self.name, number)
                outcome = failed(f"The trainer failed: {type(error).__name__}: {error}", ErrorCategory.server)
            self._step = number
            self._is_updated = isinstance(command, OptimStep)
            return outcome

    async def save_due_copy(self) -> None:
        """Save a recovery copy after an optimizer step, if one is due."""
        if self._is_updated and self._needs_copy:
            await self._save_copy(self._step)

    async def _execute(self, number: int, command: Command | CommandError, buffers: memoryview) -> Outcome:
        if isinstance(command, CommandError):
            return frame(CommandResult(error=command))
        if isinstance(command, SaveState):
            return await self._save_state(number, command)
        if isinstance(command, OptimStep):
            metrics = await self._compute.run(self.name, self._backend.optim_step, self.name, command)
            self.updates += 1
            return _result(metrics)
        metrics, logprobs = await self._compute.run_units(self.name, self._forward_backward, command, buffers)
        if not command.forward_only:
            self.on_trained(sum(datum.length for datum in command.datums))
        return _result(metrics, logprobs, command.datums)

    def _forward_backward(
        self, command: ForwardBackward, buffers: memoryview
    ) -> Units[tuple[dict[str, float], list[bytes]]]:
        return (yield from self._backend.forward_backward(self.name, self.spec, command, buffers))

    async def _save_state(self, number: int, command: SaveState) -> Outcome:
        """Take a snapshot and return its upload."""
        await self._check_name(number, command)
        now = datetime.now(UTC)
        expires = now + timedelta(seconds=command.ttl_seconds) if command.ttl_seconds is not None else None
        state = SavedState(step=number, time=now, expires_at=expires)
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def record() -> None:
            if not ended.cancelled():
                self._saved.record(command.saved_as, command.name, state)

        def on_end(is_complete: bool) -> None:
            if not ended.done():
                ended.set_result(is_complete)

        details = {
            "name": command.name,
            "expiresAt": expires.isoformat() if expires is not None else None,
            "userMetadata": command.user_metadata or None,
        }
        named = SavedName({key: value for key, value in details.items() if value is not None}, record, on_end)
        kind = KINDS[command.saved_as]
        progress = self._progress_at(number) if kind is ArtifactKind.checkpoint else None
        await self._save(kind, self._place(command.saved_as, number), progress, step=number, named=named)
        self._pending[number] = command.saved_as, command.name
        return asyncio.create_task(self._complete_save(number, command.name, ended))

    async def _check_name(self, number: int, command: SaveState) -> None:
        """Raise ProblemError if the run may not save a state with this name."""
        kind, name = command.saved_as, command.name
        found = self._saved.find(kind, name)
        is_taken = (kind, name) in self._pending.values()
        # After a restart, the program may repeat the command that saved the state.
        if found is not None and found.step != number and not command.overwrite and not is_taken:
            is_taken = not await self._is_gone(kind, found)
        if is_taken and not command.overwrite:
            by = f"by call {found.step}" if found is not None else "by a call before this one"
            raise _user_error(f"The name {name!r} of {kind} was used {by}. Choose another name.")
        if found is None and len(self._saved) + len(self._pending) >= MAX_SAVES:
            raise _user_error(f"The run has {MAX_SAVES} saved states, the maximum. Continue with another model.")
        if len(to_json(command.user_metadata)) > MAX_METADATA_BYTES:
            raise _user_error(f"user_metadata has more than {MAX_METADATA_BYTES} bytes. Send less.")

    async def _is_gone(self, kind: SaveKind, state: SavedState) -> bool:
        """Return True if the state has expired or was deleted, so that its name is free."""
        if state.expires_at is not None and state.expires_at <= datetime.now(UTC):
            return True
        try:
            return await asyncio.to_thread(self.uploads.store.read_manifest, self._place(kind, state.step)) is None
        except StoreError:
            return False

    def _place(self, kind: SaveKind, number: int) -> S3Uri:
        is_checkpoint = KINDS[kind] is ArtifactKind.checkpoint
        return self._layout.checkpoint(number) if is_checkpoint else self._layout.adapter(number)

    async def _complete_save(self, number: int, name: str, ended: asyncio.Future[bool]) -> bytes:
        """Wait for the upload, and return the result."""
        is_complete, seconds = False, f" within {SAVE_SECONDS:.0f} s"
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                is_complete, seconds = await ended, ""
        except TimeoutError:
            pass
        finally:
            del self._pending[number]
        if is_complete:
            return _result({})
        cause = f" ({self.uploads.problem.message})" if self.uploads.problem is not None else ""
        text = f"The state {name!r} was not stored in S3{seconds}{cause}. Training goes on: save again later."
        return failed(text, ErrorCategory.server)


def failed(message: str, category: ErrorCategory) -> bytes:
    """Return the result of a command that failed."""
    return frame(CommandResult(error=CommandError(message=message[:16_384], category=category)))


def _result(metrics: dict[str, float], logprobs: Sequence[bytes] = (), datums: Sequence[DatumHeader] = ()) -> bytes:
    widths = [_width(datum) for datum in datums]
    lengths = [len(data) // FLOAT_BYTES for data in logprobs]
    return frame(CommandResult(metrics=metrics, lengths=lengths, widths=widths if any(widths) else []), logprobs)


def _width(datum: DatumHeader) -> int:
    """Return the number of targets of each token, or 0 if each has one."""
    shapes = [tensor.shape for tensor in datum.tensors if tensor.name == TARGETS]
    return shapes[0][1] if shapes and len(shapes[0]) > 1 else 0


def _user_error(message: str) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.COMMAND_INVALID, message)
