"""A run that ends the trainer of a shared pool repeatedly is found, and no other run is."""

import os
from pathlib import Path

import pytest
from rlrun_trainer.runtime.run_deaths import MAX_LISTED, Death, RunDeaths, is_evicted, recent_deaths

NOW = 1_000_000.0


class Clock:
    """Clock that tests move."""

    now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("ages", "expected"),
    [((), False), ((10,), False), ((10, 20), True), ((10, 3599), True), ((10, 3600), False), ((3600, 3700), False)],
)
def test_two_deaths_within_an_hour_evict_a_run(ages: tuple[float, ...], expected: bool) -> None:
    deaths = [Death(uid="u-1", at=NOW - age) for age in ages] + [Death(uid="u-2", at=NOW)]
    assert is_evicted(deaths, "u-1", NOW) is expected
    assert not is_evicted(deaths, "u-2", NOW)


def test_a_clock_that_was_set_back_a_little_forgets_no_death() -> None:
    assert is_evicted([Death(uid="u-1", at=NOW + 60), Death(uid="u-1", at=NOW + 90)], "u-1", NOW)


def test_the_list_of_deaths_is_bounded() -> None:
    deaths = [Death(uid=f"u-{number}", at=NOW) for number in range(MAX_LISTED + 5)]
    assert recent_deaths(deaths, NOW) == deaths[5:]


def restart(path: Path, clock: Clock, owner: str = "") -> RunDeaths:
    """A new process, which ends without a word while it computes for `owner`."""
    deaths = RunDeaths(path, clock)
    if owner:
        deaths.enter("u-other")
        deaths.enter(owner)
    return deaths


def test_a_run_is_evicted_after_its_second_death(tmp_path: Path) -> None:
    path, clock = tmp_path / "deaths.json", Clock()
    restart(path, clock, "u-1")
    assert not restart(path, clock, "u-1").is_evicted("u-1")
    clock.now += 1800
    last = restart(path, clock)
    assert last.is_evicted("u-1")
    assert not last.is_evicted("u-other")
    assert restart(path, clock).is_evicted("u-1"), "the file is kept"
    clock.now += 1801
    assert not restart(path, clock).is_evicted("u-1")


def test_neither_an_idle_process_nor_a_regular_exit_is_a_death(tmp_path: Path) -> None:
    path, clock = tmp_path / "deaths.json", Clock()
    for end in (lambda deaths: deaths.enter(""), lambda deaths: deaths.close()):
        for _ in range(2):
            end(restart(path, clock, "u-1"))
    closed = restart(path, clock)
    closed.close()
    closed.enter("u-1")
    assert not restart(path, clock).is_evicted("u-1")
    assert not path.exists()


def test_the_file_is_written_only_if_the_run_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    deaths = RunDeaths(tmp_path / "deaths.json")
    monkeypatch.setattr(os, "pwrite", lambda _, data, offset: written.append(data) or len(data))
    for owner in ("u-1", "u-1", "u-22", "u-22", ""):
        deaths.enter(owner)
    assert [data.rstrip(b"\0") for data in written] == [b"u-1", b"u-22", b""]
    assert {len(data) for data in written} == {64}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"deaths": 1}', b" " * 2**21])
def test_a_damaged_file_stops_no_trainer(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "deaths.json"
    path.write_bytes(content)
    restart(path, Clock(), "u-1")
    restart(path, Clock(), "u-1")
    assert restart(path, Clock()).is_evicted("u-1")


def test_a_folder_that_is_missing_stops_no_trainer(tmp_path: Path) -> None:
    deaths = restart(tmp_path / "missing" / "deaths.json", Clock(), "u-1")
    deaths.close()
    assert not deaths.is_evicted("u-1")


def test_without_a_file_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    deaths = RunDeaths(None)
    deaths.enter("u-1")
    deaths.close()
    assert not list(tmp_path.iterdir())
