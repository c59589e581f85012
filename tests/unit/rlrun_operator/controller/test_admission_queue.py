from rlrun.protocol.problem import Problem
from rlrun_operator.config.settings import OperatorSettings, QueueSettings
from rlrun_operator.controller.admission_queue import AdmissionQueue
from rlrun_operator.kueue.workload import KueueObservation
from rlrun_operator.planning.observation import Admitted, Refused, RunKey, RunObservation, Waiting

from tests.support.clocks import START
from tests.support.cluster_objects import model_object, run_object
from tests.support.operator_world import SETTINGS

KEY = RunKey("team", "reverse")
LIMITED = SETTINGS.model_copy(update={"queue": QueueSettings(max_runs=1)})


def new_queue(settings: OperatorSettings) -> AdmissionQueue:
    return AdmissionQueue(settings, lambda _: None)


def test_a_run_with_a_local_queue_takes_no_place_of_the_platform() -> None:
    queue, models = new_queue(LIMITED), (model_object(),)
    problem = Problem(reason="KueueUnavailable", message="not installed")
    observation = RunObservation(run_object(queueName="team-a"), kueue=KueueObservation(problem=problem))
    assert queue.answer(observation, START) == Refused(problem)
    assert isinstance(queue.answer(RunObservation(run_object(), models=models), START), Admitted)
    assert isinstance(queue.answer(RunObservation(run_object("next", uid="uid-2"), models=models), START), Waiting)


def test_without_a_queue_of_the_platform_all_other_runs_begin_at_once() -> None:
    queue = new_queue(SETTINGS)
    assert queue.answer(RunObservation(run_object()), START) is None
    assert not queue.on_run_deleted(KEY, [], START)
    queue.on_reconcile_failed(KEY, None, ValueError(), START)
