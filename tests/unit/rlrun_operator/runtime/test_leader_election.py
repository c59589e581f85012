import asyncio
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun_operator.cluster.finalizer_removal import WAIT_SECONDS
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.operator_process import STOP_SECONDS
from rlrun_operator.runtime.leader_election import (
    DURATION_SECONDS,
    RENEW_SHARE,
    RETRY_SECONDS,
    LeaderElection,
    LeaseLost,
)

from tests.support.fake_cluster import FakeCluster

RENEW_DEADLINE_SECONDS = RENEW_SHARE * DURATION_SECONDS


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def lease(cluster: Any, identity: str, clock: Time) -> LeaderElection:
    return LeaderElection(cluster.kube, "ns", "lease", identity, retry=0.001, clock=clock)


Pair = tuple[FakeCluster, Time, LeaderElection, LeaderElection]


@pytest.fixture
async def pair() -> Pair:
    """Two candidates, of which the first has the lease."""
    cluster, clock = FakeCluster(), Time()
    first, second = lease(cluster, "a", clock), lease(cluster, "b", clock)
    await first.acquire()
    return cluster, clock, first, second


async def test_one_of_two_candidates_becomes_leader(pair: Pair) -> None:
    _, clock, _, second = pair
    assert not await second._try()
    clock.now += DURATION_SECONDS - 1
    assert not await second._try()


async def test_silent_holder_is_followed_after_the_duration_by_the_own_clock(pair: Pair) -> None:
    cluster, clock, first, second = pair
    assert not await second._try()
    clock.now += DURATION_SECONDS
    assert await second._try()
    found = cluster.held("Lease", "lease", "ns")
    assert (found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]) == ("b", 1)
    assert not await first._try()


async def test_a_holder_with_a_longer_duration_is_waited_for() -> None:
    cluster, clock = FakeCluster(), Time()
    first = LeaderElection(cluster.kube, "ns", "lease", "a", duration=2 * DURATION_SECONDS, clock=clock)
    second = lease(cluster, "b", clock)
    await first.acquire()
    assert not await second._try()
    clock.now += 2 * DURATION_SECONDS - 1
    assert not await second._try()
    clock.now += 1
    assert not first.is_held()
    assert await second._try()
    found = cluster.find("Lease", "lease", "ns") or {}
    assert found["spec"]["leaseDurationSeconds"] == DURATION_SECONDS


async def test_leader_keeps_the_lease_while_renewing(pair: Pair) -> None:
    _, clock, first, second = pair
    for _ in range(5):
        assert not await second._try()
        clock.now += RENEW_DEADLINE_SECONDS
        await asyncio.sleep(0.001)
        assert await first._try()


async def test_released_lease_is_free_at_once(pair: Pair) -> None:
    _, _, first, second = pair
    await first.release()
    assert await second._try()


async def test_release_of_a_foreign_lease_changes_nothing(pair: Pair) -> None:
    cluster, _, _, second = pair
    await second.release()
    assert (cluster.find("Lease", "lease", "ns") or {})["spec"]["holderIdentity"] == "a"


async def test_one_of_two_simultaneous_candidates_becomes_leader() -> None:
    cluster, clock = FakeCluster(), Time()
    holder = lease(cluster, "a", clock)
    await holder.acquire()
    await holder.release()
    claims = [lease(cluster, name, clock) for name in ("b", "c", "d")]
    results = await asyncio.gather(*(claim._try() for claim in claims))
    assert sum(results) == 1


async def test_holder_that_cannot_renew_gives_up() -> None:
    cluster, clock = FakeCluster(), Time()
    mine = lease(cluster, "a", clock)
    await mine.acquire()

    async def fail(*_: object) -> None:
        clock.now += 4
        raise ApiError(503, "ServiceUnavailable", "no")

    cluster.get = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(mine.hold(), 5)
    assert clock.now <= 100 + RENEW_DEADLINE_SECONDS + 4, "given up within the deadline and one request"


def test_holder_gives_up_before_another_takes_over() -> None:
    assert RENEW_DEADLINE_SECONDS + 5 <= DURATION_SECONDS


@pytest.mark.parametrize("bound", ["ge", "le"])
def test_the_allowed_durations_leave_time_to_stop_and_for_the_job_after_an_uninstallation(bound: str) -> None:
    (limit,) = [getattr(m, bound) for m in OperatorSettings.model_fields["lease_seconds"].metadata if hasattr(m, bound)]
    assert limit - RENEW_SHARE * limit >= STOP_SECONDS
    assert limit + RETRY_SECONDS < WAIT_SECONDS


async def test_a_holder_stops_at_its_deadline_and_not_at_the_next_renewal() -> None:
    cluster = FakeCluster()
    mine = LeaderElection(cluster.kube, "ns", "lease", "a", duration=0.15, retry=60.0)
    await mine.acquire()

    async def fail(*_: object) -> None:
        raise ApiError(503, "ServiceUnavailable", "no")

    cluster.get = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(LeaseLost):
        await asyncio.wait_for(mine.hold(), 30)


async def test_the_lease_is_held_from_its_acquisition_to_the_renewal_deadline() -> None:
    cluster, clock = FakeCluster(), Time()
    holder = lease(cluster, "a", clock)
    assert not holder.is_held()
    await holder.acquire()
    assert holder.is_held()
    clock.now += RENEW_DEADLINE_SECONDS - 1
    assert holder.is_held()
    # No event of the loop is needed: a thread may ask while the loop is blocked.
    clock.now += 1
    assert not holder.is_held()
    assert await holder._try()
    assert holder.is_held()


async def test_the_lease_is_not_held_by_another_candidate_or_after_its_release(pair: Pair) -> None:
    _, _, first, second = pair
    assert not await second._try()
    assert not second.is_held()
    await first.release()
    assert not first.is_held()


async def test_the_lease_is_not_held_when_another_process_takes_over(pair: Pair) -> None:
    _, clock, first, second = pair
    assert not await second._try()
    clock.now += DURATION_SECONDS
    assert not first.is_held()
    assert await second._try()
    assert second.is_held()
