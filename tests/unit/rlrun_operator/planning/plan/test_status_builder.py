"""Conditions and their times in the status of a run."""

from rlrun.kube.conditions import find_condition
from rlrun_operator.planning.plan.actions import ConditionChange, StatusChange
from rlrun_operator.planning.plan.status_builder import apply_change, transition_time

from tests.support.clocks import START
from tests.support.expectations import present
from tests.support.run_states import at, started


class TestConditions:
    def test_transition_time_moves_with_the_status_only(self) -> None:
        first = started(ConditionChange("Validated", False, "ModelNotFound", "a"))
        second = first.model_copy(update={"observed_generation": 2})
        invalid = StatusChange((ConditionChange("Validated", False, "SecretsMissing", "b"),))
        second = apply_change(second, invalid, at(10))
        assert transition_time(second, "Validated") == START
        valid = StatusChange((ConditionChange("Validated", True, "Valid"),))
        second = apply_change(second, valid, at(10))
        assert transition_time(second, "Validated") == at(10)
        assert present(find_condition(second, "Validated")).observed_generation == 2

    def test_conditions_have_a_fixed_order(self) -> None:
        status = started(*(ConditionChange(kind, False, "X") for kind in ("Failed", "Running", "Validated")))
        assert [c.type for c in status.conditions] == ["Validated", "Running", "Failed"]
