"""Environments with several pods, and with a limit of their rollouts in progress, in whole runs."""

import asyncio

import pytest
from rlrun.protocol.environment import GroupRequest

from tests.support.fake_environment import FakeEnvironment
from tests.support.run_processes import World


@pytest.mark.proves("env.replicas")
async def test_groups_are_spread_over_the_pods(world: World) -> None:
    first, second = world.environments["words"], FakeEnvironment("words")
    world.pods["words"] = [second]
    world.spec["env"] = [{"id": "owner/words", "replicas": 2}]
    await world.start()
    assert await world.run() == 0
    assert world.last_word.groups.trained == 10
    assert first.groups["train"] >= 3
    assert second.groups["train"] >= 3


@pytest.mark.parametrize("is_in_dns", [True, False])
async def test_a_pod_that_is_lost_costs_its_groups_only(world: World, is_in_dns: bool) -> None:
    first, second = world.environments["words"], FakeEnvironment("words")
    world.pods["words"] = [second]
    world.spec["env"] = [{"id": "owner/words", "replicas": 2}]
    lost = list[GroupRequest]()

    async def lose(request: GroupRequest, turn: int) -> None:
        if not first.groups["train"]:
            return  # Both pods have groups when one is lost.
        lost.append(request)
        second.is_lost = True
        if not is_in_dns:
            world.addresses[world.urls["words"]] = [world.urls["words"]]
            await asyncio.Event().wait()  # The pod's node is gone: its connections are silent.

    second.between_turns = lose
    await world.start()
    assert await world.run() == 0
    groups = {request.group_id: request.example_index for request in lost}
    assert 1 <= len(groups) <= 4
    end = world.last_word
    assert end.groups.trained == 10
    assert end.groups.errored <= len(groups), "the groups of the other pod are not lost"
    # Their examples are sampled again.
    assert set(groups.values()) <= {request.example_index for request in first.requests}


async def test_a_pod_that_starts_later_gets_groups(world: World) -> None:
    first, second = world.environments["words"], FakeEnvironment("words", away=True)
    world.pods["words"] = [second]
    world.spec |= {"env": [{"id": "owner/words", "replicas": 2}], "maxSteps": 20}

    async def start(request: GroupRequest, turn: int) -> None:
        second.away = len(first.requests) < 3

    first.between_turns = start
    await world.start()
    assert await world.run() == 0
    assert second.groups["train"]


@pytest.mark.proves("eval.env.replicas", "eval.env.maxConcurrent")
async def test_evaluations_use_all_pods_and_keep_the_limit(world: World) -> None:
    first, second = FakeEnvironment("exam"), FakeEnvironment("exam")
    world.eval_environments["exam"], world.pods["exam"] = first, [second]
    entry = {"id": "owner/exam", "replicas": 2, "maxConcurrent": 2, "rolloutsPerExample": 1, "numExamples": 3}
    world.spec["eval"] = {"interval": 1, "env": [entry]}
    await world.start()
    assert await world.run() == 0
    assert first.groups["eval"]
    assert second.groups["eval"]
    assert first.most_rollouts == second.most_rollouts == 1, "two at a time, in two pods"


@pytest.mark.proves("env.maxConcurrent")
async def test_an_environment_keeps_its_limit_and_others_get_the_rest(world: World) -> None:
    world.environments["sums"] = FakeEnvironment("sums")
    words, sums = world.environments.values()
    world.spec |= {
        "env": [{"id": "owner/words", "maxConcurrent": 7}, {"id": "owner/sums"}],
        "batchSize": 16,
        "val": {"interval": 1, "numExamples": 3, "rolloutsPerExample": 2},
    }
    in_flight = asyncio.Event()

    async def slow(request: GroupRequest, turn: int) -> None:
        # The first group waits until the other environment has more groups than it would have had in its share.
        if sums.groups["train"] < 7:
            await in_flight.wait()

    async def count(request: GroupRequest, turn: int) -> None:
        if sums.groups["train"] >= 7:
            in_flight.set()

    words.between_turns, sums.between_turns = slow, count
    await world.start()
    assert await world.run() == 0
    assert words.groups["train"]
    assert words.groups["eval"]
    assert words.most_rollouts <= 7
    assert sums.most_rollouts > 7
