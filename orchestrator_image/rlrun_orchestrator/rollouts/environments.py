"""Environment servers of the run: readiness, recovery and backoff.

Two kinds of failure are handled differently. If a server does not respond (its pod is being replaced), the run waits
for it until a deadline ends the attempt. If a server responds with errors, it gets groups at growing intervals.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from rlrun.constants import ExitCode, Reason
from rlrun.protocol.environment import ROLLOUT_SHARE, EnvironmentInfo
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import STARTING_SECONDS, Backoff
from rlrun.service.errors import FatalError, RequestError

from rlrun_orchestrator.rollouts.environment_client import EnvironmentClient
from rlrun_orchestrator.rollouts.environment_replicas import EnvironmentReplicas
from rlrun_orchestrator.rollouts.fair_semaphore import FairSemaphore

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadLimits:
    """Maximum load of an environment according to the spec."""

    max_concurrent: int | None = None
    """Maximum number of rollouts in progress. None means no limit."""
    pods: int = 1
    group_rollouts: int = 1
    """Maximum number of rollouts in a group of the environment."""

    def rollouts(self, info: EnvironmentInfo) -> int | None:
        """Return the maximum number of rollouts in progress, or None if it is unlimited.

        If a worker limits its concurrent rollouts, it gets only enough whole groups to stay busy. Other groups wait
        in the orchestrator, so that they start with a newer policy.
        """
        if info.rollouts_at_once is None:
            return self.max_concurrent
        running = self.pods * info.workers * self._per_worker(info.rollouts_at_once)
        return running if self.max_concurrent is None else min(running, self.max_concurrent)

    def rounds(self, info: EnvironmentInfo) -> int:
        """Return how many rollouts a worker may have to run one after another. The deadline of a group is this multiple
        of a rollout's deadline.
        """
        at_once = info.rollouts_at_once
        if at_once is None:
            return 1
        # Groups of training and validation differ in size, so a group may join a worker that is already fully loaded.
        others = self.group_rollouts if self.pods * info.workers > 1 else 0
        return math.ceil((self._per_worker(at_once) + others) / at_once)

    def _per_worker(self, at_once: int) -> int:
        return self.group_rollouts * math.ceil(at_once / self.group_rollouts)


@dataclass
class PooledEnvironment:
    """Environment with its server, or with the servers of all its pods."""

    client: EnvironmentClient | EnvironmentReplicas
    info: EnvironmentInfo | None = None
    backoff: Backoff = field(default_factory=Backoff)
    unreachable_since: float | None = None
    recovery_task: "asyncio.Task[None] | None" = None
    limit: FairSemaphore | None = None
    """Semaphore that limits the rollouts of training and validation in progress, combined. None means no limit."""
    load: LoadLimits = field(default_factory=LoadLimits)

    def update(self, info: EnvironmentInfo) -> None:
        """Apply the state that the server reports."""
        self.info = info
        most = self.load.rollouts(info)
        if most is None:
            return
        if self.limit is None:
            self.limit = FairSemaphore(most)
        self.limit.limit = most

    @property
    def rollout_seconds(self) -> float:
        """Time limit for one rollout in seconds."""
        return self.client.group_deadline * ROLLOUT_SHARE

    @property
    def group_deadline(self) -> float:
        """Time limit for a group in seconds. It includes the time that rollouts wait for other rollouts of the same
        worker.
        """
        return self.client.group_deadline * (self.load.rounds(self.info) if self.info is not None else 1)

    @property
    def pods_pause(self) -> bool:
        """True if failures are counted per pod, so that a failing pod is paused without pausing the others."""
        return isinstance(self.client, EnvironmentReplicas)

    def is_open(self, now: float) -> bool:
        """Return True if neither the environment nor all of its pods are paused after failures."""
        if not self.backoff.open(now):
            return False
        return not isinstance(self.client, EnvironmentReplicas) or self.client.is_open(now)

    def has_slots(self, rollouts: int) -> bool:
        """Return True if this number of rollouts may start now."""
        return self.limit is None or self.limit.has_capacity(rollouts)

    def hold(self, rollouts: int, task: "asyncio.Task[None]") -> None:
        """Count `rollouts` as in progress until the task ends, even if the task is cancelled before it starts. Call
        this only if `has_slots` returns True.
        """
        if (limit := self.limit) is not None:
            limit.take(rollouts)
            task.add_done_callback(lambda _: limit.release(rollouts))

    def wait_for_slots(self, rollouts: int) -> AbstractAsyncContextManager[None]:
        """Wait until this number of rollouts may start, and count them as in progress within the context."""
        return nullcontext() if self.limit is None else self.limit.acquire(rollouts)

    @property
    def name(self) -> str:
        """Environment's name in this run."""
        return self.client.name


class EnvironmentPool:
    """Environments of one use: either the training environments or the evaluation environments."""

    def __init__(
        self,
        clients: Sequence[EnvironmentClient | EnvironmentReplicas],
        report: Callable[[str, Problem | None], None],
        limits: Mapping[str, LoadLimits],
        *,
        poll_interval: float,
        grace: float,
        lost_deadline: float,
        backoff: float,
    ) -> None:
        """`report(component, problem)` receives the reason for each wait. `limits` has the maximum load by environment.
        `grace` is the time in seconds after which a broken environment fails the run, `lost_deadline` the time after
        which an unreachable one ends the attempt, and `backoff` the first pause after a failed group.
        """
        self.environments = {
            client.name: PooledEnvironment(
                client,
                backoff=Backoff(first=backoff, longest=60 * backoff),
                load=limits.get(client.name, LoadLimits()),
            )
            for client in clients
        }
        self.failure: FatalError | None = None
        self._report = report
        self._poll = poll_interval
        self._grace = grace
        self._lost_deadline = lost_deadline

    async def wait_ready(self, deadline: float) -> None:
        """Wait until every server is ready. Raises FatalError."""
        await asyncio.gather(*(self._wait(member, deadline) for member in self.environments.values()))

    def ready_names(self, now: float, rollouts: int) -> list[str]:
        """Return the environments that may get one more group with this number of rollouts now."""
        return [
            m.name
            for m in self.environments.values()
            if m.unreachable_since is None and m.is_open(now) and m.has_slots(rollouts)
        ]

    def mark_unreachable(self, name: str, problem: Problem) -> None:
        """Send no more groups to an environment that did not respond, until it reports that it is ready."""
        member = self.environments[name]
        if member.unreachable_since is None:
            log.warning("environment %s is unreachable: %s", name, problem.message)
            member.unreachable_since = time.monotonic()
            member.recovery_task = asyncio.create_task(self._wait_again(member), name=f"probe {name}")

    async def close(self) -> None:
        """Stop waiting for unreachable servers, and close the clients."""
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
                    member.update(info)
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
