"""Publishes the newest policy to the engines in the background."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from rlrun.constants import ExitCode
from rlrun.protocol.policy import PolicyRef
from rlrun.service.errors import FatalError, RequestRejected, ServiceUnavailable

from rlrun_orchestrator.inference.replica_pool import ReplicaPool
from rlrun_orchestrator.rollouts.dispatcher import Dispatcher
from rlrun_orchestrator.status.status_conditions import StatusConditions


@dataclass(frozen=True)
class PublishTimeouts:
    """Time limits for a publication, in seconds."""

    first: float
    """Time limit until an engine serves the first policy of this process."""
    later: float
    """Time limit until an engine serves a later policy."""
    slow_replicas: float
    """Time for the other replicas to load a policy that one replica serves, before it is published without them."""


class PolicyPublisher:
    """Publishes one policy at a time. New groups and turns use a policy once an engine serves it."""

    def __init__(
        self,
        pool: ReplicaPool,
        dispatcher: Dispatcher,
        conditions: StatusConditions,
        timeouts: PublishTimeouts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy: PolicyRef | None = None
        """Newest policy whose publication was started."""
        self.seconds = 0.0
        """Duration of the newest completed publication in seconds."""
        self._pool = pool
        self._dispatcher = dispatcher
        self._conditions = conditions
        self._timeouts = timeouts
        self._clock = clock
        self._task: asyncio.Task[None] | None = None

    def publish_in_background(self, policy: PolicyRef) -> None:
        """Start a publication and cancel an older publication in progress. Raises FatalError if the older publication
        failed.
        """
        self.raise_if_failed()
        if self._task is not None:
            self._task.cancel()
        publication = self._publish(policy, self._timeouts.later)
        self._task = asyncio.create_task(publication, name=f"publish {policy.name}")
        self.policy = policy

    async def publish_and_wait(self, policy: PolicyRef, deadline: float | None = None) -> None:
        """Publish the policy, and return when an engine serves it. `deadline` is in seconds. If it is None, the
        deadline for a first policy applies. Raises FatalError.
        """
        await self._publish(policy, self._timeouts.first if deadline is None else deadline)

    async def _publish(self, policy: PolicyRef, deadline: float) -> None:
        self.policy, began = policy, self._clock()
        try:
            await self._pool.publish(
                policy,
                deadline=deadline,
                grace=self._timeouts.slow_replicas,
                report=lambda problem: self._conditions.set_waiting("policy", problem),
            )
        except ServiceUnavailable as error:
            raise FatalError(error.problem, ExitCode.RESTART) from error
        except RequestRejected as error:
            raise FatalError(error.problem, ExitCode.CONFIGURATION) from error
        self.seconds = self._clock() - began
        self._dispatcher.on_policy_published(policy)

    def raise_if_failed(self) -> None:
        """Raise the exception of the newest publication, if it failed."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def close(self) -> None:
        """Cancel the publication in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
