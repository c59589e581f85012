"""Kills at an API server: lives differ by a few writes, so the last positions need not be reached, and all others must.

The life itself is not played here: it ends after so many writes and ticks, and strikes where the rule says.
"""

from collections.abc import Callable

import pytest

from tests.chaos.apiserver import kills, processes
from tests.chaos.report import failures, table
from tests.chaos.runner import run_one
from tests.chaos.scenario import Outcome, Result, Scenario
from tests.chaos.unit.faults import Call, Gate, Rule
from tests.support.fake_cluster import Crash

Played = Callable[[object, int, int], Result]


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    """Plays a scenario with a life of so many writes, one in each tick but the last, which has the rest."""

    def play(scenario: object, writes: int, ticks: int) -> Result:
        async def live(_: object, rule: Rule) -> Gate:
            calls = [Call(n, "cluster", "patch", min(n, ticks - 1)) for n in range(writes)]
            try:
                for call in calls:
                    rule.before(call)
                    rule.after(call)
            except Crash:
                pass
            return Gate(rule, calls)

        monkeypatch.setattr(kills, "live", live)
        return run_one(Scenario("kill", "apiserver", scenario))  # type: ignore[arg-type]

    return play


def test_kill_at_a_position_that_every_life_has_must_strike(played: Played) -> None:
    n = kills.WRITES - kills.WRITES_MORE_OR_LESS - 1
    assert played(kills.after_write(n), n + 1, 1).outcome is Outcome.survived
    assert played(kills.after_write(n), n, 1).outcome is Outcome.not_struck
    n = kills.WRITING_TICKS - kills.WRITING_TICKS_MORE_OR_LESS - 1
    assert played(kills.before_writing(n), 60, n + 1).outcome is Outcome.survived
    assert played(kills.before_writing(n), 60, n).outcome is Outcome.not_struck


def test_kill_at_one_of_the_last_positions_may_come_too_late(played: Played) -> None:
    for n in range(kills.WRITES - kills.WRITES_MORE_OR_LESS, kills.WRITES):
        assert played(kills.after_write(n), n + 1, 1).outcome is Outcome.survived
        assert played(kills.after_write(n), n, 1).outcome is Outcome.not_reached
    for n in range(kills.WRITING_TICKS - kills.WRITING_TICKS_MORE_OR_LESS, kills.WRITING_TICKS):
        assert played(kills.before_writing(n), 60, n + 1).outcome is Outcome.survived
        assert played(kills.before_writing(n), 60, n).outcome is Outcome.not_reached


def test_kill_that_came_too_late_is_no_failure_and_no_survivor(played: Played) -> None:
    result = played(kills.after_write(kills.WRITES - 1), kills.WRITES - 1, 1)
    assert failures([result]) == []
    assert f"the operator writes {kills.WRITES} times: this life ended before" in result.detail
    assert "1 scenarios: 1 not reached" in table([result])


def test_a_life_may_exceed_the_expected_writes_by_the_tolerance(played: Played) -> None:
    writes, ticks = kills.WRITES + kills.WRITES_MORE_OR_LESS, kills.WRITING_TICKS + kills.WRITING_TICKS_MORE_OR_LESS
    assert played(kills.undisturbed, writes, ticks).outcome is Outcome.survived
    longer = played(kills.undisturbed, writes + 1, ticks)
    assert longer.outcome is Outcome.lost
    assert "raise WRITES" in longer.detail
    assert played(kills.undisturbed, writes, ticks + 1).outcome is Outcome.lost


def test_processes_are_killed_at_requests_that_every_life_has() -> None:
    found = [s.name for seed in range(100) for s in processes.scenarios(seed) if "process-killed" in s.name]
    positions = [int(name.partition("/")[2].partition("-")[0]) for name in found]
    ticks = kills.WRITING_TICKS - kills.WRITING_TICKS_MORE_OR_LESS
    assert max(positions) <= kills.WRITES - kills.WRITES_MORE_OR_LESS + ticks * 20
    assert max(positions) <= processes.LIFE_REQUESTS
