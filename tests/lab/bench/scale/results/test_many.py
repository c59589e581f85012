"""Rows of an operator that starts beside thousands of runs."""

from dataclasses import replace

from bench.scale.results.many import ManyRepetition, results_of
from bench.scale.results.rows import MIB
from tests.lab.bench.scale.results.samples import IDLE

SWEEP = replace(IDLE, requests=3000)
FOUND = ManyRepetition(1000, 9000, 4.0, 25.0, IDLE, SWEEP, IDLE, IDLE, 290 * MIB)


def test_the_aims_of_ten_thousand_runs() -> None:
    rows = results_of([FOUND])
    assert [row.ratio for row in rows] == [25.0, 0, 290, 60.0, 1.0]
    assert [row.aim.met_by(row.ratio) for row in rows if row.aim] == [True] * 4
    assert rows[0].figures == {"runs": 1000, "finished": 9000, "better": "lower"}


def test_a_write_at_any_time_counts() -> None:
    for name in ("start", "later", "quiet"):
        row = results_of([replace(FOUND, **{name: replace(IDLE, writes=1, written={"apply rlmodels": 1})})])[1]
        assert row.aim is not None
        assert (row.ratio, row.aim.met_by(row.ratio)) == (1, False)
        assert row.notes == ("1 x apply rlmodels",)


def test_slow_and_large_operators_miss() -> None:
    found = replace(FOUND, start_seconds=31, resident_bytes=301 * MIB, quiet=replace(IDLE, requests=1500))
    assert [row.aim.met_by(row.ratio) for row in results_of([found]) if row.aim] == [False, True, False, False]
