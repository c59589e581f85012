"""Inference replicas: discovery, the policies that each replica serves, and the choice of a replica for a request.

Replicas are discovered by the A records of the headless service. One task per replica periodically compares the wanted
adapters with the engine's own list, so that new replicas, restarted replicas with an empty engine and replicas that
missed a publication are treated equally. Readiness is per policy: a replica gets requests for a policy only after its
sidecar has confirmed that version. Until then a slow replica serves the older version. A failing replica does not delay
the other replicas.

If a run trains all weights, a replica holds one version, which a newer one replaces. Turns that started with an older
version continue with the newer one; the logprobs of their tokens come from the weights that sampled them.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Container, Iterable
from dataclasses import dataclass, field

import aiohttp
from rlrun.constants import CONFLICT, Reason
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import POLICY_PREFIX, PolicyKind, PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import STARTING_SECONDS, Backoff
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable

from rlrun_orchestrator.inference.sidecar_client import SidecarClient

log = logging.getLogger(__name__)

IGNORED = Reason.ADAPTER_IGNORED
"""Sidecar's reason if the engine loads adapters but ignores them."""
DOWNLOAD_FAILED = Reason.ADAPTER_DOWNLOAD_FAILED
"""Sidecar's reason if neither S3 nor the trainer delivers the files."""
DNS_MISSES_BEFORE_REMOVAL = 3
"""Number of consecutive DNS lookups without the replica after which it is removed, unless its sidecar still responds.
One incomplete DNS response is not enough.
"""
REPORT_AFTER = 5.0
"""Seconds after which a publication reports that no replica serves the policy."""
PUBLICATIONS_KEPT = 1000
"""Number of publications whose order is remembered, more than any group can outlive."""
TOO_MANY_REQUESTS = 429
"""Status with which an engine refuses a request because the run has too many requests in progress. The engine is
healthy.
"""
BUSY_SECONDS = 0.5
"""First pause in seconds after an engine responded with TOO_MANY_REQUESTS."""
LONGEST_BUSY_SECONDS = 10.0
"""Maximum pause in seconds after TOO_MANY_REQUESTS, even if the engine asks for a longer pause."""
AFFINITY_SLACK = 4
"""A group's home replica is chosen if it has at most twice the requests of the least busy replica plus this number."""


@dataclass(frozen=True)
class ReplicaAddresses:
    """Addresses of one replica."""

    engine_url: str
    sidecar_url: str


Resolver = Callable[[], Awaitable[Iterable[ReplicaAddresses]]]


def dns_resolver(host: str, engine_port: int, sidecar_port: int) -> Resolver:
    """Return a resolver that finds the addresses of a headless service, and raises OSError if DNS has none."""

    async def resolve() -> list[ReplicaAddresses]:
        hosts = await host_addresses(host, engine_port)
        return [ReplicaAddresses(f"http://{h}:{engine_port}", f"http://{h}:{sidecar_port}") for h in hosts]

    return resolve


async def host_addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host in URL notation. Raises OSError if DNS has none."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({f"[{a[4][0]}]" if a[0] == socket.AF_INET6 else str(a[4][0]) for a in infos})


@dataclass(eq=False)
class Replica:
    """Inference engine with its sidecar."""

    endpoint: ReplicaAddresses
    sidecar: SidecarClient
    adapters: set[str] = field(default_factory=set)
    """Names of the policies that the replica serves, confirmed by the engine's own list."""
    was_replaced: bool = False
    """True if a policy's weights have replaced those of the base model."""
    is_answering: bool = False
    has_responded: bool = False
    """True once the replica has responded. Before that, its pod is starting."""
    requests: int = 0
    """Number of completions and tokenizations that the gateway has in progress at the replica."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=5.0))
    refused: set[str] = field(default_factory=set)
    """Older versions that the replica could not load and that are not tried again."""
    dns_misses: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    problem: Problem | None = None
    """Latest failure, kept until all wanted policies are loaded."""
    calls: "set[asyncio.Task[tuple[int, bytes]]]" = field(default_factory=set)
    """Requests in progress, which are cancelled when the replica is removed."""

    def serves(self, policy: str | None) -> bool:
        """Return True if the replica can serve the policy, or the base model if `policy` is None."""
        return self.is_answering and (not self.was_replaced if policy is None else policy in self.adapters)

    def mark_suspect(self, problem: Problem) -> None:
        """Stop sending requests to a replica that has failed, until its sidecar responds again."""
        if self.is_answering:
            log.warning("replica %s is removed from rotation: %s", self.endpoint.engine_url, problem.message)
        self.is_answering = False
        self.problem = problem
        self.wake.set()


def unauthorized_message(url: str) -> str:
    """Return the message for a user about an engine that returned 401."""
    return (
        f"the engine {url} returned 401: it does not accept this run's token, probably because its shared pool's list "
        "of runs is out of date; the request is retried. If this lasts for minutes, check the operator's log for this "
        "pool, and restart the engine's pod"
    )


def choose(replicas: Iterable[Replica], policy: str | None, home: Replica | None) -> Replica | None:
    """Choose the replica for a request: the group's home replica, or the least busy replica if the home replica is much
    busier.

    If `policy` is None, the request is for the base model. Returns None if no replica serves the policy.
    """
    able = [replica for replica in replicas if replica.serves(policy)]
    if not able:
        return None
    idlest = min(able, key=lambda replica: replica.requests)
    if home is not None and home in able and home.requests <= 2 * idlest.requests + AFFINITY_SLACK:
        return home
    return idlest


class ReplicaPool:
    """Inference replicas of the run."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        resolve: Resolver,
        in_use: Callable[[], dict[str, PolicyRef]],
        *,
        poll_interval: float,
        fallback_url: str | None = None,
    ) -> None:
        """`in_use` returns the policies that open groups need, by name. `fallback_url` is the URL of the newest
        policies at the trainer, used if S3 does not deliver them.
        """
        self.replicas: dict[ReplicaAddresses, Replica] = {}
        self.current: PolicyRef | None = None
        self.previous: PolicyRef | None = None
        self._target: PolicyRef | None = None
        self._published: dict[str, int] = {}
        """Position of each policy in the order of publication, which differs from the order of versions after a rewind.
        """
        self._publications = 0
        self._http = http
        self._resolve = resolve
        self._in_use = in_use
        self._poll = poll_interval
        self._fallback_url = fallback_url
        self._changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    # --- for the gateway and the loop ---------------------------------------------------------------------------------

    def choose(
        self, policy: str | None, home: Replica | None, without: Container[Replica] = frozenset()
    ) -> Replica | None:
        """Choose among all replicas except `without`, like the function `choose`."""
        return choose((replica for replica in self.replicas.values() if replica not in without), policy, home)

    def serving(self, policy: str | None) -> int:
        """Return the number of replicas that serve the policy, or the base model if `policy` is None."""
        return sum(replica.serves(policy) for replica in self.replicas.values())

    async def wait_for_change(self, timeout: float) -> None:
        """Wait until the state of any replica may have changed, for at most `timeout` seconds."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            # Avoid wait_for, which in Python 3.11 loses a cancellation that arrives together with the event.
            async with asyncio.timeout(timeout):
                await event.wait()

    async def publish(
        self,
        policy: PolicyRef,
        *,
        deadline: float,
        grace: float,
        report: Callable[[Problem | None], None] = lambda _: None,
    ) -> None:
        """Make `policy` the current policy, so that every healthy replica loads and confirms it.

        After the first replica serves the policy, waits up to `grace` seconds for the others; slower replicas serve it
        as soon as they are ready. While no replica serves it, `report` is called with the reason; when the publication
        succeeds, it is called with None. Raises ServiceUnavailable if no replica serves the policy after `deadline`
        seconds, and RequestRejected immediately if all engines that have responded ignore adapters, because retries
        would not help. In both cases the previous policy stays current, and `report` is not called with None.
        """
        self._target = policy
        self._publications += 1
        self._published[policy.name] = self._publications
        if len(self._published) > PUBLICATIONS_KEPT:
            self._published.pop(next(iter(self._published)))
        self._wake_all()
        start = time.monotonic()
        first: float | None = None
        while True:
            now = time.monotonic()
            serving = self.serving(policy.name)
            first = now if serving and first is None else first
            healthy = sum(r.is_answering and r.problem is None for r in self.replicas.values())
            if serving and (serving >= healthy or now - (first or now) >= grace):
                break
            responded = [replica.problem for replica in self.replicas.values() if replica.has_responded]
            ignoring = [problem for problem in responded if problem is not None and problem.reason == IGNORED]
            if ignoring and len(ignoring) == len(responded):
                raise RequestRejected(ignoring[0])
            if now - start >= deadline:
                raise ServiceUnavailable(self.problem(policy))
            if not serving and now - start > REPORT_AFTER:
                report(self.problem(policy))
            await self.wait_for_change(min(self._poll, max(0.01, grace)))
        report(None)
        if self.current is not None and self.current.name != policy.name:
            self.previous = self.current
        self.current = policy
        self._wake_all()

    def problem(self, policy: PolicyRef | None = None) -> Problem:
        """Return the reason why no replica serves the policy."""
        name = policy.name if policy else "a policy"
        failures = [replica.problem.message for replica in self.replicas.values() if replica.problem]
        if not any(replica.has_responded for replica in self.replicas.values()):
            return Problem(
                reason=Reason.WAITING_FOR_INFERENCE,
                message="no inference replica is ready; check the inference pods of this run and their events",
            )
        return Problem(
            reason=Reason.WAITING_FOR_INFERENCE,
            message=f"no inference replica serves {name} yet" + (f": {failures[0]}" if failures else ""),
        )

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the discovery of replicas."""
        self._watcher = asyncio.create_task(self._watch(), name="replica watcher")

    async def close(self) -> None:
        """Cancel all tasks. The engines keep their policies."""
        tasks = [t for t in [self._watcher, *(r.task for r in self.replicas.values())] if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                resolved = set(await self._resolve())
            except OSError as error:
                log.debug("DNS lists no inference replica: %s", error)
                resolved = set()
            self._update_replicas(resolved)
            await asyncio.sleep(self._poll)

    def _update_replicas(self, resolved: set[ReplicaAddresses]) -> None:
        for endpoint in resolved - self.replicas.keys():
            replica = Replica(endpoint, SidecarClient(self._http, endpoint.sidecar_url))
            replica.task = asyncio.create_task(self._maintain(replica), name=f"replica {endpoint.engine_url}")
            self.replicas[endpoint] = replica
            log.info("found replica %s", endpoint.engine_url)
        for endpoint, replica in list(self.replicas.items()):
            replica.dns_misses = 0 if endpoint in resolved else replica.dns_misses + 1
            # An unready pod leaves the headless service, but a replica whose sidecar still responds is kept.
            if replica.dns_misses >= DNS_MISSES_BEFORE_REMOVAL and not replica.is_answering:
                log.info("removed replica %s", endpoint.engine_url)
                for task in (replica.task, *replica.calls):
                    if task is not None:
                        task.cancel()
                del self.replicas[endpoint]
                self._notify()

    async def _maintain(self, replica: Replica) -> None:
        while True:
            replica.wake.clear()
            responded = False
            try:
                # A busy engine is slow to respond, so a policy that a publication waits for is loaded without a query.
                if not replica.is_answering or self._target is None or replica.serves(self._target.name):
                    self._record_adapters(replica, await replica.sidecar.adapters())
                    if not replica.is_answering:
                        log.info(
                            "replica %s responds and has %s", replica.endpoint.engine_url, sorted(replica.adapters)
                        )
                    replica.is_answering = replica.has_responded = True
                    self._notify()
                responded = True
                await self._reconcile(replica)
                replica.problem = None
                replica.backoff.record_success()
            except RequestError as error:
                replica.backoff.record_failure(time.monotonic())
                if error.problem.reason == DOWNLOAD_FAILED:
                    # The engine works and continues with the policies that it has.
                    replica.problem = error.problem
                else:
                    replica.mark_suspect(error.problem)
                replica.wake.clear()
                if not responded:
                    self._notify()
                    await asyncio.sleep(min(STARTING_SECONDS, self._poll))
                    continue
                await asyncio.sleep(min(replica.backoff.pause, max(self._poll, 0.01) * 2**replica.backoff.failures))
            self._notify()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await replica.wake.wait()

    async def _reconcile(self, replica: Replica) -> None:
        """Load missing policies, newest first, then unload unused policies.

        Raises RequestError. If the sidecar has no space for a policy, the error is raised after the unloads, because
        they free space for the next attempt.
        """
        full: RequestRejected | None = None
        needed = [p for p in (self._target, self.current) if p is not None]
        used = sorted(self._in_use().values(), key=lambda policy: -policy.version)
        for policy in needed:
            if policy.name not in replica.adapters:
                try:
                    await self._load(replica, policy)
                except RequestRejected as error:
                    if error.status != CONFLICT:
                        raise
                    full = error
                    break
                self._notify()
        if any(policy.kind is PolicyKind.weights for policy in needed):
            return  # Older weights would replace the newest.
        for policy in used:
            if full is not None or policy.name in replica.adapters or policy.name in replica.refused:
                continue
            try:
                await self._load(replica, policy)
            except RequestRejected as error:
                if error.status == CONFLICT:
                    full = error
                    continue
                # An older version may have been pruned in S3; its groups finish on other replicas or fail.
                replica.refused.add(policy.name)
                log.warning("replica %s cannot load %s: %s", replica.endpoint.engine_url, policy.name, error)
        keep = {p.name for p in (self._target, self.current, self.previous, *self._in_use().values()) if p is not None}
        for name in replica.adapters - keep:
            if name.startswith(POLICY_PREFIX):
                self._record_adapters(replica, await replica.sidecar.unload(name))
        if full is not None:
            raise full

    async def _load(self, replica: Replica, policy: PolicyRef) -> None:
        fallback = f"{self._fallback_url}/{policy.name}" if self._fallback_url else None
        self._record_adapters(replica, await replica.sidecar.load(policy, fallback))

    def _record_adapters(self, replica: Replica, listed: AdapterList) -> None:
        """Record the sidecar's list and the policies derived from it."""
        replica.adapters = set(listed.adapters)
        policies = [p for p in (self._target, self.current, self.previous, *self._in_use().values()) if p is not None]
        weight_policies = {policy.name for policy in policies if policy.kind is PolicyKind.weights}
        replica.was_replaced = bool(weight_policies and replica.adapters)
        if replica.was_replaced:
            newest = max(self._published.get(name, 0) for name in replica.adapters)
            replica.adapters |= {name for name in weight_policies if self._published.get(name, newest + 1) <= newest}

    def _wake_all(self) -> None:
        for replica in self.replicas.values():
            replica.wake.set()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
