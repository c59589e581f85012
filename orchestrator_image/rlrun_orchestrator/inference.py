"""The inference replicas: who they are, which policies they serve, and which one a request goes to.

Replicas are found by the A records of the headless service and each is kept in order by its own task, which compares
the adapters wanted with the engine's own list, again and again: a new replica, one that restarted with an empty engine
and one that missed a publication are all the same case. Rotation is per policy: a replica gets requests for a policy
only after its sidecar has confirmed that very version, so a slow replica goes on serving the older version meanwhile,
and a failing one holds up nobody.

Where a run trains all weights, a replica holds one version, and a newer one takes its place. Groups that are pinned to
an older one go on with the newer: the logprobs of their tokens say what these were drawn from.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
from rlrun.schema.policy import POLICY_PREFIX
from rlrun.schema.wire import AdapterList, PolicyKind, PolicyRef, Problem
from rlrun.service.backoff import STARTING_SECONDS, Backoff
from rlrun.service.errors import RequestError, RequestRejected, ServiceUnavailable

from rlrun_orchestrator.sidecar_client import SidecarClient

log = logging.getLogger(__name__)

NOT_BROUGHT = "AdapterDownloadFailed"
"""The sidecar's reason when neither S3 nor the trainer gives it the files."""
MISSES_BEFORE_GONE = 3
"""Looks at DNS that must miss a replica before it is given up: one short answer of DNS is no departure."""
REPORT_AFTER = 5.0
"""Seconds without the policy anywhere before the wait is worth telling."""
REMEMBERED = 1000
"""Publications whose order is kept: no group lives that long."""
HOME_SLACK = 4
"""Requests by which a group's home replica may be busier than the idlest before affinity gives way."""


@dataclass(frozen=True)
class Endpoint:
    """Where one replica answers."""

    engine_url: str
    sidecar_url: str


Resolver = Callable[[], Awaitable[Iterable[Endpoint]]]


def dns_resolver(host: str, engine_port: int, sidecar_port: int) -> Resolver:
    """Endpoints from the addresses of a headless service. The resolver raises OSError when DNS has no answer."""

    async def resolve() -> list[Endpoint]:
        found = await asyncio.get_running_loop().getaddrinfo(host, engine_port, type=socket.SOCK_STREAM)
        hosts = sorted({f"[{a[4][0]}]" if a[0] == socket.AF_INET6 else str(a[4][0]) for a in found})
        return [Endpoint(f"http://{h}:{engine_port}", f"http://{h}:{sidecar_port}") for h in hosts]

    return resolve


@dataclass(eq=False)
class Replica:
    """One engine with its sidecar."""

    endpoint: Endpoint
    sidecar: SidecarClient
    adapters: set[str] = field(default_factory=set)
    """Names of the policies that it serves, confirmed by the engine's own list."""
    replaced: bool = False
    """Its own weights are those of a policy: it has no base model any more."""
    answers: bool = False
    heard: bool = False
    """Whether it has ever answered; before that its pod is starting."""
    requests: int = 0
    """In flight now."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=5.0))
    refused: set[str] = field(default_factory=set)
    """Older versions that it could not load; nobody tries those twice."""
    misses: int = 0
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None
    problem: Problem | None = None
    """The last failure, until everything it should serve is loaded again."""
    calls: "set[asyncio.Task[tuple[int, bytes]]]" = field(default_factory=set)
    """Requests under way, so that those to a pod that has vanished need not wait for their timeout."""

    def serves(self, policy: str | None) -> bool:
        """Whether it is in rotation for that policy; None is the base model."""
        return self.answers and (not self.replaced if policy is None else policy in self.adapters)

    def suspect(self, problem: Problem) -> None:
        """A request failed in a way that is the replica's fault: out of rotation until its sidecar confirms again."""
        if self.answers:
            log.warning("replica %s leaves rotation: %s", self.endpoint.engine_url, problem.message)
        self.answers = False
        self.problem = problem
        self.wake.set()


def choose(replicas: Iterable[Replica], policy: str | None, home: Replica | None) -> Replica | None:
    """The replica for a request: the group's home while it is about as free as any, else the idlest; None if nobody.

    `policy` None asks for the base model.
    """
    able = [replica for replica in replicas if replica.serves(policy)]
    if not able:
        return None
    idlest = min(able, key=lambda replica: replica.requests)
    if home is not None and home in able and home.requests <= 2 * idlest.requests + HOME_SLACK:
        return home
    return idlest


class ReplicaPool:
    """All replicas of the run."""

    def __init__(
        self,
        http: aiohttp.ClientSession,
        resolve: Resolver,
        in_use: Callable[[], dict[str, PolicyRef]],
        *,
        poll_interval: float,
        fallback_url: str | None = None,
    ) -> None:
        """`in_use`: the policies that live groups are pinned to, by name. `fallback_url`: where the trainer has the
        folders of the newest ones, for when S3 does not give them.
        """
        self.replicas: dict[Endpoint, Replica] = {}
        self.current: PolicyRef | None = None
        self.previous: PolicyRef | None = None
        self._target: PolicyRef | None = None
        self._published: dict[str, int] = {}
        """Every policy's place in the order of publication, which a rewind makes different from that of versions."""
        self._publications = 0
        self._http = http
        self._resolve = resolve
        self._in_use = in_use
        self._poll = poll_interval
        self._fallback_url = fallback_url
        self._changed = asyncio.Event()
        self._watcher: asyncio.Task[None] | None = None

    # --- for the gateway and the loop ---------------------------------------------------------------------------------

    def choose(self, policy: str | None, home: Replica | None) -> Replica | None:
        """See the function of that name."""
        return choose(self.replicas.values(), policy, home)

    def serving(self, policy: str | None) -> int:
        """Replicas in rotation for a policy, or for the base model (None)."""
        return sum(replica.serves(policy) for replica in self.replicas.values())

    async def changed(self, timeout: float) -> None:
        """Returns when any replica's state may have changed, or after `timeout` seconds."""
        event = self._changed
        with contextlib.suppress(TimeoutError):
            # Not wait_for: in Python 3.11 it forgets a cancellation that comes together with the event.
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
        """Makes `policy` the current one: loaded and confirmed by every healthy replica.

        Once one replica has it, the others get `grace` seconds; whoever is later joins when it is ready. `report`
        hears what is waited for, and None at the end. Raises
        ServiceUnavailable when nobody serves it after `deadline` seconds; then the policy before stays current.
        """
        self._target = policy
        self._publications += 1
        self._published[policy.name] = self._publications
        if len(self._published) > REMEMBERED:
            self._published.pop(next(iter(self._published)))
        self._wake_all()
        start = time.monotonic()
        first: float | None = None
        while True:
            now = time.monotonic()
            serving = self.serving(policy.name)
            first = now if serving and first is None else first
            healthy = sum(r.answers and r.problem is None for r in self.replicas.values())
            if serving and (serving >= healthy or now - (first or now) >= grace):
                break
            if now - start >= deadline:
                raise ServiceUnavailable(self.problem(policy))
            if not serving and now - start > REPORT_AFTER:
                report(self.problem(policy))
            await self.changed(min(self._poll, max(0.01, grace)))
        report(None)
        if self.current is not None and self.current.name != policy.name:
            self.previous = self.current
        self.current = policy
        self._wake_all()

    def problem(self, policy: PolicyRef | None = None) -> Problem:
        """Why no replica serves the policy, in words."""
        name = policy.name if policy else "a policy"
        told = [replica.problem.message for replica in self.replicas.values() if replica.problem]
        if not any(replica.heard for replica in self.replicas.values()):
            return Problem(
                reason="WaitingForInference",
                message="no inference replica is ready: look at the inference pods of this run and their events",
            )
        return Problem(
            reason="WaitingForInference",
            message=f"no inference replica serves {name} yet" + (f": {told[0]}" if told else ""),
        )

    # --- upkeep -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to look for replicas."""
        self._watcher = asyncio.create_task(self._watch(), name="replica watcher")

    async def close(self) -> None:
        """Stops all tasks; the engines keep what they have."""
        tasks = [t for t in [self._watcher, *(r.task for r in self.replicas.values())] if t is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                found = set(await self._resolve())
            except OSError as error:
                log.debug("no inference replica in DNS: %s", error)
                found = set()
            self._see(found)
            await asyncio.sleep(self._poll)

    def _see(self, found: set[Endpoint]) -> None:
        for endpoint in found - self.replicas.keys():
            replica = Replica(endpoint, SidecarClient(self._http, endpoint.sidecar_url))
            replica.task = asyncio.create_task(self._keep(replica), name=f"replica {endpoint.engine_url}")
            self.replicas[endpoint] = replica
            log.info("replica %s found", endpoint.engine_url)
        for endpoint, replica in list(self.replicas.items()):
            replica.misses = 0 if endpoint in found else replica.misses + 1
            # An unready pod leaves the headless service; one that still answers its sidecar is kept.
            if replica.misses >= MISSES_BEFORE_GONE and not replica.answers:
                log.info("replica %s is gone", endpoint.engine_url)
                for task in (replica.task, *replica.calls):
                    if task is not None:
                        task.cancel()
                del self.replicas[endpoint]
                self._notify()

    async def _keep(self, replica: Replica) -> None:
        while True:
            replica.wake.clear()
            looked = False
            try:
                # A busy engine is slow to answer: what a publication waits for is asked for at once.
                if not replica.answers or self._target is None or replica.serves(self._target.name):
                    self._note(replica, await replica.sidecar.adapters())
                    if not replica.answers:
                        log.info("replica %s answers and has %s", replica.endpoint.engine_url, sorted(replica.adapters))
                    replica.answers = replica.heard = True
                    self._notify()
                looked = True
                await self._reconcile(replica)
                replica.problem = None
                replica.backoff.succeeded()
            except RequestError as error:
                replica.backoff.failed(time.monotonic())
                if error.problem.reason == NOT_BROUGHT:
                    # The engine is well: it goes on with the policies that it has.
                    replica.problem = error.problem
                else:
                    replica.suspect(error.problem)
                replica.wake.clear()
                if not looked:
                    self._notify()
                    await asyncio.sleep(min(STARTING_SECONDS, self._poll))
                    continue
                await asyncio.sleep(min(replica.backoff.pause, max(self._poll, 0.01) * 2**replica.backoff.failures))
            self._notify()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll):
                    await replica.wake.wait()

    async def _reconcile(self, replica: Replica) -> None:
        """Loads what is missing, newest first, then unloads what nobody uses."""
        needed = [p for p in (self._target, self.current) if p is not None]
        used = sorted(self._in_use().values(), key=lambda policy: -policy.version)
        for policy in needed:
            if policy.name not in replica.adapters:
                await self._load(replica, policy)
                self._notify()
        if any(policy.kind is PolicyKind.weights for policy in needed):
            return  # older weights would take the place of the newest
        for policy in used:
            if policy.name in replica.adapters or policy.name in replica.refused:
                continue
            try:
                await self._load(replica, policy)
            except RequestRejected as error:
                # An older version may be gone from S3 already; its groups finish on other replicas or not at all.
                replica.refused.add(policy.name)
                log.warning("replica %s cannot load %s: %s", replica.endpoint.engine_url, policy.name, error)
        keep = {p.name for p in (self._target, self.current, self.previous, *self._in_use().values()) if p is not None}
        for name in replica.adapters - keep:
            if name.startswith(POLICY_PREFIX):
                self._note(replica, await replica.sidecar.unload(name))

    async def _load(self, replica: Replica, policy: PolicyRef) -> None:
        fallback = f"{self._fallback_url}/{policy.name}" if self._fallback_url else None
        self._note(replica, await replica.sidecar.load(policy, fallback))

    def _note(self, replica: Replica, listed: AdapterList) -> None:
        """What the sidecar says, and which policies that serves."""
        replica.adapters = set(listed.adapters)
        policies = [p for p in (self._target, self.current, self.previous, *self._in_use().values()) if p is not None]
        whole = {policy.name for policy in policies if policy.kind is PolicyKind.weights}
        replica.replaced = bool(whole and replica.adapters)
        if replica.replaced:
            newest = max(self._published.get(name, 0) for name in replica.adapters)
            replica.adapters |= {name for name in whole if self._published.get(name, newest + 1) <= newest}

    def _wake_all(self) -> None:
        for replica in self.replicas.values():
            replica.wake.set()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
