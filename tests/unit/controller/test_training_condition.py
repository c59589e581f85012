"""The diagnosis of the training as the run's condition TrainingHealthy."""

import pytest
from rlrun.controller.plan.draft import Draft
from rlrun.controller.plan.progress import show_warnings
from rlrun.schema.diagnosis import Hint, Trouble
from rlrun.schema.kube import ConditionStatus
from rlrun.schema.wire import Problem, RunPhase, RunStatus

from tests.unit.controller.world import START

OTHER = Problem(reason="RolloutErrors", message="3 rollouts failed")


def told(*warnings: Problem, step: int = 12) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=100, warnings=list(warnings))


def draft_of(*looks: RunStatus) -> Draft:
    draft = Draft(None, 1, START)
    for look in looks:
        show_warnings(draft, look)
    return draft


def shown(*looks: RunStatus) -> tuple[ConditionStatus, str] | None:
    found = draft_of(*looks).condition("TrainingHealthy")
    return (found.status, found.reason) if found else None


@pytest.mark.parametrize("trouble", Trouble)
def test_every_trouble_makes_the_condition_false(trouble: Trouble) -> None:
    problem = Problem(reason=trouble, message="what to do")
    assert shown(told(OTHER, problem)) == (ConditionStatus.false, trouble)


@pytest.mark.parametrize("hint", Hint)
def test_a_hint_leaves_the_run_healthy(hint: Hint) -> None:
    draft = draft_of(told(Problem(reason=hint, message="more replicas")))
    found = draft.condition("TrainingHealthy")
    assert found is not None
    assert (found.status, found.reason, found.message) == (ConditionStatus.true, hint, "more replicas")
    assert draft.condition("Warnings") is None


def test_the_worst_trouble_is_the_reason_and_all_are_told() -> None:
    flat = Problem(reason=Trouble.reward_flat_at_zero, message="nothing to learn from.")
    slow = Problem(reason=Trouble.throughput_stalled, message="steps are slow.")
    found = draft_of(told(flat, slow)).condition("TrainingHealthy")
    assert found is not None
    assert found.reason == "RewardFlatAtZero"
    assert found.message == "nothing to learn from. steps are slow."


def test_it_becomes_healthy_again_and_other_warnings_are_not_its_business() -> None:
    flat = Problem(reason=Trouble.reward_flat_at_zero, message="nothing to learn from.")
    draft = draft_of(told(flat), told(OTHER))
    found = draft.condition("TrainingHealthy")
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.true, "NothingUnusual")
    warnings = draft.condition("Warnings")
    assert warnings is not None
    assert warnings.reason == "RolloutErrors"


def test_before_the_first_step_nothing_is_known() -> None:
    assert shown(told(step=0)) is None
