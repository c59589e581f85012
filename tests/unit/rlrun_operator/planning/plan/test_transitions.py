"""Events for the changes of a run's status."""

from rlrun.api.base.phases import Phase
from rlrun.api.run_status import ArtifactEntry, RLRunStatus
from rlrun.kube.events import EventRecord
from rlrun_operator.planning.plan.actions import ConditionChange
from rlrun_operator.planning.plan.transitions import transitions

from tests.support.run_states import started


def test_unchanged_status_creates_no_event() -> None:
    status = RLRunStatus(phase=Phase.running)
    assert transitions(status, status.model_copy(deep=True)) == ()


def test_failure_is_a_warning_with_its_reason() -> None:
    new = RLRunStatus(phase=Phase.failed, reason="TrainerOutOfMemory", message="more memory")
    assert transitions(RLRunStatus(phase=Phase.running), new) == (
        EventRecord("TrainerOutOfMemory", "The run failed: more memory", warning=True),
    )


def test_problem_is_recorded_as_one_event() -> None:
    status = started(ConditionChange("TrainerReady", False, "ImagePullFailed", "x"))
    assert [n.reason for n in transitions(started(), status)] == ["ImagePullFailed"]
    assert transitions(status, status) == ()


def test_events_tell_of_a_new_attempt_and_of_new_checkpoints_oldest_first() -> None:
    def status(attempt: int, *steps: int) -> RLRunStatus:
        listed = [ArtifactEntry(step=step, name=f"step-{step}", uri=f"s3://rlrun/{step}") for step in steps]
        return RLRunStatus(attempt=attempt, checkpoints=listed)

    assert [(e.reason, e.message) for e in transitions(status(1, 2, 1), status(2, 4, 3, 2, 1))] == [
        ("AttemptStarted", "Attempt 2 continues from the newest checkpoint."),
        ("CheckpointReady", "Checkpoint step-3 of step 3 is ready."),
        ("CheckpointReady", "Checkpoint step-4 of step 4 is ready."),
    ]
    assert transitions(status(2, 2, 1), status(2, 2)) == ()
