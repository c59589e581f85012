"""Growth of memory, and the rows of a soak."""

from dataclasses import replace

import pytest

from bench.scale.results.soak import SoakRepetition, growth_per_hour, results_of
from tests.lab.bench.scale.results.samples import IDLE

HOUR = range(0, 3601, 15)


def line(per_hour: float, begin: float = 200.0) -> list[tuple[float, float]]:
    return [(float(at), begin + per_hour * at / 3600) for at in HOUR]


def test_a_planted_leak_is_the_growth() -> None:
    assert growth_per_hour(line(36.0)) == pytest.approx(36.0)
    assert growth_per_hour(line(0.0)) == pytest.approx(0.0)


def test_caches_that_fill_at_the_begin_are_no_growth() -> None:
    warm = [(at, mib + min(30.0, at / 10)) for at, mib in line(0.0)]
    assert growth_per_hour(warm) == pytest.approx(0.0, abs=0.01)


def test_a_saw_of_the_allocator_hides_no_leak_and_makes_none() -> None:
    def saw(per_hour: float) -> list[tuple[float, float]]:
        return [(at, mib + at % 60 / 15) for at, mib in line(per_hour)]

    assert growth_per_hour(saw(0.0)) < 0.5
    assert growth_per_hour(saw(6.0)) > 5.5


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth_per_hour([(0.0, 200.0), (0.0, 200.0)][:1])


def test_a_file_has_some_of_the_readings_and_the_last_one() -> None:
    sample = results_of([SoakRepetition(100, 10, line(6.0), IDLE, IDLE)])[0].samples[0]
    assert sample["samples"] == 241
    assert len(sample["memory_mib"]) == len(sample["at_seconds"]) <= 40
    assert (sample["at_seconds"][-1], sample["memory_mib"][-1]) == (3600, pytest.approx(206.0))


def test_a_leak_and_a_write_miss_the_aims() -> None:
    leaking = SoakRepetition(100, 10, line(6.0), IDLE, replace(IDLE, writes=1, requests=201, seconds=100))
    rows = results_of([leaking])
    assert [row.aim.met_by(row.ratio) for row in rows if row.aim] == [False, True, False, False]
    assert rows[0].notes[0].startswith("200.0 MiB at the begin, 206.0 at the end")
    steady = replace(leaking, samples=line(0.0), quiet=IDLE)
    assert [row.aim.met_by(row.ratio) for row in results_of([steady]) if row.aim] == [True] * 4
