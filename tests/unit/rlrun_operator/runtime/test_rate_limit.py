"""The limit of requests: a burst at once, then an even rate, in order of arrival."""

import asyncio

import pytest
from rlrun.kube.kinds import POD
from rlrun.kube.requests import get
from rlrun_operator.runtime.rate_limit import FairRateLimit, RateLimit, RateLimitedTransport

from tests.support.fake_cluster import FakeCluster


class Time:
    def __init__(self) -> None:
        self.now = 0.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(round(seconds, 6))


async def test_a_burst_begins_at_once_and_the_others_at_the_rate() -> None:
    time = Time()
    limit = RateLimit(10, 3, time, time.sleep)
    for _ in range(6):
        await limit.wait()
    assert time.sleeps == [0.1, 0.2, 0.3]


async def test_a_wait_that_is_cancelled_delays_nothing_else() -> None:
    time = Time()

    async def cancelled(_: float) -> None:
        raise asyncio.CancelledError

    limit = RateLimit(10, 1, time, cancelled)
    await limit.wait()
    for _ in range(10):
        with pytest.raises(asyncio.CancelledError):
            await limit.wait()
    time.now += 0.1
    assert await limit.wait() == 0


async def test_time_brings_requests_back_up_to_a_burst() -> None:
    time = Time()
    limit = RateLimit(10, 3, time, time.sleep)
    for _ in range(5):
        await limit.wait()
    time.sleeps.clear()
    time.now += 60
    for _ in range(4):
        await limit.wait()
    assert time.sleeps == [0.1]


async def test_a_tenant_with_many_waits_is_ahead_of_another_by_one() -> None:
    order: list[str] = []
    limit = FairRateLimit(RateLimit(1, 1, lambda: 0.0, lambda _: asyncio.sleep(0)))

    async def wait(tenant: str) -> bool:
        waited = await limit.wait(tenant)
        order.append(tenant)
        return waited

    tenants = ["many"] * 1000 + ["few"]
    waited = await asyncio.gather(*(wait(tenant) for tenant in tenants))
    assert order.index("few") <= 2
    assert sorted(order) == sorted(tenants)
    assert waited.count(False) == 1


async def test_requests_begin_in_order_of_arrival() -> None:
    limit = RateLimit(200, 1, asyncio.get_running_loop().time)
    begun: list[int] = []

    async def request(number: int) -> None:
        await limit.wait()
        begun.append(number)

    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(request(n) for n in range(5)))
    assert begun == [0, 1, 2, 3, 4]
    assert asyncio.get_running_loop().time() - began >= 4 / 200 * 0.9


async def test_a_transport_waits_before_each_request() -> None:
    time = Time()
    cluster = FakeCluster()
    transport = RateLimitedTransport(cluster, RateLimit(10, 1, time, time.sleep))
    cluster.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "team"}})
    for _ in range(2):
        assert (await transport.send(get(POD, "team", "p")))["metadata"]["name"] == "p"
    assert time.sleeps == [0.1]
