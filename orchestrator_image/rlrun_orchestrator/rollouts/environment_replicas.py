"""Client for an environment with several pods, used like a client for one pod.

The pods are the A records of a headless Service, which includes unready ones. Each pod's state is polled periodically,
so that new pods, restarted pods and unresponsive pods are treated equally. If a pod is lost, the requests to
it raise ServiceUnavailable, and the requests to other pods continue.

A group goes to the ready pod with the fewest groups in progress and recent failures. Failures are counted because a pod
that fails immediately always has the fewest groups and would otherwise get most of them. Each pod is paused on its own
after failures; the environment is paused while all of its ready pods are paused.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

from rlrun.constants import Reason
from rlrun.protocol.environment import Demonstration, DemonstrationRequest, EnvironmentInfo, GroupRequest, GroupResult
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.errors import RequestError, ServiceUnavailable

from rlrun_orchestrator.inference.replica_pool import DNS_MISSES_BEFORE_REMOVAL, host_addresses
from rlrun_orchestrator.rollouts.environment_client import EnvironmentClient

log = logging.getLogger(__name__)

T = TypeVar("T")

FAILURE_PENALTY = 4
"""When pods are compared, each failure since the last success counts as this number of groups in progress."""

Addresses = Callable[[str], Awaitable[Iterable[str]]]
"""Function that maps the URL of a Service to the URLs of its pods. Raises OSError if there are none."""


def is_failed(result: GroupResult) -> bool:
    """Return True if the environment reports an error for each rollout of a group."""
    return bool(result.rollouts) and all(rollout.error is not None for rollout in result.rollouts)


async def pod_urls(url: str) -> list[str]:
    """Return the URLs of a headless Service's pods. Raises OSError if DNS lists none."""
    parts = urlsplit(url)
    port = parts.port or 80
    return [f"{parts.scheme}://{host}:{port}" for host in await host_addresses(parts.hostname or "", port)]


@dataclass(eq=False)
class EnvironmentReplica:
    """One pod of an environment."""

    client: EnvironmentClient
    info: EnvironmentInfo | None = None
    """State of the pod, or None while it does not respond."""
    problem: Problem | None = None
    """Error of the last request to which the pod did not respond."""
    dns_misses: int = 0
    has_left: bool = False
    """True if DNS lists only other pods, so that this pod's address may now belong to another process."""
    calls: "set[asyncio.Task[Any]]" = field(default_factory=set)
    """Requests in progress, which are cancelled when the pod is removed."""
    backoff: Backoff = field(default_factory=Backoff)
    """Pause after groups that failed."""
    probe: "asyncio.Task[None] | None" = None
    """Request for the pod's state that is in progress."""

    @property
    def load(self) -> int:
        """Requests in progress, plus a penalty for recent failures. An idle pod has no penalty, so that it gets a group
        after its pause.
        """
        return len(self.calls) + (FAILURE_PENALTY * self.backoff.failures if self.calls else 0)

    @property
    def is_ready(self) -> bool:
        """True if groups may be sent to the pod."""
        return self.info is not None and self.info.ready and not self.has_left


class EnvironmentReplicas:
    """Client for all pods of one environment, with the methods and errors of `EnvironmentClient`."""

    def __init__(
        self,
        name: str,
        group_deadline: float,
        addresses: Callable[[], Awaitable[Iterable[str]]],
        connect: Callable[[str], EnvironmentClient],
        *,
        poll_interval: float,
        backoff: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`addresses` finds the URLs of the pods, and `connect` returns the client for a pod. `backoff` is the first
        pause in seconds of a pod after a failed group.
        """
        self.name = name
        self.group_deadline = group_deadline
        self.replicas: dict[str, EnvironmentReplica] = {}
        self._addresses = addresses
        self._connect = connect
        self._poll = poll_interval
        self._watcher: asyncio.Task[None] | None = None
        self._backoff = backoff
        self._clock = clock

    def is_open(self, now: float) -> bool:
        """Return True if some ready pod is not paused, or if no pod is ready, so that the next request reports the
        reason.
        """
        ready = [replica for replica in self.replicas.values() if replica.is_ready]
        return not ready or any(replica.backoff.open(now) for replica in ready)

    @property
    def versions(self) -> list[str | None]:
        """Package versions that the pods report."""
        return [replica.info.version for replica in self.replicas.values() if replica.info is not None]

    async def info(self) -> EnvironmentInfo:
        """Return the state of a ready pod, or of an unready one if none is ready. Raises ServiceUnavailable if no pod
        responds.
        """
        if self._watcher is None:
            await self._update()
            await self._wait_for_ready_pod()
            self._watcher = asyncio.create_task(self._watch(), name=f"replicas of {self.name}")
        states = [replica.info for replica in self.replicas.values() if replica.info is not None]
        # A package problem is more informative than a pod that is still loading.
        best = max(states, key=lambda info: (info.ready, info.problem is not None), default=None)
        if best is None:
            raise ServiceUnavailable(self._problem())
        return best

    async def roll_out(self, group: GroupRequest) -> GroupResult:
        """Return the scored rollouts of one example from the pod with the lowest load."""
        started, replica = self._clock(), self._choose()
        try:
            result = await self._send(replica, lambda client: client.roll_out(group))
        except ServiceUnavailable:
            raise
        except RequestError:
            replica.backoff.record_failure(self._clock(), started)
            raise
        if is_failed(result):
            replica.backoff.record_failure(self._clock(), started)
        else:
            replica.backoff.record_success()
        return result

    async def demonstration(self, request_body: DemonstrationRequest) -> Demonstration:
        """Return an example's reference answer from the dataset. Raises RequestRejected if there is none."""
        return await self._send(self._choose(), lambda client: client.demonstration(request_body))

    async def close(self) -> None:
        """Stop the discovery of pods."""
        tasks = [self._watcher, *(replica.probe for replica in self.replicas.values())]
        running = [task for task in tasks if task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _choose(self) -> EnvironmentReplica:
        """Return the pod for the next request. Raises ServiceUnavailable if no pod is ready."""
        ready = [replica for replica in self.replicas.values() if replica.is_ready]
        if not ready:
            raise ServiceUnavailable(self._problem())
        now = self._clock()
        # Use a paused pod if all are paused, because evaluations do not wait for pauses.
        return min([each for each in ready if each.backoff.open(now)] or ready, key=lambda each: each.load)

    async def _send(
        self, replica: EnvironmentReplica, request: Callable[[EnvironmentClient], Coroutine[Any, Any, T]]
    ) -> T:
        call = asyncio.create_task(request(replica.client), name=f"request to {self.name}")
        replica.calls.add(call)
        try:
            await asyncio.wait({call})
        finally:
            replica.calls.discard(call)
            call.cancel()
        if call.cancelled():
            raise ServiceUnavailable(self._problem())
        try:
            return call.result()
        except ServiceUnavailable as error:
            self._mark_lost(replica, error.problem)
            raise

    def _problem(self) -> Problem:
        """Return the reason why no pod can be used."""
        told = [replica.problem.message for replica in self.replicas.values() if replica.problem is not None]
        return Problem(
            reason=Reason.UNREACHABLE,
            message=f"no pod of environment {self.name} responds{f': {told[0]}' if told else ''}; check its pods",
        )

    def _mark_lost(self, replica: EnvironmentReplica, problem: Problem) -> None:
        """Send no more groups to the pod until it reports that it is ready."""
        if replica.is_ready:
            log.warning("a pod of environment %s is lost: %s", self.name, problem.message)
        replica.info, replica.problem = None, problem

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll)
            try:
                await self._update()
            except Exception:
                # The known pods stay in use.
                log.exception("the pods of environment %s could not be updated", self.name)

    async def _update(self) -> None:
        try:
            found = set(await self._addresses())
        except OSError as error:
            log.debug("DNS lists no pod of environment %s: %s", self.name, error)
            found = set()
        for url in sorted(found - self.replicas.keys()):
            backoff = Backoff(first=self._backoff, longest=60 * self._backoff)
            self.replicas[url] = EnvironmentReplica(self._connect(url), backoff=backoff)
        for replica in self.replicas.values():
            # A pod that does not respond has at most one pending request, and does not delay the other pods.
            if replica.probe is None or replica.probe.done():
                replica.probe = asyncio.create_task(self._probe(replica), name=f"probe of {self.name}")
        for url, replica in list(self.replicas.items()):
            replica.dns_misses = 0 if url in found else replica.dns_misses + 1
            # If DNS lists no pod at all, DNS itself has probably failed.
            replica.has_left = bool(found) and replica.dns_misses >= DNS_MISSES_BEFORE_REMOVAL
            answers = replica.info is not None and replica.info.ready
            # A terminating pod may still complete its groups.
            in_use = answers and (not replica.has_left or bool(replica.calls))
            if replica.dns_misses >= DNS_MISSES_BEFORE_REMOVAL and not in_use:
                log.info("removed pod %s of environment %s", url, self.name)
                del self.replicas[url]
                for call in [*replica.calls, *([replica.probe] if replica.probe is not None else [])]:
                    call.cancel()

    async def _wait_for_ready_pod(self) -> None:
        """Wait until a pod is ready, or until all pods have reported their state or reached the request's deadline."""
        while not any(replica.is_ready for replica in self.replicas.values()):
            probes = [each.probe for each in self.replicas.values() if each.probe is not None and not each.probe.done()]
            if not probes:
                return
            await asyncio.wait(probes, return_when=asyncio.FIRST_COMPLETED)

    async def _probe(self, replica: EnvironmentReplica) -> None:
        was_ready = replica.is_ready
        try:
            info = await replica.client.info()
        except RequestError as error:
            self._mark_lost(replica, error.problem)
            return
        except Exception:
            log.exception("the state of a pod of environment %s could not be read", self.name)
            return
        if info.name != self.name:
            # Addresses of deleted pods are reused.
            message = f"the pod's address now belongs to a pod of environment {info.name[:100]}"
            self._mark_lost(replica, Problem(reason=Reason.UNREACHABLE, message=message))
            return
        replica.info, replica.problem = info, None
        if replica.is_ready and not was_ready:
            log.info("a pod of environment %s is ready", self.name)
