"""A run has children only while a queue admits it, and its deadlines count from the admission."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.api.run_status import RLRunStatus, RunQueue
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun_operator.planning.actions import PlanPart
from rlrun_operator.planning.beginning import end_attempt_without_slot, report_admission
from rlrun_operator.planning.observation import Admission, Admitted, Refused, RunKey, RunObservation, Waiting
from rlrun_operator.planning.plan_run import plan_run

from tests.support.clocks import START
from tests.support.cluster_objects import model_object, run_object, source_secret
from tests.support.expectations import present
from tests.support.fake_cluster import Crash, FakeCluster
from tests.support.fake_kubelet import end_orchestrator, step_kubelet
from tests.support.operator_world import World
from tests.support.run_states import at

WORKLOADS = ("ReplicaSet", "Job")
FULL = Problem(reason="RunLimitReached", message="10 runs have a place.")
TOO_LARGE = Problem(reason="ExceedsCapacity", message="The run needs 8 GPUs.")


class Answers:
    """A queue that answers what a test says."""

    def __init__(self, answer: Admission | None) -> None:
        self.given = answer

    def answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        return self.given

    def on_run_deleted(self, key: RunKey, pods: Iterable[Obj], now: datetime) -> bool:
        return False

    def on_reconcile_failed(self, key: RunKey, run: Obj | None, error: Exception, now: datetime) -> None:
        pass


def waiting(ahead: int | None = 3, problem: Problem = FULL) -> Waiting:
    return Waiting(problem, RunQueue(since=START, runs_ahead=ahead))


def admitted(when: float = 0) -> Admitted:
    return Admitted(RunQueue(since=START, admitted_time=at(when)))


@pytest.fixture
def queued(make_world: Callable[..., World]) -> Callable[..., tuple[World, Answers]]:
    def make(answer: Admission | None, **spec: Any) -> tuple[World, Answers]:
        world = make_world(**spec)
        answers = Answers(answer)
        world.queue = answers
        return world, answers

    return make


Queued = Callable[..., tuple[World, Answers]]


async def test_a_waiting_run_is_queued_and_has_no_child(queued: Queued) -> None:
    world, _ = queued(waiting())
    assert await world.reconcile(2) is None, "the queue wakes it"
    assert (world.status["phase"], world.status["reason"]) == ("Queued", "RunLimitReached")
    assert world.status["queue"] == {"since": "2026-01-01T00:00:00Z", "runsAhead": 3, "priority": 0}
    assert (world.condition("Admitted")["status"], world.condition("Admitted")["message"]) == ("False", FULL.message)
    assert "startTime" not in world.status
    assert world.cluster.all(*WORKLOADS, "ConfigMap", "Service", "NetworkPolicy", "ServiceAccount") == []
    assert [(e["reason"], e["type"]) for e in world.cluster.events] == [("Queued", "Normal")]


async def test_an_admission_is_written_before_the_first_child(queued: Queued) -> None:
    world, _ = queued(admitted())
    await world.reconcile()
    writes = [str(r) for r in world.cluster.requests if r.method != "GET"]
    assert writes[:2] == ["change RLRun team/reverse", "apply the status of RLRun team/reverse"]
    assert world.status["queue"]["admittedTime"] == "2026-01-01T00:00:00Z"
    assert world.condition("Admitted")["reason"] == "Admitted"
    assert len(world.cluster.all(*WORKLOADS)) == 4


async def test_an_operator_that_dies_after_the_admission_has_written_it(queued: Queued) -> None:
    world, _ = queued(admitted())
    world.cluster.crash_after = 2
    with pytest.raises(Crash):
        await world.reconcile()
    assert world.status["queue"]["admittedTime"] == "2026-01-01T00:00:00Z"
    assert world.cluster.all(*WORKLOADS, "ConfigMap", "ServiceAccount") == []


@pytest.mark.proves("startDeadlineSeconds")
async def test_the_start_deadline_counts_from_the_admission(queued: Queued) -> None:
    world, answers = queued(waiting(), startDeadlineSeconds=60)
    await world.reconcile()
    assert await world.phase(after=1000) == "Queued"
    answers.given = admitted(1000)
    await world.reconcile()
    assert (world.status["phase"], world.status["attempt"]) == ("Pending", 1)
    assert world.status["startTime"] == world.status["attemptStartTime"] == "2026-01-01T00:16:40Z"
    assert await world.phase(after=59) == "Pending"
    assert await world.phase(after=1) == "Failed"


@pytest.mark.parametrize("attempt", [1, 2])
async def test_time_that_a_run_waited_for_its_model_counts_toward_no_later_deadline(
    queued: Queued, attempt: int
) -> None:
    world, answers = queued(None, startDeadlineSeconds=60)
    if attempt == 2:
        await world.start()
        await world.change(3, suspend=True)
        world.change_spec(suspend=False)
    del world.cluster.objects["RLModel", "", "tiny-model"]
    await world.reconcile()
    assert world.status["reason"] == "ModelNotFound"
    world.cluster.put(model_object())
    world.clock.advance(50)
    answers.given = waiting()
    assert await world.phase() == "Queued"
    assert "attemptStartTime" not in world.status
    world.clock.advance(50)
    answers.given = admitted(100)
    await world.reconcile()
    assert (world.status["phase"], world.status["attempt"]) == ("Pending", attempt)
    assert world.status["attemptStartTime"] == "2026-01-01T00:01:40Z"


async def test_an_attempt_from_before_the_admission_begins_again(queued: Queued) -> None:
    world, answers = queued(None, startDeadlineSeconds=60)
    del world.cluster.objects["RLModel", "", "tiny-model"]
    await world.reconcile()
    world.cluster.put(model_object())
    world.clock.advance(50)
    answers.given = admitted(50)
    await world.reconcile()
    assert (world.status["attempt"], world.status["attemptStartTime"]) == (1, "2026-01-01T00:00:50Z")


async def test_an_attempt_that_began_with_its_admission_has_one_start_deadline(queued: Queued) -> None:
    world, _ = queued(admitted(20), startDeadlineSeconds=60)
    del world.cluster.objects["RLModel", "", "tiny-model"]
    for _ in range(2):
        await world.reconcile(after=20)
        assert world.status["attemptStartTime"] == "2026-01-01T00:00:20Z"
    assert await world.phase(after=40) == "Failed"


async def test_a_refused_run_fails_after_its_start_deadline(queued: Queued) -> None:
    world, _ = queued(Refused(TOO_LARGE), startDeadlineSeconds=60)
    assert await world.shown(2) == ("Pending", "ExceedsCapacity")
    assert world.condition("Admitted")["message"] == TOO_LARGE.message
    assert world.cluster.all(*WORKLOADS, "ConfigMap") == []
    assert ("ExceedsCapacity", "Warning") in [(e["reason"], e["type"]) for e in world.cluster.events]
    assert await world.shown(after=60) == ("Failed", "ExceedsCapacity")


async def test_a_run_that_loses_its_place_ends_its_attempt_and_gets_another_one(queued: Queued) -> None:
    world, answers = queued(admitted())
    await world.train()
    assert world.status["phase"] == "Running"
    world.clock.advance(30)
    answers.given = waiting(problem=Problem(reason="Preempted", message="A run of higher priority."))
    await world.reconcile()
    assert world.cluster.all(*WORKLOADS) == []
    assert (world.status["phase"], world.status["reason"]) == ("Queued", "Preempted")
    assert world.status["pastActiveSeconds"] == 30
    assert "attemptStartTime" not in world.status
    assert await world.phase(3) == "Queued"
    assert world.cluster.all("ConfigMap", "ServiceAccount") == []
    answers.given = admitted(60)
    await world.reconcile(2, after=60)
    assert (world.status["phase"], world.status["attempt"], world.status["restarts"]) == ("Pending", 2, 0)
    assert len(world.cluster.all(*WORKLOADS)) == 4


async def test_nothing_is_written_for_an_attempt_that_ends_without_its_place(queued: Queued) -> None:
    world, _ = queued(admitted())
    await world.train()
    observed = await world.reconciler()._observer.observe("team", "reverse")
    lost = replace(present(observed), admission=waiting())
    earlier = PlanPart(applies=tuple(world.cluster.all("Service")[:1]), writes_children=True)
    plan = plan_run(lost, world.settings, world.clock(), (lambda *_: earlier, end_attempt_without_slot))
    assert plan.deletes
    assert (plan.applies, plan.writes_children) == ((), False)


async def test_the_outcome_of_a_run_comes_before_the_loss_of_its_place(queued: Queued) -> None:
    world, answers = queued(admitted())
    await world.start()
    world.artifacts.folders = {}
    end_orchestrator(world.cluster, 0, "")
    answers.given = waiting()
    assert await world.phase() == "Completed"


async def test_without_a_queue_the_section_and_the_condition_go(queued: Queued) -> None:
    world, answers = queued(waiting())
    await world.reconcile()
    answers.given = None
    assert await world.phase() == "Pending"
    assert "queue" not in world.status
    assert world.status["reason"] != "RunLimitReached"
    assert world.condition("Admitted")["reason"] == "NotQueued"


async def test_a_run_that_no_queue_decides_about_has_no_trace_of_one(world: World) -> None:
    await world.start()
    assert "queue" not in world.status
    assert "Admitted" not in [c["type"] for c in world.status["conditions"]]


@pytest.mark.parametrize(
    ("known", "now", "written"),
    [(None, 500, 500), (500, 451, 500), (500, 449, 449), (500, 551, 551), (11, 10, 10), (3, 2, 2), (500, None, None)],
)
def test_the_number_of_runs_ahead_is_written_when_it_has_changed_enough(
    known: int | None, now: int | None, written: int | None
) -> None:
    stored = RLRunStatus(queue=RunQueue(since=START, runs_ahead=known))
    part = report_admission(RunObservation(run_object(), admission=waiting(now)), stored)
    assert present(part.status.fields["queue"]).runs_ahead == written


ANSWERS = st.lists(
    st.sampled_from(["waiting", "admitted", "refused", "none", "suspend", "resume", "pods", "outcome"]), max_size=12
)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(ANSWERS)
async def test_no_child_is_ever_created_without_an_admission_in_the_status(steps: list[str]) -> None:
    """Whatever a queue answers and users do: a create is preceded by a status with an admission."""
    world = World(FakeCluster(run_object(), model_object(), source_secret()))
    answers = Answers(waiting())
    world.queue = answers
    given = {"waiting": waiting(), "refused": Refused(TOO_LARGE)}
    for step in steps:
        world.clock.advance(5)
        if step == "admitted":
            answers.given = admitted((world.clock.now - START).total_seconds())
        elif step in given:
            answers.given = given[step]
        elif step in ("suspend", "resume"):
            world.change_spec(suspend=step == "suspend")
        elif step == "pods":
            step_kubelet(world.cluster)
        elif step == "outcome":
            end_orchestrator(world.cluster, 1, "")
        before = len(world.cluster.requests)
        await world.reconcile()
        made = [str(r) for r in world.cluster.requests[before:]]
        created = [phrase for phrase in made if phrase.startswith(("apply ReplicaSet", "apply Job"))]
        if not isinstance(answers.given, Admitted):
            assert not created, (step, made)
        elif created:
            assert (world.status["queue"] or {}).get("admittedTime")
