"""Copies for checkpoints and adapters, asked for beside the loop: rollouts are collected while the trainer copies.

A copy is of the step that it names, so the next step must not be sent before the trainer has made it: the loop asks
`finished` then, and what it waits there is all that a checkpoint costs. Uploads are the trainer's own affair. A trainer
that has too many of them waiting takes no other copy; the run leaves that one out, says so, and tries again when the
next one is due.
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

Ask = Callable[[int, dict[str, Any]], Awaitable[SessionState]]


class CheckpointRequester:
    """At most one step's copies at a time."""

    def __init__(self, session: TrainerSession, conditions: StatusConditions) -> None:
        self._session = session
        self._conditions = conditions
        self._task: asyncio.Task[None] | None = None
        self._troubled = False
        """Whether uploads failed when the trainer was asked last."""

    def start(self, step: int, state: dict[str, Any], *, checkpoint: bool, adapter: bool, last: bool) -> None:
        """Asks for what is due after `step`; `state` goes with it. The last copies are waited for elsewhere
        (`TrainerSession.finish`), so that there is nothing to say when they have to wait. Uploads that failed are asked
        about after every step.
        """
        if checkpoint or adapter or self._troubled:
            asking = self._ask(step, state, checkpoint, adapter, last)
            self._task = asyncio.create_task(asking, name=f"copies of step {step}")

    async def wait_until_idle(self) -> None:
        """Returns when the trainer has the copies. Raises SessionLost and FatalError."""
        if self._task is not None:
            try:
                await self._task
            finally:
                self._task = None

    async def close(self) -> None:
        """Forgets what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _ask(self, step: int, state: dict[str, Any], checkpoint: bool, adapter: bool, last: bool) -> None:
        if self._troubled and not checkpoint and not adapter:
            self._note(await self._session.state())
        if checkpoint:
            await self._copy("checkpoint", self._session.checkpoint, step, state, last)
        if adapter:
            await self._copy("adapter", self._session.adapter, step, state, last)

    async def _copy(self, what: str, ask: Ask, step: int, state: dict[str, Any], last: bool) -> None:
        try:
            known = await ask(step, state)
        except UploadsBehind as error:
            log.warning("the %s of step %d is left out: %s", what, step, error)
            if not last:
                message = f"the {what} of step {step} is left out, and the next one is tried when it is due: {error}"
                self._conditions.set_condition(
                    what, Problem(reason=f"{what.capitalize()}Skipped", message=message[:1000])
                )
            return
        self._conditions.set_condition(what, None)
        self._note(known)

    def _note(self, known: SessionState) -> None:
        self._troubled = known.problem is not None
        self._conditions.set_condition("uploads", known.problem)
