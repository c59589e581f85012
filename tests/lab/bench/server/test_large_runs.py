"""Large runs of the benchmark of the server's memory."""

import json

from bench.server.large_runs import SPEC_BYTES, MemoryOfRuns, large_run
from bench.server.results import of_large_runs

LIMIT = 256 * 1024
"""Bytes of a spec that the admission policy accepts."""


def test_a_run_is_as_large_as_it_may_be() -> None:
    spec = large_run(7, SPEC_BYTES)["spec"]
    assert SPEC_BYTES - 8192 < len(json.dumps(spec)) <= SPEC_BYTES
    assert SPEC_BYTES < LIMIT


def test_the_row_has_the_largest_memory() -> None:
    row = of_large_runs(MemoryOfRuns(120.0, 200.0, 250.0), 200, SPEC_BYTES, [0.1])
    assert (row.name, row.ratio) == ("large runs, 0.26 MB", 250.0)
    assert row.aim is not None
    assert row.aim.met_by(row.ratio)
    assert not row.aim.met_by(598.0 * 1.048576)
