"""Rows of a scenario, from the figures of its repetitions."""

import inspect
import re
import sys

import pytest

from bench.report import at_most
from bench.scale.__main__ import SCENARIOS
from bench.scale.scenarios import steps
from bench.scale.scenarios.scenario import HIGHER, FigureRow, results_of
from bench.scale.testbed.readings import Reading

ROWS = (
    FigureRow("rate", "{runs} runs: pods per second", "rate", "x", None, "{seconds:.1f} s; {control_plane}", HIGHER),
    FigureRow("start", "start of an operator", "seconds", "s", at_most(30.0)),
)


def test_the_number_of_a_row_is_the_median_of_all_repetitions() -> None:
    found = [{"runs": 100, "rate": rate, "seconds": seconds} for rate, seconds in ((1, 40), (3, 20), (2, 31))]
    rate, start = results_of(ROWS, found, [0.1, 0.1, 0.2])
    assert (rate.ratio, list(rate.repetitions), rate.figures) == (2, [1, 3, 2], {"runs": 100, "better": "higher"})
    assert rate.what == "100 runs: pods per second"
    assert rate.notes[0].startswith("31.0 s; controller manager and scheduler with 300 requests/s")
    assert (list(rate.samples), list(start.samples)) == (found, [])
    assert start.aim is not None
    assert not start.aim.met_by(start.ratio)
    assert list(start.cores_busy) == [0.1, 0.1, 0.2]


def test_work_is_counted_per_second_and_per_run() -> None:
    found = Reading(0.0, requests=60, writes=2, looks=30, cpu_seconds=3).since(Reading.begin(-60.0))
    assert found.rates("quiet") == {
        "quiet_requests": 1.0,
        "quiet_looks": 0.5,
        "quiet_cpu_seconds": 0.05,
        "quiet_writes": 2,
        "quiet_listings": 0,
    }
    assert found.per_run(100)["cpu_ms_of_a_run"] == 30


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_figures_that_rows_use_are_those_of_a_repetition(name: str) -> None:
    rows = SCENARIOS[name].rows
    source = inspect.getsource(sys.modules[SCENARIOS[name].play.__module__]) + inspect.getsource(steps)
    made = set(re.findall(r'"(\w+)":', source)) | set(Reading(1.0).per_run(1)) | {"control_plane"}
    made |= {f"{how}_{figure}" for figure in re.findall(r'f"{how}_(\w+)":', source) for how in ("cut", "gone")}
    made |= {figure for prefix in re.findall(r'rates\("(\w+)"\)', source) for figure in Reading(1.0).rates(prefix)}
    used = {row.figure for row in rows} | set(re.findall(r"{(\w+)", "".join(row.what + row.note for row in rows)))
    assert used <= made
    assert len({row.name for row in rows}) == len(rows)
