"""When the runs of a list are looked at."""

from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.objects import Obj
from rlrun_operator.planning.plan.observation import RunKey
from rlrun_operator.planning.policies.ending.resync_schedule import (
    ACTIVE_PAUSE_SECONDS,
    OLD_PAUSE_SECONDS,
    resync_schedule,
)

from tests.support.clocks import START
from tests.support.cluster_objects import run_object

NOW = START + timedelta(days=10)


def run_in(phase: Phase | None, before: timedelta | None, name: str, **changes: Any) -> Obj:
    status = RLRunStatus(phase=phase, completion_time=None if before is None else NOW - before)
    return {**run_object(name, uid=f"uid-{name}", **changes), "status": status.to_json_dict()}


def ended(name: str, before: timedelta, **changes: Any) -> Obj:
    return run_in(Phase.completed, before, name, **changes)


def pauses(*runs: Obj) -> dict[str, float]:
    return {key.name: pause for key, pause in resync_schedule(runs, NOW)}


@pytest.mark.parametrize("phase", [None, *(phase for phase in Phase if not phase.finished)])
def test_a_run_that_has_not_ended_is_looked_at_now(phase: Phase | None) -> None:
    old = [ended(f"old-{index}", timedelta(days=1)) for index in range(5)]
    assert pauses(*old, run_in(phase, timedelta(days=2), "active"))["active"] == 0


def test_active_runs_follow_one_after_the_other_and_new_or_deleted_ones_wait_for_none() -> None:
    active = [run_in(Phase.running, None, f"active-{index}") for index in range(1000)]
    deleted = run_in(Phase.running, None, "deleted")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = pauses(*active, run_in(None, None, "new"), deleted)
    assert (found["new"], found["deleted"]) == (0, 0)
    assert [found[f"active-{index}"] for index in (0, 1, 999)] == [0, ACTIVE_PAUSE_SECONDS, 999 * ACTIVE_PAUSE_SECONDS]


def test_old_runs_follow_one_after_the_other_the_newest_first() -> None:
    found = pauses(*(ended(str(days), timedelta(days=days)) for days in (3, 1, 2)))
    assert found == {"1": 0, "2": OLD_PAUSE_SECONDS, "3": 2 * OLD_PAUSE_SECONDS}


def test_a_run_that_ended_lately_or_is_deleted_may_have_pods() -> None:
    deleted = ended("deleted", timedelta(days=3))
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    unknown = run_in(Phase.failed, None, "unknown")
    old = [ended(f"old-{index}", timedelta(days=2)) for index in range(5)]
    lately = [ended(f"lately-{minutes}", timedelta(minutes=minutes)) for minutes in (1, 59)]
    found = pauses(*old, *lately, deleted, unknown)
    assert [found[name] for name in ("lately-1", "lately-59", "deleted", "unknown")] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("ttl", "pause"),
    [
        (60, 0),
        (2 * 86400 + 1, 1),
        (10 * 86400, 50 * OLD_PAUSE_SECONDS),
        ("wrong", 50 * OLD_PAUSE_SECONDS),
    ],
)
def test_a_time_to_live_is_not_exceeded(ttl: object, pause: float) -> None:
    newer = [ended(f"newer-{index}", timedelta(days=1)) for index in range(50)]
    run = ended("short", timedelta(days=2))
    run["spec"]["ttlSecondsAfterFinished"] = ttl
    assert pauses(*newer, run)["short"] == pause


def test_the_namespace_belongs_to_the_key() -> None:
    assert [key for key, _ in resync_schedule([ended("one", timedelta(days=1))], NOW)] == [RunKey("team", "one")]
