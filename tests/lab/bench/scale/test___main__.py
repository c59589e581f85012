"""Command line: sizes, a scenario that fails, and the gate."""

from pathlib import Path
from typing import Any

import pytest

from bench.report import Result, write_entries
from bench.scale import __main__ as command
from bench.scale.scenarios.scenario import FigureRow, Figures, Options, Scenario
from tests.lab.bench.scale.test_comparison import entry


def plant(monkeypatch: pytest.MonkeyPatch, **plays: Any) -> None:
    rows = (FigureRow("row", "what", "number", "x"),)
    scenarios = {name: Scenario("planted", play, rows, runs=10, repeats=3, minutes=1) for name, play in plays.items()}
    monkeypatch.setattr(command, "SCENARIOS", scenarios)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Result]]:
    found: list[tuple[str, Result]] = []
    monkeypatch.setattr(command, "record", lambda name, result: found.append((name, result)))
    monkeypatch.setattr(command.machine_load, "settled_load", lambda: 0.01)
    monkeypatch.setattr(command.machine_load, "require_idle", lambda _: None)
    return found


def test_sizes_are_those_of_the_scenario_or_of_the_command_line() -> None:
    many = command.SCENARIOS["many"]
    plain, small = (command.parser().parse_args(text.split()) for text in ("", "--runs 20 --finished 0"))
    assert command.options(many, plain) == Options(1000, 9000)
    assert command.options(many, small) == Options(20, 0)


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--scenario", "nothing"])
    assert "burst" in capsys.readouterr().err


def test_the_list_names_all_scenarios(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *command.SCENARIOS, "all"]


def test_repetitions_before_a_failure_are_recorded(
    written: list[tuple[str, Result]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Options] = []

    def play(options: Options) -> Figures:
        played.append(options)
        if len(played) == 2:
            raise SystemExit("timed out after 1800 s: 40 pods Running")
        return {"number": 1}

    plant(monkeypatch, planted=play)
    assert command.main([]) == 1
    assert [(name, result.ratio, list(result.cores_busy)) for name, result in written] == [("scale", 1.0, [0.01])]
    assert "FAILED: planted" in capsys.readouterr().out


def test_a_failure_does_not_end_the_other_scenarios(
    written: list[tuple[str, Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Options) -> Figures:
        raise RuntimeError("planted")

    plant(monkeypatch, bad=fail, good=lambda _: {"number": 2})
    assert command.main(["--repeats", "2"]) == 1
    assert [list(result.repetitions) for _, result in written] == [[2.0, 2.0]]


def compared(folder: Path, recorded: list[dict[str, Any]], new: list[dict[str, Any]]) -> int:
    for name, rows in (("recorded", recorded), ("new", new)):
        write_entries(folder / name, rows)
    return command.main(["--compare", str(folder / "recorded"), str(folder / "new")])


def test_the_gate_names_each_number_that_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = [entry("start", 10, 9, 11), entry("memory", 220, 219, 221), entry("rate", 5, 4, 6, "higher")]
    assert compared(tmp_path, recorded, recorded) == 0
    worse = [entry("start", 14, 14, 14), entry("memory", 222, 222, 222), entry("rate", 3, 3, 3, "higher")]
    assert compared(tmp_path, recorded, worse) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3 rows compared; FAILED: start, rate"


def test_a_comparison_of_nothing_fails(tmp_path: Path) -> None:
    assert compared(tmp_path, [entry("start", 10, 9, 11)], [entry("new", 1, 1, 1)]) == 1
