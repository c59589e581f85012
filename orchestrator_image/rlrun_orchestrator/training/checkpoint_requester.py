"""Requests for checkpoints and adapters, made in the background while rollouts are collected.

A copy contains the step that it names, so the next step must not be sent before the trainer has made the copy. The loop
therefore calls `wait_until_idle` before each step, and this wait is all that a checkpoint costs. The trainer uploads
copies in the background. If too many uploads are pending, the trainer rejects another copy; the run then skips this
copy with a warning and requests the next one when it is due.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import SessionState

from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.training.trainer_client import UploadsBehind
from rlrun_orchestrator.training.trainer_session import TrainerSession

log = logging.getLogger(__name__)

CopyRequest = Callable[[int, dict[str, Any]], Awaitable[SessionState]]


class CheckpointRequester:
    """Requests checkpoints and adapters (copies) from the trainer, for one step at a time."""

    def __init__(self, session: TrainerSession, conditions: StatusConditions) -> None:
        self._session = session
        self._conditions = conditions
        self._task: asyncio.Task[None] | None = None
        self._uploads_failed = False
        """True if uploads had failed according to the trainer's newest response."""

    def start(self, step: int, state: dict[str, Any], *, checkpoint: bool, adapter: bool, last: bool) -> None:
        """Request the copies that are due after `step`. The copies contain `state`. After failed uploads, the trainer's
        state is read after every step.

        If `last` is True, no warning is shown when the copies have to wait, because `TrainerSession.finish` waits for
        them.
        """
        if checkpoint or adapter or self._uploads_failed:
            requests = self._request(step, state, checkpoint, adapter, last)
            self._task = asyncio.create_task(requests, name=f"copies of step {step}")

    async def wait_until_idle(self) -> None:
        """Wait until the trainer has made the copies. Raises SessionLost and FatalError."""
        if self._task is not None:
            try:
                await self._task
            finally:
                self._task = None

    async def close(self) -> None:
        """Cancel the request in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _request(self, step: int, state: dict[str, Any], checkpoint: bool, adapter: bool, last: bool) -> None:
        if self._uploads_failed and not checkpoint and not adapter:
            self._record_uploads(await self._session.state())
        if checkpoint:
            await self._request_copy("checkpoint", self._session.checkpoint, step, state, last)
        if adapter:
            await self._request_copy("adapter", self._session.adapter, step, state, last)

    async def _request_copy(
        self, what: str, request: CopyRequest, step: int, state: dict[str, Any], last: bool
    ) -> None:
        try:
            known = await request(step, state)
        except UploadsBehind as error:
            log.warning("skipping the %s of step %d: %s", what, step, error)
            if not last:
                cause = str(error).rstrip(".")
                message = f"the {what} of step {step} was skipped: {cause}. The next {what} is made when it is due"
                self._conditions.set_condition(
                    what, Problem(reason=f"{what.capitalize()}Skipped", message=message[:1000])
                )
            return
        self._conditions.set_condition(what, None)
        self._record_uploads(known)

    def _record_uploads(self, known: SessionState) -> None:
        self._uploads_failed = known.problem is not None
        self._conditions.set_condition("uploads", known.problem)
        self._conditions.set_condition("shutdown", known.shutdown)
