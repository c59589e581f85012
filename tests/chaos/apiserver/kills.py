"""An operator in this process, against a real API server, that dies at each of its writes and at some of its reads.

Being in this process, it can be cut off exactly before a request leaves, or exactly after its answer has arrived.
"""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.storage.store import StoreError
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.artifact_store import S3ArtifactStore
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.runtime.metrics import RunPhaseCollector

from tests.chaos.apiserver.life import Life, new_site
from tests.chaos.apiserver.place import Place
from tests.chaos.scenario import Lost, Scenario
from tests.chaos.unit.faults import Call, FaultyTransport, Gate, Rule
from tests.chaos.unit.storms import Storm
from tests.support.fake_cluster import Crash
from tests.support.fake_poller import FakePoller

WRITES = 64
"""At least as many writes as the life has: the scenario `undisturbed` fails where it has more."""
READS_EVERY = 7
READS = 180


@dataclass
class CrashAtNth(Rule):
    """The n-th write, or the n-th call of any kind, is the last thing that the operator does, or nearly does."""

    n: int
    writes: bool = True
    after_effect: bool = False
    seen: int = -1
    struck: bool = False

    def before(self, call: Call) -> None:
        if call.writes or not self.writes:
            self.seen += 1
            if self.seen == self.n and not self.after_effect and not self.struck:
                self.struck = True
                raise Crash

    def after(self, call: Call) -> None:
        if (call.writes or not self.writes) and self.seen == self.n and self.after_effect and not self.struck:
            self.struck = True
            raise Crash


def scenarios(seed: int) -> Iterator[Scenario]:
    """The undisturbed life, and every kill."""
    yield Scenario("undisturbed", "apiserver", undisturbed, seconds=240)
    for n in range(WRITES):
        for after in (False, True):
            rule = CrashAtNth(n, after_effect=after)
            name = f"operator-killed-{'after' if after else 'before'}-write/{n:02d}"
            yield Scenario(name, "apiserver", lived(rule), seconds=240)
    for n in range(0, READS, READS_EVERY):
        yield Scenario(f"operator-killed-at-call/{n:03d}", "apiserver", lived(CrashAtNth(n, writes=False)), seconds=240)
    for i in range(8):
        share = (0.05, 0.2)[i % 2]
        yield Scenario(f"calls-fail-at-random/{share}-{i}", "apiserver", stormy(seed + i, share), seed + i, seconds=240)


async def undisturbed(place: Place) -> None:
    """The measure for the others: how many writes there are to be broken."""
    gate = await live(place, Rule())
    writes = sum(call.writes for call in gate.calls)
    if writes > WRITES:
        raise Lost(f"the life has {writes} writes, WRITES is {WRITES}: raise it")


def lived(rule: CrashAtNth) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which the operator dies once (or never, where the life has fewer calls than that)."""

    async def play(place: Place) -> None:
        await live(place, CrashAtNth(rule.n, rule.writes, rule.after_effect))

    return play


def stormy(seed: int, share: float) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which calls fail, and answers get lost, and the operator dies now and then."""

    async def play(place: Place) -> None:
        import random

        await live(place, Storm(random.Random(seed), share, 60, ("cluster",), ("error", "error", "crash")))

    return play


async def live(place: Place, rule: Rule) -> Gate:
    """One whole life; the gate knows what the operator did."""
    site, connection = await new_site(place)
    poller = FakePoller()
    settings = place.parsed(site.namespace)
    artifacts = S3ArtifactStore(threads=2)
    gate = Gate(rule)

    def new_operator() -> Reconciler:
        cluster = AsyncKubeClient(FaultyTransport(connection, gate))
        observer = Observer(cluster, artifacts, poller, settings)
        return Reconciler(observer, Applier(cluster, artifacts), settings, RunPhaseCollector(lambda: 0, lambda: 0))

    life, operator = Life(site), new_operator()
    try:
        while not await life.over():
            life.check_time()
            await life.tick()
            poller.answer = life.answer
            try:
                await operator.reconcile(RunKey(site.namespace, "reverse"))
            except Crash:
                await life.check_moment()
                gate = Gate(rule, gate.calls)
                operator = new_operator()
            except (ApiError, StoreError, TimeoutError):
                continue
        # In a storm the operator may be blind from before the pod's death until the end of the run.
        await life.check_end(restarts=(0 if isinstance(rule, Storm) else 1, 4))
    finally:
        artifacts.close()
        await connection.close()
    return gate
