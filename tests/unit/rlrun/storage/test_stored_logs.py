"""Copies of logs are found by their paths."""

import pytest
from rlrun.storage.layout import RunLayout
from rlrun.storage.stored_logs import MAIN_CONTAINERS, parse_log_path, select_logs
from rlrun_operator.resources.base.naming import RunIdentity


def test_stored_logs_are_selected_by_the_operators_names_and_paths() -> None:
    identity = RunIdentity("team", "first", "uid", 2, 1)
    layout = RunLayout.of("b", "p", "team", "uid")
    names = {
        "trainer": [identity.trainer, identity.trainer_job],
        "inference": [identity.inference],
        "orchestrator": [identity.orchestrator_job],
        "environment": [identity.environment(0, "train"), identity.environment(3, "eval")],
    }
    for role, owners in names.items():
        for owner in owners:
            for previous in (False, True):
                place = layout.log(2, f"{owner}-5c-x", MAIN_CONTAINERS[role], previous)
                file = str(place).removeprefix(f"{layout.logs}/")
                (found,) = select_logs([file], "first", role, None, previous)
                assert (found.attempt, found.previous) == (2, previous)
                others = [other for other in MAIN_CONTAINERS if other != role]
                assert not any(select_logs([file], "first", other, None, previous) for other in others)


def test_copies_of_one_environment_are_selected() -> None:
    files = [f"attempt-1/first-{component}-x/environment.log" for component in ("env-0", "env-1", "env-10", "eval-0")]
    found = select_logs(files, "first", "environment", None, previous=False, components=["env-1"])
    assert [log.pod for log in found] == ["first-env-1-x"]


def test_a_run_whose_name_is_not_known_has_its_logs() -> None:
    files = ["attempt-1/first-trainer-x/trainer.log", "attempt-2/first-env-0-x/environment.log"]
    assert [log.pod for log in select_logs(files, None, "trainer", None, previous=False)] == ["first-trainer-x"]


@pytest.mark.parametrize(
    "file", ["attempt-1/../trainer.log", "attempt-²/a-b/trainer.log", "attempt-1/A/trainer.log", "attempt-1/a/b/c.log"]
)
def test_other_files_are_no_logs(file: str) -> None:
    assert parse_log_path(file) is None
