"""The newest policy on its way to the engines, beside the loop."""

import asyncio
import time
from collections.abc import Callable

from rlrun.schema.wire import PolicyRef
from rlrun.service.errors import FatalError, ServiceUnavailable
from rlrun.service.exit import EXIT_RESTART

from rlrun_orchestrator.board import Board
from rlrun_orchestrator.dispatcher import Dispatcher
from rlrun_orchestrator.inference import ReplicaPool
from rlrun_orchestrator.settings import Settings


class Publication:
    """One at a time; groups start with a policy once an engine serves it."""

    def __init__(
        self,
        pool: ReplicaPool,
        dispatcher: Dispatcher,
        board: Board,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy: PolicyRef | None = None
        """The newest that was to be published."""
        self.seconds = 0.0
        """Of the newest publication that is done."""
        self._pool = pool
        self._dispatcher = dispatcher
        self._board = board
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def start(self, policy: PolicyRef) -> None:
        """Starts the publication; an older one that is still under way is overtaken. Raises FatalError for that."""
        self.check()
        if self._task is not None:
            self._task.cancel()
        publication = self.now(policy, self._settings.inference_deadline)
        self._task = asyncio.create_task(publication, name=f"publish {policy.name}")
        self.policy = policy

    async def now(self, policy: PolicyRef, deadline: float) -> None:
        """Returns when an engine serves the policy. Raises FatalError."""
        self.policy, began = policy, self._clock()
        try:
            await self._pool.publish(
                policy,
                deadline=deadline,
                grace=self._settings.publish_grace,
                report=lambda problem: self._board.wait("policy", problem),
            )
        except ServiceUnavailable as error:
            raise FatalError(error.problem, EXIT_RESTART) from error
        self.seconds = self._clock() - began
        self._dispatcher.published(policy)

    def check(self) -> None:
        """Raises what the newest one failed with."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
