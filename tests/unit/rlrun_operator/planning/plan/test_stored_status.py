"""Fields of a stored status that are read alone."""

from datetime import UTC, datetime

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun_operator.planning.plan.stored_status import completion_time, is_finished, stored_phase

from tests.support.cluster_objects import run_object


@pytest.mark.parametrize("phase", Phase)
def test_the_fields_are_those_of_the_whole_status(phase: Phase) -> None:
    ended = datetime(2026, 1, 1, 12, tzinfo=UTC)
    run = {**run_object(), "status": RLRunStatus(phase=phase, completion_time=ended).to_json_dict()}
    assert (stored_phase(run), is_finished(run), completion_time(run)) == (phase, phase.finished, ended)


@pytest.mark.parametrize("status", [None, {}, {"phase": "Unheard", "completionTime": "yesterday"}])
def test_what_is_missing_or_unknown_is_none(status: dict[str, str] | None) -> None:
    run = {**run_object(), "status": status}
    assert (stored_phase(run), is_finished(run), completion_time(run)) == (None, False, None)
