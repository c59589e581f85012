"""The run's session on the trainer, with retries and recovery.

Requests to an unreachable trainer are retried until a deadline. A rejection is final, except one with a 5xx status,
which is retried until there are SERVER_ERRORS of them. If the trainer has lost the session (its pod was replaced),
requests raise `SessionLost`. `open` then opens the session again from the newest complete checkpoint in S3, or from a
newer recovery copy that the trainer finds, and the caller moves to that step.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from rlrun.constants import OUT_OF_MEMORY, ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.session_specs import session_spec
from rlrun.protocol.train_batch import BatchBody, TrainBatch
from rlrun.protocol.trainer import SessionSpec, SessionState, StepResult
from rlrun.service.backoff import STARTING_SECONDS, Backoff
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable
from rlrun.storage.layout import RunLayout, S3Uri, step_of
from rlrun.storage.store import Corrupt, Store, StoreError

from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.training.trainer_client import SessionLost, TrainerClient, UploadsBehind

log = logging.getLogger(__name__)

T = TypeVar("T")
SERVER_ERRORS = 3
"""Number of rejections of the same request with a 5xx status that end the attempt."""
NO_BATCH = BatchBody(TrainBatch([]))
"""Batch for repeating the request of a completed step."""
FINAL_REPEAT_SECONDS = 30.0
"""Pause in seconds after a failed upload of the last artifacts before they are requested again."""


@dataclass(frozen=True)
class TrainerTimeouts:
    """Time limits for requests to the trainer, in seconds."""

    unreachable: float
    """Time after which an unreachable trainer ends the attempt."""
    request: float
    """Time limit for one request that opens the session, and for the search for its checkpoint in S3."""
    step: float
    """Time limit for one optimizer step."""
    finish: float
    """Time limit until the last checkpoint and adapter are complete in S3."""
    poll_interval: float
    """Pause between two requests while waiting for the trainer."""


def checked_session_spec(run: ResolvedRun, max_steps: int, resume_from: S3Uri | None) -> SessionSpec:
    """Return the specification of the run's session.

    Raises FatalError if the session would start from the base model although the run has a `checkpointId`. The operator
    omits an unusable start checkpoint only if the run has a checkpoint of its own to resume from.
    """
    if run.spec.checkpoint_id is not None and resume_from is None and run.warm_start_from is None:
        message = (
            f"`spec.checkpointId`: checkpoint {run.spec.checkpoint_id} could not be used when this attempt began, and "
            f"{run.artifacts.run_uri}/checkpoints has no usable checkpoint of this run. The run does not fall back to "
            "the base model. Start a new run from another checkpoint."
        )
        raise FatalError(Problem(reason=Reason.CHECKPOINT_NOT_FOUND, message=message), ExitCode.CONFIGURATION)
    return session_spec(run, max_steps, str(resume_from) if resume_from else None)


def checkpoint_steps(store: Store, layout: RunLayout) -> list[int]:
    """Return the steps of the run's checkpoints, newest first, including incomplete checkpoints. Raises StoreError."""
    steps = []
    for folder in store.list_folders(layout.checkpoints):
        with contextlib.suppress(ValueError):
            steps.append(step_of(folder))
    return sorted(steps, reverse=True)


def is_usable(store: Store, checkpoint: S3Uri) -> bool:
    """Return True if the checkpoint is complete. Costs two requests. Raises StoreError."""
    try:
        return store.is_complete(checkpoint)
    except Corrupt as error:
        log.warning("%s", error)
        return False


class TrainerSession:
    """Session of the run. Requests raise FatalError if the trainer stays unreachable or rejects them, and SessionLost
    if the trainer has lost the session.
    """

    def __init__(
        self,
        client: TrainerClient,
        run: ResolvedRun,
        schedule: RunSchedule,
        store: Store,
        layout: RunLayout,
        conditions: StatusConditions,
        timeouts: TrainerTimeouts,
    ) -> None:
        self._client = client
        self._run = run
        self._store = store
        self._layout = layout
        self._conditions = conditions
        self._timeouts = timeouts
        self._schedule = schedule
        self._source: S3Uri | None = None
        """Checkpoint with which the session was last opened."""
        self._known_max_steps = 0
        """Number of steps with which the trainer's session was last opened."""

    @property
    def lags_behind_schedule(self) -> bool:
        """True if the trainer does not know the schedule's number of steps yet (see `extend`)."""
        return self._known_max_steps < self._schedule.max_steps

    async def open(self, deadline: float | None = None) -> SessionState:
        """Return the open session, or open it from the newest complete checkpoint that the trainer accepts. `deadline`
        is in seconds. If it is None, the deadline for an unreachable trainer applies.
        """
        deadline = self._timeouts.unreachable if deadline is None else deadline
        limit = min(deadline, self._timeouts.request)
        steps = iter(await self._read(partial(checkpoint_steps, self._store, self._layout), limit))
        while True:
            checkpoint = await self._next_checkpoint(steps, limit)
            spec = checked_session_spec(self._run, self._schedule.max_steps, checkpoint)
            source = checkpoint or self._run.warm_start_from or "the base model"
            log.info("opening the trainer session; if it does not exist yet, it will start from %s", source)
            try:
                state = await self._wait_until_published(await self._open(spec, deadline), deadline)
                self._source = checkpoint
                self._add_warnings(state.warnings)
                return state
            except SessionLost as error:
                problem = Problem(
                    reason=Reason.SESSION_CONFLICT, message=f"the trainer did not open the session: {error}"
                )
                raise FatalError(problem, ExitCode.RESTART) from error
            except FatalError as failure:
                if checkpoint is None or "Corrupt" not in failure.problem.reason:
                    raise
                log.warning("checkpoint %s cannot be used: %s", checkpoint, failure)
                self._conditions.add_warning(failure.problem)

    async def _open(self, spec: SessionSpec, deadline: float) -> SessionState:
        async def put() -> SessionState:
            state = await self._client.open(spec, min(deadline, self._timeouts.request))
            self._known_max_steps = spec.max_steps
            return state

        try:
            return await self._with_retries(put, deadline)
        except FatalError as failure:
            if failure.problem.reason != Reason.SESSION_CONFLICT:
                raise
        # The run's spec has changed since the session was opened (maxSteps was increased).
        log.warning("the trainer's session has a different spec; reopening it from the newest checkpoint")
        with contextlib.suppress(SessionLost):
            await self._with_retries(self._client.delete, deadline)
        return await self._with_retries(put, deadline)

    async def _wait_until_published(self, state: SessionState, deadline: float) -> SessionState:
        """Return the state once the policy of its step is published. While the trainer still works on a step that an
        earlier process requested, it reports the previous policy, which must not sample rollouts for the next step.
        """
        if state.policy.version >= state.step:
            return state
        result = await self._step(state.step - 1, NO_BATCH, min(deadline, self._timeouts.request), deadline)
        return state.model_copy(update={"policy": result.policy, "last": result})

    async def extend(self) -> SessionState:
        """Send the schedule's number of steps to the open session. Raises SessionLost if the trainer has no session, or
        a session that cannot be changed.
        """
        deadline = self._timeouts.unreachable
        known = await self.state()
        # If the trainer is replaced now, this request opens the session again from the newest checkpoint. A session
        # that started from a recovery copy does not know the checkpoints before the copy.
        checkpoint = self._layout.checkpoint(max(known.checkpoints)) if known.checkpoints else self._source
        spec = checked_session_spec(self._run, self._schedule.max_steps, checkpoint)
        try:
            limit = min(deadline, self._timeouts.request)
            state = await self._with_retries(lambda: self._client.open(spec, limit), deadline)
        except FatalError as failure:
            if failure.problem.reason != Reason.SESSION_CONFLICT:
                raise
            raise SessionLost(str(failure)) from failure
        self._known_max_steps = spec.max_steps
        return state

    async def state(self) -> SessionState:
        """Return the trainer's state of the session."""
        return await self._with_retries(self._client.state, self._timeouts.unreachable)

    async def step(self, step: int, batch: BatchBody) -> StepResult:
        """Take optimizer step `step`. A repeated request does not repeat the step.

        Raises FatalError if the result belongs to a different step, because continuing would repeat or skip steps
        indefinitely.
        """
        return await self._step(step, batch, self._timeouts.step, self._timeouts.unreachable)

    async def _step(self, step: int, batch: BatchBody, limit: float, deadline: float) -> StepResult:
        result = await self._with_retries(lambda: self._client.step(step, batch, limit), deadline)
        if result.step != step + 1:
            message = (
                f"the trainer returned a result of step {result.step}, but after step {step} the result of step "
                f"{step + 1} was expected, so the result is not used. If restarts do not help, check that trainer and "
                "orchestrator have the same version"
            )
            raise FatalError(Problem(reason=Reason.STEP_RESULT_INVALID, message=message), ExitCode.RESTART)
        self._add_warnings(result.warnings)
        return result

    def _add_warnings(self, warnings: Sequence[Problem]) -> None:
        for warning in warnings:
            self._conditions.add_warning(warning)

    async def checkpoint(self, step: int, state: dict[str, Any]) -> SessionState:
        """Start a checkpoint in the background. Returns once the trainer has copied the state. Raises UploadsBehind."""
        return await self._with_retries(lambda: self._client.checkpoint(step, state), self._timeouts.unreachable)

    async def adapter(self, step: int, state: dict[str, Any]) -> SessionState:
        """Start the upload of an adapter in the background. Raises UploadsBehind."""
        return await self._with_retries(lambda: self._client.adapter(step, state), self._timeouts.unreachable)

    async def finish(self, step: int, state: dict[str, Any]) -> None:
        """Wait until the checkpoint and the adapter of the last step are complete in S3. Requests a missing one again.
        Raises FatalError after the time limit.
        """
        try:
            await self._complete(step, state)
        finally:
            self._conditions.set_waiting("artifacts", None)

    async def _complete(self, step: int, state: dict[str, Any]) -> None:
        start = time.monotonic()
        requested_at = float("-inf")
        known = await self.state()
        while step not in known.checkpoints or step not in known.adapters:
            now = time.monotonic()
            problem = known.problem or Problem(
                reason=Reason.WAITING_FOR_ARTIFACTS,
                message=f"the checkpoint and adapter of step {step} are being uploaded",
            )
            self._conditions.set_waiting("artifacts", problem)
            if now - start > self._timeouts.finish:
                raise FatalError(problem, ExitCode.RESTART)
            if known.uploads_pending == 0 and now - requested_at >= FINAL_REPEAT_SECONDS:
                requested_at = now
                with contextlib.suppress(UploadsBehind):
                    if step not in known.checkpoints:
                        known = await self.checkpoint(step, state)
                    if step not in known.adapters:
                        known = await self.adapter(step, state)
                    continue
            await asyncio.sleep(min(1.0, self._timeouts.poll_interval))
            known = await self.state()

    async def _next_checkpoint(self, steps: Iterator[int], deadline: float) -> S3Uri | None:
        """Return the first complete checkpoint among the remaining `steps`, or None if there is none. Checks one
        checkpoint at a time, because a run may have thousands and usually needs only the first.
        """
        start = time.monotonic()
        for incomplete, step in enumerate(steps):
            if incomplete and time.monotonic() - start > deadline:
                message = (
                    f"no complete checkpoint was found within {deadline:g} s. Incomplete newest folders below "
                    f"{self._layout.checkpoints}: {incomplete}. Restore their files, or delete them"
                )
                raise FatalError(Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=message), ExitCode.RESTART)
            checkpoint = self._layout.checkpoint(step)
            if await self._read(partial(is_usable, self._store, checkpoint), deadline):
                return checkpoint
        return None

    async def _read(self, call: Callable[[], T], deadline: float) -> T:
        """Return the result of `call`, which reads S3. Repeats it for at most `deadline` seconds."""
        start = time.monotonic()
        while True:
            try:
                result = await asyncio.to_thread(call)
                self._conditions.set_waiting("s3", None)
                return result
            except StoreError as error:
                self._conditions.set_waiting("s3", error.problem)
                if time.monotonic() - start > deadline:
                    raise FatalError(error.problem, ExitCode.RESTART) from error
                await asyncio.sleep(self._timeouts.poll_interval)

    async def _with_retries(self, call: Callable[[], Awaitable[T]], deadline: float) -> T:
        """Repeat `call` while the trainer is unreachable or rejects it with a 5xx status, for at most `deadline`
        seconds after the first failure. SERVER_ERRORS rejections end the retries earlier.
        """
        first_failure: float | None = None
        backoff = Backoff(first=min(0.5, self._timeouts.poll_interval), longest=5.0)
        server_errors = 0
        while True:
            unreachable = False
            try:
                answer = await call()
                self._conditions.set_waiting("trainer", None)
                return answer
            except ServiceUnavailable as error:
                unreachable = not error.status
                problem = _unreachable(error.problem) if unreachable else error.problem
                failure = FatalError(problem, ExitCode.RESTART)
            except RequestRejected as error:
                # In a pool, what fits depends on the other runs, and the trainer evicts a run that does not fit.
                fits_later = error.status == OUT_OF_MEMORY and self._run.trains_in_pool
                server_errors += not fits_later
                if (error.status or 0) < 500:
                    # The next attempt of an evicted run has a trainer of its own.
                    is_evicted = error.problem.reason == Reason.POOL_EVICTED
                    code = ExitCode.RESTART if is_evicted else ExitCode.CONFIGURATION
                    raise FatalError(error.problem, code) from error
                problem = error.problem
                is_final = error.status == OUT_OF_MEMORY and not fits_later
                failure = FatalError(problem, ExitCode.CONFIGURATION if is_final else ExitCode.RESTART)
                if server_errors >= SERVER_ERRORS:
                    raise failure from error
            except (SessionLost, UploadsBehind):
                self._conditions.set_waiting("trainer", None)
                raise
            now = time.monotonic()
            self._conditions.set_waiting("trainer", problem)
            first_failure = now if first_failure is None else first_failure
            if now - first_failure > deadline:
                raise failure
            backoff.record_failure(now)
            await asyncio.sleep(min(backoff.pause, STARTING_SECONDS) if unreachable else backoff.pause)


def _unreachable(cause: Problem) -> Problem:
    return Problem(
        reason=Reason.WAITING_FOR_TRAINER,
        message=f"the trainer is unreachable ({cause.message}); check the run's trainer pod and its events",
    )
