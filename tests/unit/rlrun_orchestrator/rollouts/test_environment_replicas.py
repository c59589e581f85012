"""The client of an environment with several pods."""

import asyncio
from typing import Any

import pytest
from rlrun.protocol.environment import EnvironmentInfo, GroupRequest, GroupResult, RolloutResult
from rlrun.protocol.problem import Problem
from rlrun.service.errors import RequestRejected, ServiceUnavailable
from rlrun_orchestrator.rollouts.environment_replicas import EnvironmentReplicas, pod_urls

from tests.support.waiting import SECONDS, until

GONE = Problem(reason="Unreachable", message="connection reset")


class Pod:
    """Client of one pod."""

    def __init__(self) -> None:
        self.ready, self.problem, self.is_lost = True, None, False
        self.name = "words"
        self.groups = list[str]()
        self.answer = asyncio.Event()
        self.is_silent, self.error = False, ""

    async def info(self) -> EnvironmentInfo:
        if self.is_silent:
            await asyncio.Event().wait()
        if self.is_lost:
            raise ServiceUnavailable(GONE)
        return EnvironmentInfo(name=self.name, id="owner/words", ready=self.ready, problem=self.problem)

    async def roll_out(self, group: GroupRequest) -> GroupResult:
        if self.is_lost:
            raise ServiceUnavailable(GONE)
        self.groups.append(group.group_id)
        if self.error == "rollouts":
            failed = RolloutResult(rollout_id="r", reward=0.0, error=GONE)
            return GroupResult(group_id=group.group_id, rollouts=[failed], seconds=0.1)
        if self.error:
            raise RequestRejected(GONE)
        await self.answer.wait()
        return GroupResult(group_id=group.group_id, rollouts=[], seconds=0.1)


class Service:
    """Pods by URL, as DNS knows them."""

    def __init__(self, *names: str) -> None:
        self.pods: dict[str, Any] = {name: Pod() for name in names}
        self.known = list(names)
        self.now = 100.0
        self.client = EnvironmentReplicas(
            "words", 5.0, self.addresses, self.pods.__getitem__, poll_interval=0.01, backoff=1.0, clock=self.clock
        )

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    async def addresses(self) -> list[str]:
        if not self.known:
            raise OSError("no such host")
        return self.known

    def send(self, name: str) -> "asyncio.Task[GroupResult]":
        request = GroupRequest(group_id=name, example_index=0, rollouts=1, base_url="x", model="m", deadline_seconds=9)
        return asyncio.create_task(self.client.roll_out(request))


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_groups_go_to_the_least_busy_ready_pod() -> None:
    service = Service("a", "b", "c")
    service.pods["c"].ready = False
    assert (await service.client.info()).ready
    calls = []
    for number in range(4):
        calls.append(service.send(str(number)))
        await settle()
    a, b, c = service.pods.values()
    assert (a.groups, b.groups, c.groups) == (["0", "2"], ["1", "3"], [])
    b.answer.set()
    await asyncio.gather(calls[1], calls[3])
    calls += [service.send("4"), service.send("5")]
    await settle()
    assert b.groups == ["1", "3", "4", "5"]
    c.ready = True
    await until(lambda: service.client.replicas["c"].is_ready)
    a.answer.set()
    await asyncio.gather(*calls)
    await service.client.close()


@pytest.mark.parametrize("error", ["rollouts", "refused"])
async def test_a_pod_that_fails_at_once_gets_few_groups(error: str) -> None:
    service = Service("a", "b")
    await service.client.info()
    a, b = service.pods.values()
    a.error = error
    b.answer.set()
    await asyncio.gather(*(service.send(str(n)) for n in range(50)), return_exceptions=True)
    first = len(a.groups)
    for number in range(50):
        await asyncio.gather(service.send(f"later {number}"), return_exceptions=True)
    assert len(a.groups) == first, "it pauses"
    assert len(b.groups) >= 75
    # After its pause it gets one group, and others only if that one does not fail.
    service.now += 1.5
    calls = [service.send(f"again {n}") for n in range(4)]
    await asyncio.gather(*calls, return_exceptions=True)
    assert len(a.groups) == first + 1
    await service.client.close()


async def test_the_environment_pauses_only_if_all_pods_do() -> None:
    service = Service("a", "b")
    await service.client.info()
    a, b = service.pods.values()
    a.error = "refused"
    b.answer.set()
    assert service.client.is_open(service.now)
    await asyncio.gather(service.send("0"), service.send("1"), return_exceptions=True)
    assert not service.client.replicas["a"].backoff.open(service.now)
    assert service.client.is_open(service.now)
    b.error = "rollouts"
    await service.send("2")
    assert not service.client.is_open(service.now)
    service.now += 1.5
    assert service.client.is_open(service.now)
    a.error, a.answer = "", b.answer
    await asyncio.gather(service.send("3"), service.send("4"), return_exceptions=True)
    assert service.client.replicas["a"].backoff.failures == 0
    await service.client.close()


async def test_a_silent_pod_does_not_delay_the_others() -> None:
    service = Service("a", "b")
    service.pods["a"].is_silent = True
    assert (await asyncio.wait_for(service.client.info(), SECONDS)).ready
    service.pods["c"] = Pod()
    service.known = ["a", "b", "c"]
    await until(lambda: "c" in service.client.replicas and service.client.replicas["c"].is_ready)
    await asyncio.wait_for(service.client.close(), SECONDS)


async def test_a_lost_pod_gets_nothing_until_it_answers_again() -> None:
    service = Service("a", "b")
    await service.client.info()
    a, b = service.pods.values()
    a.is_lost = True
    with pytest.raises(ServiceUnavailable, match="connection reset"):
        await service.send("lost")
    assert (await service.client.info()).ready, "the other pod is there"
    b.answer.set()
    await asyncio.gather(*(service.send(str(n)) for n in range(3)))
    assert a.groups == []
    a.is_lost = False
    await until(lambda: service.client.replicas["a"].is_ready)
    await service.client.close()


async def test_a_pod_that_leaves_dns_and_is_silent_ends_its_requests() -> None:
    service = Service("a", "b")
    await service.client.info()
    a, b = service.pods.values()
    calls = [service.send("0"), service.send("1")]
    await settle()
    service.known = ["b"]
    a.is_lost = True
    with pytest.raises(ServiceUnavailable):
        await asyncio.wait_for(calls[0], SECONDS)
    assert "a" not in service.client.replicas
    b.answer.set()
    assert (await calls[1]).group_id == "1"
    await service.client.close()


@pytest.mark.parametrize("name", ["words", "numbers"])
async def test_an_address_that_another_process_has_now_gets_no_groups(name: str) -> None:
    service = Service("a", "b")
    await service.client.info()
    a, b = service.pods.values()
    # The same name: training and evaluation may use an environment with other arguments.
    service.known, a.name = ["b"], name
    await until(lambda: "a" not in service.client.replicas)
    calls = [service.send(str(number)) for number in range(2)]
    await settle()
    assert (a.groups, b.groups) == ([], ["0", "1"])
    b.answer.set()
    await asyncio.gather(*calls)
    await service.client.close()


async def test_a_pod_that_leaves_dns_may_complete_its_groups() -> None:
    service = Service("a", "b")
    await service.client.info()
    call = service.send("0")
    await settle()
    service.known = ["b"]
    await until(lambda: service.client.replicas["a"].dns_misses > 5)
    service.pods["a"].answer.set()
    assert (await call).group_id == "0"
    await until(lambda: "a" not in service.client.replicas)
    await service.client.close()


async def test_pods_that_answer_stay_in_use_while_dns_has_no_answer() -> None:
    service = Service("a")
    await service.client.info()
    service.known = []
    await until(lambda: service.client.replicas["a"].dns_misses > 5)
    assert (await service.client.info()).ready
    assert service.client.replicas["a"].is_ready
    await service.client.close()


async def test_a_pod_of_another_environment_is_not_used() -> None:
    service = Service("a")
    service.pods["a"].name = "numbers"
    with pytest.raises(ServiceUnavailable, match="address now belongs to a pod of environment numbers"):
        await service.client.info()
    await service.client.close()


async def test_without_a_pod_it_is_unreachable() -> None:
    service = Service("a")
    service.known = []
    for _ in range(2):
        with pytest.raises(ServiceUnavailable, match="no pod of environment words responds"):
            await service.client.info()
    with pytest.raises(ServiceUnavailable):
        await service.send("0")
    service.known = ["a"]
    await until(lambda: "a" in service.client.replicas and service.client.replicas["a"].is_ready)
    assert (await service.client.info()).ready
    await service.client.close()


async def test_a_problem_of_a_package_is_told_before_a_pod_that_loads() -> None:
    service = Service("a", "b")
    for pod in service.pods.values():
        pod.ready = False
    service.pods["b"].problem = Problem(reason="EnvironmentLoadFailed", message="no module")
    info = await service.client.info()
    assert info.problem is not None
    assert info.problem.reason == "EnvironmentLoadFailed"
    await service.client.close()


async def test_a_cancelled_group_is_no_longer_in_progress() -> None:
    service = Service("a")
    await service.client.info()
    call = service.send("0")
    await settle()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert service.client.replicas["a"].calls == set()
    assert service.client.replicas["a"].is_ready
    await service.client.close()


async def test_urls_of_pods_have_the_port_of_the_service() -> None:
    assert await pod_urls("http://127.0.0.1:8080") == ["http://127.0.0.1:8080"]
    assert await pod_urls("http://[::1]:81") == ["http://[::1]:81"]
