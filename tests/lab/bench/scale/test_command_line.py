"""Command line: sizes, a scenario that fails, and the gate."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.report import Result
from bench.scale import command_line as command
from bench.scale.scenarios.catalog import SCENARIOS, Scenario
from bench.scale.scenarios.options import ScenarioOptions
from tests.lab.bench.scale.results.test_comparison import entry


def scenario(play: Any) -> Scenario:
    def results(found: Any, loads: Any) -> list[Result]:
        return [Result("row", "what", float(len(found)), None, repetitions=[1.0] * len(found), cores_busy=loads)]

    return Scenario("planted", "planted", 10, 0, 3, 1, play, results)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Result]]:
    found: list[tuple[str, Result]] = []
    monkeypatch.setattr(command, "record", lambda name, result: found.append((name, result)))
    monkeypatch.setattr(command.machine_load, "settled_load", lambda: 0.01)
    return found


def test_sizes_are_those_of_the_scenario_or_of_the_command_line() -> None:
    burst = next(s for s in SCENARIOS if s.name == "burst")
    many = next(s for s in SCENARIOS if s.name == "many")
    plain, small = (command.parser().parse_args(text.split()) for text in ("", "--runs 20 --finished 0 --soak 60"))
    assert command.options(burst, plain).runs == 1000
    assert command.options(many, plain).finished == 9000
    assert (command.options(many, small).runs, command.options(many, small).finished) == (20, 0)
    assert (command.options(burst, small).soak_seconds, command.options(burst, plain).soak_seconds) == (60, 3600)


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--scenario", "nothing"])
    assert "burst" in capsys.readouterr().err


def test_the_list_names_all_scenarios_and_the_minutes_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    text = capsys.readouterr().out
    assert all(s.name in text for s in SCENARIOS)
    assert f"{sum(s.total_minutes for s in SCENARIOS):g}" in text.splitlines()[-1]


def test_repetitions_before_a_failure_are_recorded(written: list[tuple[str, Result]]) -> None:
    played: list[ScenarioOptions] = []

    def play(options: ScenarioOptions) -> int:
        played.append(options)
        if len(played) == 2:
            raise SystemExit("not within 1800 s: 40 pods Running")
        return 1

    assert not command.measure(scenario(play), command.parser().parse_args([]))
    assert [(name, result.ratio, list(result.cores_busy)) for name, result in written] == [("scale", 1.0, [0.01])]


def test_a_failure_does_not_end_the_other_scenarios(
    written: list[tuple[str, Result]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: ScenarioOptions) -> int:
        raise RuntimeError("planted")

    monkeypatch.setattr(command, "choose_scenarios", lambda _: [scenario(fail), scenario(lambda _: 1)])
    monkeypatch.setattr(command.machine_load, "require_idle", lambda _: None)
    assert command.main(["--repeats", "2"]) == 1
    assert [result.ratio for _, result in written] == [2.0]
    assert "FAILED: planted" in capsys.readouterr().out


def files(tmp_path: Path, recorded: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[str]:
    names = []
    for name, rows in (("recorded", recorded), ("new", new)):
        (tmp_path / name).write_text(json.dumps({"name": "scale", "results": rows}))
        names.append(str(tmp_path / name))
    return ["--compare", *names]


def test_the_gate_names_each_number_that_is_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = [entry("start", 10, 9, 11), entry("memory", 220, 219, 221), entry("rate", 5, 4, 6, "higher")]
    same = files(tmp_path, recorded, recorded)
    assert command.main(same) == 0
    worse = [entry("start", 14, 14, 14), entry("memory", 222, 222, 222), entry("rate", 3, 3, 3, "higher")]
    assert command.main(files(tmp_path, recorded, worse)) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "3 of 3 rows compared; FAILED: start, rate"


def test_a_comparison_of_nothing_fails(tmp_path: Path) -> None:
    assert command.main(files(tmp_path, [entry("start", 10, 9, 11)], [entry("new", 1, 1, 1)])) == 1
