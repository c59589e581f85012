"""Session of a run whose training loop is a client's program: it executes the program's commands.

Artifacts use the number of a command as their step. A named state or a policy has the number of the command that saved
it; any other checkpoint has the number of the newest command. A failed command counts as the newest command, but leaves
the weights unchanged.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from pydantic_core import to_json
from rlrun.constants import LATER, OUT_OF_MEMORY, UNPROCESSABLE, Reason
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
from rlrun.protocol.client_run import MAX_METADATA_BYTES, MAX_SAVES, ModelId, SavedState, SavedStateUri, SaveKind
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest, weights_digest
from rlrun.storage.store import StoreError
from typing_extensions import override

from rlrun_trainer.artifacts.artifact_files import Files, discard
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.artifacts.policy_publisher import Publisher
from rlrun_trainer.artifacts.saved_states import SavedStatesObject
from rlrun_trainer.artifacts.upload_queue import SavedName
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.sessions.received_command import ReceivedCommand
from rlrun_trainer.sessions.session import OpenedSlot, Session

log = logging.getLogger(__name__)

SAVE_SECONDS = 300.0
"""Time limit in seconds for a save's wait for capacity in the upload queue, and again for its upload."""
MAX_PUBLICATIONS = 2
"""Maximum number of a run's policies in memory that are being uploaded or wait for their upload."""
UPDATES = "updates"
"""Entry of a checkpoint's state: the number of optimizer steps of the run."""
FLOAT_BYTES = 4
TARGETS = "target_tokens"
OF_USERS = frozenset({UNPROCESSABLE, OUT_OF_MEMORY})
"""Statuses of errors that the client's program can correct."""
KINDS = {SaveKind.weights: ArtifactKind.checkpoint, SaveKind.sampler_weights: ArtifactKind.adapter}

Outcome = bytes | asyncio.Task[bytes]
"""Result of a command as bytes, or the task of an upload that returns the result."""


def saved_path(spec: SessionSpec, name: str) -> str:
    """Return the path that loads a named checkpoint, or the name if rlrun-tinker did not create the run."""
    try:
        return str(SavedStateUri(ModelId.of_run(spec.namespace, spec.run_name), SaveKind.weights, name))
    except ValueError:
        return name


class ClientSession(Session):
    """Session of a client's program, created by `open_client_session`. It publishes policies only on command."""

    def __init__(self, slot: OpenedSlot, saved: SavedStatesObject, publisher: Publisher) -> None:
        super().__init__(slot)
        state = slot.start.orchestrator_state if slot.start.saved_as is not None else None
        self.updates: int = (state or {}).get(UPDATES, 0)
        """Number of optimizer steps of this run."""
        self._saved = saved
        self._publisher = publisher
        self._publications: set[asyncio.Task[bytes]] = set()
        self._is_updated = False
        """True if the newest command was an optimizer step."""
        self._pending: dict[int, tuple[SaveKind, str]] = {}
        """Names of states whose uploads are not complete, by the number of the command that saves them."""

    @property
    def newest_saved(self) -> str:
        """Sentence without a period for messages: the newest named checkpoint, and how to continue from it."""
        if (newest := self._saved.newest) is None:
            return "No state was saved: start again with a new model"
        name, state = newest
        path = saved_path(self.spec, name)
        return f"The newest saved state is {path!r} from call {state.step}: create a new model from a saved state"

    @property
    def problem(self) -> Problem | None:
        """Reason why artifacts or policies do not reach S3, or None while they do."""
        # A publication that has failed is not tried again.
        return self.uploads.problem or (self._publisher.problem if self._publications else None)

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
        """Execute the command with the next number, and return its result or its error. Raises ProblemError
        (`TrainerStopping`) if the session executes no more commands.
        """
        command = received.command
        failure: ProblemError | None = None
        if isinstance(command, SaveState):
            # Outside of the turn, so that a last checkpoint need not wait.
            try:
                await self._wait_for_capacity(command)
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

    @override
    async def close(self) -> None:
        await super().close()
        for publication in self._publications:
            publication.cancel()
        await asyncio.gather(*self._publications, return_exceptions=True)
        await self._publisher.close()

    async def save_due_copy(self) -> None:
        """Save a recovery copy after an optimizer step, if one is due."""
        if self._is_updated and self._needs_copy:
            await self._save_copy(self._step)

    async def _execute(self, number: int, command: Command | CommandError, buffers: memoryview) -> Outcome:
        if isinstance(command, CommandError):
            return frame(CommandResult(error=command))
        if isinstance(command, SaveState):
            if command.name is None:
                return await self._publish(number, command)
            return await self._save_state(number, command, command.name)
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

    async def _wait_for_capacity(self, command: SaveState) -> None:
        """Wait until another snapshot may be uploaded. Raises ProblemError (`UploadsBehind`) after SAVE_SECONDS, or
        immediately if uploads are failing.
        """
        if command.name is not None:
            await self.uploads.wait_for_capacity(KINDS[command.saved_as], SAVE_SECONDS)
            return
        if len(self._publications) >= MAX_PUBLICATIONS and self._publisher.problem is None:
            await asyncio.wait(self._publications, timeout=SAVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if len(self._publications) >= MAX_PUBLICATIONS:
            text = f"{MAX_PUBLICATIONS} samplers of this model are still being stored{self._cause}. Save again later."
            raise ProblemError.of(LATER, Reason.UPLOADS_BEHIND, text)

    async def _publish(self, number: int, command: SaveState) -> Outcome:
        """Take a snapshot of the policy and return its publication."""
        if command.saved_as is SaveKind.weights:
            raise _user_error("A name is required to save weights for training; only weights for sampling need none.")
        files = await self._compute.run(self.name, self._backend.policy_files, self.name)
        publication = asyncio.create_task(self._complete_publication(number, files), name=f"policy {self.name}")
        self._publications.add(publication)
        publication.add_done_callback(self._publications.discard)
        return publication

    async def _complete_publication(self, number: int, files: Files) -> bytes:
        """Wait until the policy is in S3, and return the result."""
        cause = f" within {SAVE_SECONDS:.0f} s"
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                return _result({}, policy=await self._publisher.store(number, files))
        except TimeoutError:
            cause += self._cause
        except StoreError as error:
            cause = f" ({error.problem.message})"
        except Exception as error:
            log.exception("Session %s: policy %d was not published", self.name, number)
            cause = f" ({type(error).__name__}: {error})"
        finally:
            discard(files)
        return failed(
            f"The sampler was not stored in S3{cause}. Training continues: save again later.", ErrorCategory.server
        )

    @property
    def _cause(self) -> str:
        return f" ({self.problem.message})" if self.problem is not None else ""

    async def _save_state(self, number: int, command: SaveState, name: str) -> Outcome:
        """Take a snapshot and return its upload."""
        await self._check_name(number, command, name)
        now = datetime.now(UTC)
        expires = now + timedelta(seconds=command.ttl_seconds) if command.ttl_seconds is not None else None
        state = SavedState(step=number, time=now, expires_at=expires)
        ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def record(manifest: Manifest) -> None:
            # The artifact of a repeated command is the first one, which may have other weights.
            if kind is ArtifactKind.adapter:
                state.digest = weights_digest(manifest.files, self.spec.kind)
            if not ended.cancelled():
                self._saved.record(command.saved_as, name, state)

        def on_end(is_complete: bool) -> None:
            if not ended.done():
                ended.set_result(is_complete)

        details = {
            "name": name,
            "expiresAt": expires.isoformat() if expires is not None else None,
            "userMetadata": command.user_metadata or None,
        }
        named = SavedName({key: value for key, value in details.items() if value is not None}, record, on_end)
        kind = KINDS[command.saved_as]
        progress = self._progress_at(number) if kind is ArtifactKind.checkpoint else None
        place = self._place(command.saved_as, number)
        await self._save(kind, place, progress, step=number, named=named)
        self._pending[number] = command.saved_as, name
        return asyncio.create_task(self._complete_save(name, state, place, ended))

    async def _check_name(self, number: int, command: SaveState, name: str) -> None:
        """Raise ProblemError (CommandInvalid) if the name is in use, or the run has too many states, or the command too
        much metadata.
        """
        kind = command.saved_as
        found = self._saved.find(kind, name)
        is_taken = (kind, name) in self._pending.values()
        # After a restart, the program may repeat the command that saved the state.
        if found is not None and found.step != number and not command.overwrite and not is_taken:
            is_taken = not await self._is_gone(kind, found)
        if is_taken and not command.overwrite:
            by = f"by call {found.step}" if found is not None else "by an earlier call"
            raise _user_error(f"The name {name!r} was already used for {kind} {by}. Choose another name.")
        if found is None and len(self._saved) + len(self._pending) >= MAX_SAVES:
            raise _user_error(f"The run has {MAX_SAVES} saved states, which is the maximum. Continue with a new model.")
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

    async def _complete_save(self, name: str, state: SavedState, place: S3Uri, ended: asyncio.Future[bool]) -> bytes:
        """Wait for the upload, and return the result."""
        is_complete, seconds = False, f" within {SAVE_SECONDS:.0f} s"
        try:
            async with asyncio.timeout(SAVE_SECONDS):
                is_complete, seconds = await ended, ""
        except TimeoutError:
            pass
        finally:
            del self._pending[state.step]
        if is_complete:
            digest = state.digest
            return _result({}, policy=PolicyRef(version=state.step, digest=digest, uri=str(place)) if digest else None)
        cause = f" ({self.uploads.problem.message})" if self.uploads.problem is not None else ""
        text = f"The state {name!r} was not stored in S3{seconds}{cause}. Training continues: save again later."
        return failed(text, ErrorCategory.server)


def failed(message: str, category: ErrorCategory) -> bytes:
    """Return the result of a command that failed."""
    return frame(CommandResult(error=CommandError(message=message[:16_384], category=category)))


def _result(
    metrics: dict[str, float],
    logprobs: Sequence[bytes] = (),
    datums: Sequence[DatumHeader] = (),
    policy: PolicyRef | None = None,
) -> bytes:
    widths = [_width(datum) for datum in datums]
    lengths = [len(data) // FLOAT_BYTES for data in logprobs]
    header = CommandResult(metrics=metrics, lengths=lengths, widths=widths if any(widths) else [], policy=policy)
    return frame(header, logprobs)


def _width(datum: DatumHeader) -> int:
    """Return the number of targets of each token, or 0 if each has one."""
    shapes = [tensor.shape for tensor in datum.tensors if tensor.name == TARGETS]
    return shapes[0][1] if shapes and len(shapes[0]) > 1 else 0


def _user_error(message: str) -> ProblemError:
    return ProblemError.of(UNPROCESSABLE, Reason.COMMAND_INVALID, message)
