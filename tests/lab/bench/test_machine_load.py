"""Busy cores from /proc/stat, and the refusal to measure on a busy machine."""

from collections.abc import Callable

import pytest

from bench import machine_load
from bench.machine_load import LIMIT, busy_seconds, limit, require_idle, settled_load


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts below have one core."""
    monkeypatch.setattr(machine_load, "CORES", frozenset({0}))


def seconds(user: int = 0, idle: int = 0, iowait: int = 0, steal: int = 0, guest: int = 0) -> float:
    stat = f"cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 {user} 0 0 {idle} {iowait} 0 0 {steal} {guest} 0\nintr 1 2 3\n"
    return busy_seconds(stat, {0})


def values(*found: float) -> Callable[[], float]:
    left = iter(found)
    return lambda: next(left)


def test_idle_time_and_waiting_for_a_disk_are_not_work() -> None:
    assert seconds(user=300, idle=5000, iowait=700) == 3.0


def test_time_of_guests_is_part_of_user_and_time_of_the_host_is_work() -> None:
    assert seconds(user=300, guest=300) == 3.0
    assert seconds(user=300, steal=100) == 4.0


def test_only_usable_cores_count() -> None:
    text = "".join(f"cpu{core} {100 * 10**core} 0 0 5 0 0 0 0 0 0\n" for core in range(4))
    assert busy_seconds(text, {1, 3}) == 10 + 1000


def test_limit_is_a_share_of_many_cores_and_never_less_than_on_few() -> None:
    assert [limit(cores) for cores in (1, 2, 5)] == [0.25] * 3
    assert limit(64) == pytest.approx(3.2)


def test_load_is_read_until_the_machine_is_quiet_or_the_deadline() -> None:
    assert settled_load(values(1.5, 0.9, LIMIT), values(0.0, 3.0, 6.0, 9.0)) == LIMIT
    assert settled_load(values(1.5, 0.9, 1.2), values(0.0, 3.0, 6.0, 61.0)) == 1.2


def test_benchmark_refuses_to_start_on_a_busy_machine_unless_it_is_asked_to() -> None:
    with pytest.raises(SystemExit, match=r"1\.98 of 1 cores are busy.*--busy"):
        require_idle(False, lambda: 1.98)
    require_idle(False, lambda: LIMIT)
    require_idle(True, lambda: 1.98)
