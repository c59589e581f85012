"""An operator in this process, against a real API server, killed in every state that it can leave behind.

Being in this process, it can be cut off exactly before a request leaves, or exactly after its answer has arrived. Kills
that would leave the same state are played once.
"""

import random
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from rlrun.kube.connection.cluster_clock import ClusterClock
from rlrun.kube.errors import ApiError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoreError
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.applier import Applier
from rlrun_operator.controller.observer import Observer
from rlrun_operator.controller.reconciler import Reconciler
from rlrun_operator.planning.observation import RunKey
from rlrun_operator.storage.artifact_store import ArtifactStore, Installation

from tests.chaos.apiserver.life import Life, new_site
from tests.chaos.apiserver.place import Place
from tests.chaos.scenario import Lost, Scenario, require_strike
from tests.chaos.unit.faults import CrashAfterWrite, CrashBeforeWriting, FaultyTransport, Gate, Rule
from tests.chaos.unit.storms import Storm
from tests.support.fake_cluster import Crash
from tests.support.fake_poller import FakePoller

WRITES = 66
"""Writes of the life: the operator is killed after each of them."""
WRITES_MORE_OR_LESS = 5
"""Number of writes by which one life may differ from another on a real API server, whose timing varies. The scenarios
that kill after one of the last of these writes may end without reaching it."""
WRITING_TICKS = 12
"""Ticks in which the operator writes: it is killed before the first write of each. A kill before any other write leaves
what the kill after the write before it leaves, and one at a read what the kill before the next write leaves."""
WRITING_TICKS_MORE_OR_LESS = 2


def scenarios(seed: int) -> Iterator[Scenario]:
    """The undisturbed life, and every kill."""
    yield Scenario("undisturbed", "apiserver", undisturbed, seconds=240)
    for n in range(WRITES):
        yield Scenario(f"operator-killed-after-write/{n:02d}", "apiserver", after_write(n), seconds=240)
    for n in range(WRITING_TICKS):
        yield Scenario(f"operator-killed-before-writing/{n:02d}", "apiserver", before_writing(n), seconds=240)
    for i in range(8):
        share = (0.05, 0.2)[i % 2]
        yield Scenario(f"calls-fail-at-random/{share}-{i}", "apiserver", stormy(seed + i, share), seed + i, seconds=240)


async def undisturbed(place: Place) -> None:
    """Play a life without kills, to check that WRITES and WRITING_TICKS cover all of its writes."""
    gate = await live(place, Rule())
    writes = [call for call in gate.calls if call.writes]
    ticks = len({call.tick for call in writes})
    # With fewer of them, the last kills do not strike, and say so.
    if len(writes) > WRITES + WRITES_MORE_OR_LESS or ticks > WRITING_TICKS + WRITING_TICKS_MORE_OR_LESS:
        raise Lost(
            f"the life has {len(writes)} writes in {ticks} ticks, and kills are played for {WRITES} (up to "
            f"{WRITES_MORE_OR_LESS} more may be) in {WRITING_TICKS} (up to {WRITING_TICKS_MORE_OR_LESS} more): raise "
            "WRITES and WRITING_TICKS"
        )


def after_write(n: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which the n-th write is the last thing that the operator does."""

    may_be_missed = n >= WRITES - WRITES_MORE_OR_LESS
    return _killed(lambda: CrashAfterWrite(n), f"the operator writes {n + 1} times", may_be_missed)


def before_writing(n: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which the operator dies when it is about to write in the n-th tick."""

    may_be_missed = n >= WRITING_TICKS - WRITING_TICKS_MORE_OR_LESS
    return _killed(lambda: CrashBeforeWriting(n), f"the operator writes in {n + 1} ticks", may_be_missed)


def _killed(
    make_rule: Callable[[], CrashAfterWrite | CrashBeforeWriting], fault: str, may_be_missed: bool
) -> Callable[[Any], Coroutine[Any, Any, None]]:
    async def play(place: Place) -> None:
        rule = make_rule()
        await live(place, rule)
        require_strike(rule.struck, fault, may_be_missed=may_be_missed)

    return play


def stormy(seed: int, share: float) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """A life in which calls fail, and answers get lost, and the operator dies now and then."""

    async def play(place: Place) -> None:
        storm = Storm(random.Random(seed), share, 60, ("cluster",), ("error", "error", "crash"))
        await live(place, storm)
        require_strike(storm.broken > 0, "a call fails")

    return play


async def live(place: Place, rule: Rule) -> Gate:
    """Play one whole life. Returns the gate with the calls of the operator."""
    site, connection = await new_site(place)
    poller = FakePoller()
    settings = place.parsed(site.namespace)
    artifacts = ArtifactStore(2, lambda: True)
    artifacts.installation = Installation(S3Uri(settings.s3.bucket, site.namespace), "this-cluster")
    gate = Gate(rule)

    def new_operator() -> Reconciler:
        objects = RunObjects(FaultyTransport(connection, gate))
        observer = Observer(objects, artifacts, poller, settings)
        return Reconciler(observer, Applier(objects.cluster, artifacts), settings, ClusterClock())

    life, operator = Life(site), new_operator()
    try:
        while not await life.over():
            life.check_time()
            gate.tick += 1
            await life.tick()
            poller.answer = life.answer
            try:
                await operator.reconcile(RunKey(site.namespace, "reverse"))
            except Crash:
                await life.check_moment()
                gate = Gate(rule, gate.calls, tick=gate.tick)
                operator = new_operator()
            except (ApiError, StoreError, TimeoutError):
                continue
        # In a storm all calls of the operator may fail from before the pod's death until the end of the run.
        await life.check_end(restarts=(0, 1) if isinstance(rule, Storm) else 1)
    finally:
        artifacts.close()
        await connection.close()
    return gate
