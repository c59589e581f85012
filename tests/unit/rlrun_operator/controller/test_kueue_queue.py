from datetime import datetime

from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun_operator.controller.kueue_queue import KueueQueue
from rlrun_operator.kueue.observation import KueueObservation
from rlrun_operator.planning.plan.admission import Admission, Refused
from rlrun_operator.planning.plan.observation import RunKey, RunObservation

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.operator_world import SETTINGS

FULL = Refused(Problem(reason="ExceedsCapacity", message="too large"))
KEY = RunKey("team", "reverse")


class Other:
    """A queue that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def answer(self, observation: RunObservation, now: datetime) -> Admission | None:
        self.asked.append("answer")
        return FULL

    def on_run_deleted(self, key: RunKey, pods: object, now: datetime) -> bool:
        self.asked.append("gone")
        return True

    def on_reconcile_failed(self, key: RunKey, run: Obj | None, error: Exception, now: datetime) -> None:
        self.asked.append("failed")


def test_a_run_with_a_local_queue_takes_no_place_of_the_platform() -> None:
    other = Other()
    problem = Problem(reason="KueueUnavailable", message="not installed")
    observation = RunObservation(run_object(queueName="team-a"), kueue=KueueObservation(problem=problem))
    assert KueueQueue(SETTINGS, other).answer(observation, START) == Refused(problem)
    assert other.asked == []


def test_all_other_runs_are_the_platforms() -> None:
    other = Other()
    queue = KueueQueue(SETTINGS, other)
    assert queue.answer(RunObservation(run_object()), START) == FULL
    assert queue.on_run_deleted(KEY, [], START)
    queue.on_reconcile_failed(KEY, None, ValueError(), START)
    assert other.asked == ["answer", "gone", "failed"]


def test_without_a_queue_of_the_platform_all_other_runs_begin_at_once() -> None:
    queue = KueueQueue(SETTINGS)
    assert queue.answer(RunObservation(run_object()), START) is None
    assert not queue.on_run_deleted(KEY, [], START)
    queue.on_reconcile_failed(KEY, None, ValueError(), START)
