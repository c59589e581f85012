"""The run's environment servers: readiness, recovery and backoff.

Two kinds of failure are handled differently. A server that does not respond is waited for (its pod is being replaced)
until a deadline ends the run. A server that responds with errors gets groups less and less often.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.environment import EnvironmentInfo
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import STARTING_SECONDS, Backoff
from rlrun.service.errors import FatalError, RequestError

from rlrun_orchestrator.rollouts.environment_client import EnvironmentClient
from rlrun_orchestrator.rollouts.environment_replicas import EnvironmentReplicas
from rlrun_orchestrator.rollouts.fair_semaphore import FairSemaphore

log = logging.getLogger(__name__)


@dataclass
class PooledEnvironment:
    """One environment: its server, or those of all its pods."""

    client: EnvironmentClient | EnvironmentReplicas
    info: EnvironmentInfo | None = None
    backoff: Backoff = field(default_factory=Backoff)
    unreachable_since: float | None = None
    recovery_task: "asyncio.Task[None] | None" = None
    limit: FairSemaphore | None = None
    """Rollouts in progress, of training and validation together. None: not limited."""

    def has_room(self, rollouts: int) -> bool:
        """Return whether that many rollouts may start now."""
        return self.limit is None or self.limit.has_room(rollouts)

    def hold(self, rollouts: int, task: "asyncio.Task[None]") -> None:
        """Count rollouts that have room as in progress until the end of the task, also if it is cancelled before it
        begins.
        """
        if (limit := self.limit) is not None:
            limit.take(rollouts)
            task.add_done_callback(lambda _: limit.release(rollouts))

    def wait_for_room(self, rollouts: int) -> AbstractAsyncContextManager[None]:
        """Wait until that many rollouts may start, and count them as in progress meanwhile."""
        return nullcontext() if self.limit is None else self.limit.acquire(rollouts)

    @property
    def name(self) -> str:
        """The environment's name in this run."""
        return self.client.name


class EnvironmentPool:
    """All servers of one use (training or evaluation)."""

    def __init__(
        self,
        clients: Sequence[EnvironmentClient | EnvironmentReplicas],
        report: Callable[[str, Problem | None], None],
        limits: Mapping[str, int],
        *,
        poll_interval: float,
        grace: float,
        lost_deadline: float,
        backoff: float,
    ) -> None:
        """`report(component, problem)` receives what is waited for. `limits`: the greatest numbers of rollouts in
        progress, by environment, of those that have one. `grace`: seconds after which a broken environment
        fails the run. `backoff`: seconds of the first pause after a failed group.
        """
        self.environments = {
            client.name: PooledEnvironment(
                client,
                backoff=Backoff(first=backoff, longest=60 * backoff),
                limit=FairSemaphore(limits[client.name]) if client.name in limits else None,
            )
            for client in clients
        }
        self.failure: FatalError | None = None
        self._report = report
        self._poll = poll_interval
        self._grace = grace
        self._lost_deadline = lost_deadline

    async def wait_ready(self, deadline: float) -> None:
        """Return when every server is ready. Raises FatalError."""
        await asyncio.gather(*(self._wait(member, deadline) for member in self.environments.values()))

    def ready_names(self, now: float, rollouts: int) -> list[str]:
        """Return the environments that may get another group with this number of rollouts now."""
        return [
            m.name
            for m in self.environments.values()
            if m.unreachable_since is None and m.backoff.open(now) and m.has_room(rollouts)
        ]

    def mark_unreachable(self, name: str, problem: Problem) -> None:
        """Send no more groups to an environment that did not respond, until it reports that it is ready."""
        member = self.environments[name]
        if member.unreachable_since is None:
            log.warning("environment %s is unreachable: %s", name, problem.message)
            member.unreachable_since = time.monotonic()
            member.recovery_task = asyncio.create_task(self._wait_again(member), name=f"probe {name}")

    async def close(self) -> None:
        """Stop waiting for unreachable servers."""
        probes = [member.recovery_task for member in self.environments.values() if member.recovery_task is not None]
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await asyncio.gather(*(member.client.close() for member in self.environments.values()))

    async def _wait_again(self, member: PooledEnvironment) -> None:
        try:
            await self._wait(member, self._lost_deadline)
        except FatalError as failure:
            self.failure = failure
            return
        log.info("environment %s is reachable again", member.name)
        member.unreachable_since = None

    async def _wait(self, member: PooledEnvironment, deadline: float) -> None:
        component = f"environment {member.name}"
        start = time.monotonic()
        broken_since: float | None = None
        while True:
            now = time.monotonic()
            try:
                info = await member.client.info()
                if info.ready:
                    member.info = info
                    self._report(component, None)
                    return
                problem = info.problem
            except RequestError as error:
                problem = None
                detail = error.problem.message
            else:
                detail = "it is still loading"
            if problem is None:
                broken_since = None
            elif broken_since is None:
                broken_since = now
            waiting = problem or Problem(
                reason=Reason.WAITING_FOR_ENVIRONMENT,
                message=f"environment {member.name} is not ready: {detail}; check its pod",
            )
            self._report(component, waiting)
            if broken_since is not None and problem is not None and now - broken_since >= self._grace:
                raise FatalError(problem, ExitCode.CONFIGURATION)
            if now - start >= deadline:
                raise FatalError(waiting, ExitCode.RESTART)
            await asyncio.sleep(min(STARTING_SECONDS, self._poll))
