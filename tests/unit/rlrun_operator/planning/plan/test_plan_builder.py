"""Policies return parts of a plan, which are merged in the order of the policies."""

import copy
from collections.abc import Callable
from datetime import datetime

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.conditions import find_condition
from rlrun.kube.events import EventRecord
from rlrun.kube.objects import ObjectRef
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.plan.actions import (
    ConditionChange,
    ConfigRefresh,
    Plan,
    PlanPart,
    StatusChange,
    StatusFields,
)
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.plan.plan_builder import PlanBuilder
from rlrun_operator.planning.plan.status_builder import apply_change
from rlrun_operator.planning.plan_run import POLICIES, Policy, plan_run

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.fake_kubelet import crash_container, end_orchestrator
from tests.support.fake_poller import training
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import run_spec

REFRESH = ConfigRefresh("pod", "uid", "digest")
OBJECT = {"kind": "ReplicaSet", "metadata": {"name": "reverse-trainer"}}


def policy(part: PlanPart | None) -> Policy:
    def decide(
        observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime, /
    ) -> PlanPart | None:
        return part

    return decide


def plan(*parts: PlanPart | None) -> Plan:
    return plan_run(RunObservation(run_object()), SETTINGS, START, [policy(part) for part in parts])


def phase(value: Phase) -> PlanPart:
    return PlanPart(status=StatusChange(fields={"phase": value}))


def test_status_fields_are_those_of_the_status() -> None:
    own = {"conditions", "observed_generation"}
    assert StatusFields.__annotations__.keys() == RLRunStatus.model_fields.keys() - own


def test_a_change_leaves_the_status_that_it_is_applied_to_as_it_was() -> None:
    before = RLRunStatus(phase=Phase.pending)
    kept = before.model_copy(deep=True)
    change = StatusChange((ConditionChange("Running", True, "Running"),), {"phase": Phase.running})
    after = apply_change(before, change, START)
    assert before == kept
    assert after.phase is Phase.running
    assert find_condition(after, "Running")


def test_parts_are_merged_in_order_and_the_later_change_of_a_field_holds() -> None:
    first = PlanPart(deletes=(ObjectRef("Job", "a"),), events=(EventRecord("First", "m"),))
    found = plan(first, phase(Phase.pending), None, PlanPart(deletes=(ObjectRef("Job", "b"),)), phase(Phase.running))
    assert [ref.name for ref in found.deletes] == ["a", "b"]
    assert found.status
    assert found.status.phase is Phase.running
    assert "First" in [note.reason for note in found.events]


def test_a_final_part_ends_the_plan() -> None:
    found = plan(PlanPart(status=StatusChange(fields={"phase": Phase.stopped}), final=True), phase(Phase.running))
    assert found.status
    assert found.status.phase is Phase.stopped


def test_the_end_of_an_attempt_discards_earlier_writes_and_keeps_its_own() -> None:
    begun = PlanPart(applies=(OBJECT,), refreshes=(REFRESH,), deletes=(ObjectRef("Job", "old"),))
    ended = plan(begun, PlanPart(discard_writes=True, applies=({"kind": "ConfigMap"},)))
    assert (ended.applies, ended.refreshes) == (({"kind": "ConfigMap"},), ())
    assert [ref.name for ref in ended.deletes] == ["old"]


@pytest.mark.parametrize(("times", "expected"), [((None, None), None), ((30.0, None), 30.0), ((30.0, 2.0), 2.0)])
def test_the_earliest_requeue_of_all_parts_counts(times: tuple[float | None, ...], expected: float | None) -> None:
    assert plan(*(PlanPart(requeue_after=t) for t in times)).requeue_after == expected


def test_each_policy_sees_the_changes_of_those_before_it() -> None:
    seen: list[Phase | None] = []

    def look(
        observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime, /
    ) -> None:
        seen.append(status.phase)

    plan_run(RunObservation(run_object()), SETTINGS, START, [look, policy(phase(Phase.running)), look])
    assert seen == [None, Phase.running]


def unchanging(decide: Policy) -> Policy:
    """Fails when the policy changes one of its arguments."""

    def checked(
        observation: RunObservation, status: RLRunStatus, spec: RLRunSpec, settings: OperatorSettings, now: datetime, /
    ) -> PlanPart | None:
        before = copy.deepcopy((observation, status, spec))
        part = decide(observation, status, spec, settings, now)
        assert (observation, status, spec) == before, decide
        assert part == decide(observation, status, spec, settings, now), "the same input gives the same part"
        return part

    return checked


async def check(world: World) -> None:
    """Reconcile with every policy watched."""
    observer = Observer(RunObjects(world.cluster), world.artifacts, world.poller, world.settings)
    observation = present(await observer.observe("team", "reverse"))
    plan_run(observation, world.settings, world.clock(), [unchanging(p) for p in POLICIES])
    await world.reconcile()


@pytest.mark.parametrize("end", ["Completed", "Failed", "Suspended", "Restarting"])
async def test_policies_do_not_modify_their_inputs(make_world: Callable[..., World], end: str) -> None:
    world = make_world(
        checkpoints={"keepCloud": 1}, failurePolicy={"rules": [{"action": "RestartRun", "exitCodes": [9]}]}
    )
    for _ in range(2):
        await check(world)
    await world.start()
    world.poller.answer = training()
    for step in (1, 2):
        world.artifacts.folders[f"s3://rlrun/team/uid-1/checkpoints/step-{step:06d}"] = manifest(step)
    await check(world)
    await act(world, end)
    await check(world)
    assert end in (world.status["phase"], world.status["reason"])
    await check(world)


async def act(world: World, end: str) -> None:
    if end == "Suspended":
        world.change_spec(suspend=True)
    elif end == "Restarting":
        crash_container(world.cluster, "reverse-trainer-0", 9)
    else:
        end_orchestrator(world.cluster, 0 if end == "Completed" else 64, "")


@pytest.mark.parametrize(
    ("policy", "has_finalizer", "added"),
    [
        ("Delete", False, True),
        ("Delete", True, False),
        ("Retain", True, False),
        ("Retain", False, True),
        (None, True, False),
        (None, False, False),
    ],
)
def test_every_run_with_a_valid_spec_has_the_finalizer_that_records_its_deletion(
    policy: str | None, has_finalizer: bool, added: bool
) -> None:
    run = run_object()
    run["metadata"]["finalizers"] = ["rlrun.dev/artifacts"] if has_finalizer else []
    built = PlanBuilder(RunObservation(run), START).build(run_spec(artifactPolicy=policy) if policy else None)
    assert (built.add_finalizer, built.remove_finalizer) == (added, False)
