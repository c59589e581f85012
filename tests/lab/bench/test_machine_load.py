"""Busy cores from /proc/stat, and the refusal to measure on a busy machine."""

import argparse
from collections.abc import Callable, Iterator

import pytest

from bench import machine_load
from bench.machine_load import (
    LIMIT,
    MachineBusyError,
    add_option,
    busy_cores,
    busy_seconds,
    limit,
    loop_seconds,
    require_idle,
    settled_load,
)


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts below have one core."""
    monkeypatch.setattr(machine_load, "CORES", frozenset({0}))


def stat(user: int = 0, idle: int = 0, iowait: int = 0, steal: int = 0, guest: int = 0) -> str:
    return f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {user} 0 0 {idle} {iowait} 0 0 {steal} {guest} 0\nintr 1 2 3\n"


def clock(*times: float) -> Callable[[], float]:
    found: Iterator[float] = iter(times)
    return lambda: next(found)


def test_idle_time_and_waiting_for_a_disk_are_not_work() -> None:
    assert busy_seconds(stat(user=300, idle=5000, iowait=700)) == 3.0


def test_time_of_guests_is_part_of_user_and_time_of_the_host_is_work() -> None:
    assert busy_seconds(stat(user=300, guest=300)) == 3.0
    assert busy_seconds(stat(user=300, steal=100)) == 4.0


def test_only_usable_cores_count() -> None:
    text = "".join(f"cpu{core} {100 * 10**core} 0 0 5 0 0 0 0 0 0\n" for core in range(4))
    assert busy_seconds(text, {1, 3}) == 10 + 1000
    assert busy_seconds(text, {2}) == 100


def test_text_without_a_usable_core_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line for core 7"):
        busy_seconds(stat(), {0, 7})


def test_limit_is_a_share_of_many_cores_and_never_less_than_on_few() -> None:
    assert [limit(cores) for cores in (1, 2, 5)] == [0.25] * 3
    assert limit(64) == pytest.approx(3.2)


def test_machine_of_many_cores_may_have_more_of_them_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_load, "CORES", frozenset(range(64)))
    require_idle(False, lambda: 3.1)
    assert settled_load(clock(3.1), clock(0.0), 60.0) == 3.1
    with pytest.raises(MachineBusyError, match=r"at most 3\.2 may"):
        require_idle(False, lambda: 3.3)


def test_busy_cores_are_work_per_second() -> None:
    texts = iter((stat(user=1000, idle=50), stat(user=1594, idle=56)))
    slept: list[float] = []
    found = busy_cores(3.0, lambda: next(texts), clock(10.0, 13.0), slept.append)
    assert found == pytest.approx(1.98)
    assert slept == [3.0]


def test_the_speed_of_a_core_is_the_median_of_several_loops() -> None:
    times = iter([0.0, 0.3, 1.0, 1.1, 2.0, 4.0])
    assert loop_seconds(3, lambda: next(times)) == pytest.approx(0.3)


def test_load_is_read_until_the_machine_is_quiet() -> None:
    assert settled_load(clock(1.5, 0.9, LIMIT), clock(0.0, 3.0, 6.0, 9.0), 60.0) == LIMIT


def test_machine_that_stays_busy_keeps_its_last_reading() -> None:
    assert settled_load(clock(1.5, 0.9, 1.2), clock(0.0, 3.0, 6.0, 61.0), 5.0) == 0.9


def test_benchmark_refuses_to_start_on_a_busy_machine() -> None:
    with pytest.raises(MachineBusyError, match=r"1\.98 of \d+ cores are busy.*--busy") as refused:
        require_idle(False, lambda: 1.98)
    assert isinstance(refused.value, SystemExit)
    require_idle(False, lambda: LIMIT)


def test_busy_machine_is_accepted_on_request() -> None:
    parser = argparse.ArgumentParser()
    add_option(parser)
    require_idle(parser.parse_args(["--busy"]).busy, lambda: 1.98)
    assert parser.parse_args([]).busy is False
