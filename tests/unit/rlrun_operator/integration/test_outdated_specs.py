"""Runs whose spec an earlier version accepted: one of this version refuses it, for a rule or for a field."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun_operator.planning.policies.spec.validation import MAX_KEPT, MAX_SPEC

from tests.support.clocks import START
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.operator_world import World

OUTDATED: tuple[dict[str, Any], ...] = (
    {"maxAsyncLevel": 4, "maxOffPolicySteps": 2},
    {"learningRate": 2.0},
    {"env": [{"id": "reverse"}], "model": "", "stallDeadlineSeconds": 10**9, "unknown": 1},
    {"env": [{"id": "rlrun/reverse-text", "args": {"text": "x" * MAX_SPEC}}]},
)
"""Specs that a newer version refuses: by a new rule, by a narrower field, by size."""

EVALUATION: dict[str, Any] = {"env": [{"id": "rlrun/reverse-text", "rolloutTimeoutSeconds": 14400}]}
"""An evaluation whose rollouts may take longer than the stall deadline."""


def report(step: int, phase: RunPhase = RunPhase.running) -> RunStatus:
    return RunStatus(phase=phase, step=step, max_steps=10, started_at=START, last_step_time=START)


@pytest.fixture(params=OUTDATED, ids="".join)
async def outdated(request: pytest.FixtureRequest, make_world: Callable[..., World]) -> World:
    """A run that trains when an operator of a new version starts, which refuses its spec."""
    world = make_world(activeDeadlineSeconds=10_000)
    await world.start()
    world.poller.answer = report(3)
    await world.reconcile()
    world.change_spec(**request.param)
    await world.reconcile()
    assert world.status["phase"] == "Running"
    assert len(world.cluster.all("ReplicaSet")) == 3
    return world


async def test_it_can_be_stopped(outdated: World) -> None:
    outdated.change_spec(stop=True)
    await outdated.reconcile()
    assert (outdated.status["phase"], outdated.status["reason"]) == ("Stopped", "Stopped")
    assert outdated.cluster.all("ReplicaSet", "Job", "Pod") == []


async def test_it_can_be_suspended_and_stays_suspended(outdated: World) -> None:
    outdated.change_spec(suspend=True)
    await outdated.reconcile()
    assert outdated.cluster.all("ReplicaSet", "Job", "Pod") == []
    for _ in range(3):
        assert (outdated.status["phase"], outdated.status["attempt"]) == ("Suspended", 1)
        outdated.clock.advance(10_000)
        await outdated.reconcile()


@pytest.mark.parametrize(("code", "phase"), [(0, "Completed"), (64, "Failed")])
async def test_it_ends_with_its_orchestrator(outdated: World, code: int, phase: str) -> None:
    end_orchestrator(outdated.cluster, code, report(10, RunPhase.completed).model_dump_json(by_alias=True))
    outdated.clock.advance(200)
    await outdated.reconcile(2)
    assert (outdated.status["phase"], outdated.status["progress"]["step"]) == (phase, 10)
    assert outdated.cluster.all("ReplicaSet") == []


async def test_it_trains_until_its_deadline(outdated: World) -> None:
    for step in (4, 5, 6):
        outdated.clock.advance(3000)
        outdated.poller.answer = report(step).model_copy(update={"last_step_time": outdated.clock()})
        again = await outdated.reconcile()
        assert (outdated.status["phase"], outdated.status["progress"]["step"]) == ("Running", step)
        assert again is not None
        assert again <= 1000
    outdated.clock.advance(1000)
    await outdated.reconcile()
    assert (outdated.status["phase"], outdated.status["reason"]) == ("Failed", "ActiveDeadlineExceeded")


async def test_it_is_left_alone_while_it_trains(outdated: World) -> None:
    world = outdated.follow()
    world.poller.watches = True
    begin, looks, world.artifacts.lists = world.clock(), 0, 0
    while (world.clock() - begin).total_seconds() < 600:
        again = await world.reconcile()
        assert again is not None
        world.clock.advance(again)
        looks += 1
    assert world.status["phase"] == "Running"
    assert looks <= 15
    assert world.artifacts.lists <= 2


@pytest.mark.parametrize(
    "changes",
    [
        {"eval": {**EVALUATION, "unknown": 1}},
        {"eval": {**EVALUATION, "env": [{**EVALUATION["env"][0], "args": {"text": "x" * MAX_KEPT}}]}, "unknown": 1},
        {"maxSteps": 10**9},
    ],
    ids=["with an unknown key", "too large", "with a refused last step"],
)
async def test_its_last_evaluation_has_its_time(make_world: Callable[..., World], changes: dict[str, Any]) -> None:
    world = make_world(maxSteps=10, eval=EVALUATION)
    await world.start()
    world.poller.answer = report(10)
    await world.reconcile()
    world.change_spec(**changes)
    world.clock.advance(90 * 60)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Running", "InvalidSpec")


async def test_its_start_has_the_time_that_a_later_version_allows(make_world: Callable[..., World]) -> None:
    world = make_world()
    await world.start()
    world.change_spec(startDeadlineSeconds=10**9)
    world.clock.advance(3700)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "InvalidSpec")


async def test_rules_that_are_new_do_not_keep_it_from_training(make_world: Callable[..., World]) -> None:
    world = make_world()
    await world.start()
    world.poller.answer = report(3)
    await world.reconcile()
    for suspends in (True, False):
        world.change_spec(suspend=suspends, **OUTDATED[0])
        await world.reconcile(2)
    step_kubelet(world.cluster)
    world.poller.answer = report(4)
    await world.reconcile()
    assert (world.status["phase"], world.status["attempt"], world.status["progress"]["step"]) == ("Running", 2, 4)


@pytest.mark.parametrize("wrong", OUTDATED, ids="".join)
async def test_a_run_that_never_was_valid_has_no_pods(make_world: Callable[..., World], wrong: dict[str, Any]) -> None:
    world = make_world(startDeadlineSeconds=60, **wrong)
    await world.reconcile(3)
    assert (world.status["phase"], world.status["reason"]) == ("Pending", "InvalidSpec")
    assert world.cluster.all("ReplicaSet", "Job", "ConfigMap") == []
    world.clock.advance(60)
    await world.reconcile()
    assert (world.status["phase"], world.status["reason"]) == ("Failed", "InvalidSpec")
