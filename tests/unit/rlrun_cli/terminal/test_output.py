import io
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from rich.text import Text
from rlrun_cli.remote.run_data.run_summary import sparkline, summarize
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError, show_error
from rlrun_cli.terminal.output import age, duration, notice, size, table
from typing_extensions import override


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (330, "5m30s"), (7200, "120m"), (3 * 3600, "3h"),
        (3 * 3600 + 1200, "3h20m"), (30 * 3600, "30h"), (75 * 3600, "3d3h"), (400 * 86400, "400d"),
        (800 * 86400, "2y70d"), (601, "10m"), (8 * 3600 + 60, "8h"), (49 * 3600, "2d1h"), (8 * 86400 + 3600, "8d"),
    ],
)  # fmt: skip
def test_durations_are_formatted_as_in_kubectl(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_age() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    created = (now - timedelta(seconds=90)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert age({"metadata": {"creationTimestamp": created}}, now) == "90s"
    assert age({"metadata": {}}) == "<unknown>"


@pytest.mark.parametrize(
    ("count", "text"), [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**40, "5.0 TiB")]
)
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_table_is_aligned_and_ignores_markup() -> None:
    lines = [line.plain for line in table(["A", "LONGER"], [["[bold]x", None], ["日本", "y"]])]
    assert lines == ["A         LONGER", "[bold]x   -", "日本      y"]


@pytest.mark.parametrize(
    ("values", "bars"), [([], ""), ([1.0], "▄"), ([0.0, 1.0], "▁█"), ([2.0, 2.0], "▄▄"), ([0.0, 0.5, 1.0], "▁▅█")]
)
def test_sparkline(values: list[float], bars: str) -> None:
    assert sparkline(values) == bars


def test_sparkline_shows_the_newest() -> None:
    assert len(sparkline([float(i) for i in range(100)], width=10)) == 10


def test_a_run_without_status_is_pending() -> None:
    summary = summarize({"metadata": {"name": "x"}, "spec": {"maxSteps": 7}})
    assert (summary.phase, summary.reason, summary.step, summary.max_steps, summary.reward) == (
        "Pending",
        "NotSeenYet",
        0,
        7,
        None,
    )


def test_the_first_condition_that_is_not_true_is_the_reason() -> None:
    conditions = [
        {"type": "EnvironmentsReady", "status": "False", "reason": "EnvironmentLoadFailed", "message": "b"},
        {"type": "Validated", "status": "True", "reason": "Valid", "message": ""},
        {"type": "TrainerReady", "status": "Unknown", "reason": "Starting", "message": "a"},
    ]
    summary = summarize({"spec": {}, "status": {"phase": "Pending", "conditions": conditions}})
    assert (summary.reason, summary.message) == ("Starting", "a")


def test_a_notice_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    notice("one\ntwo \x1b]52;c;eA==\x07 \x9b2J")
    assert capsys.readouterr().err == "one\ntwo ]52;c;eA== 2J\n"


def test_a_styled_cell_keeps_its_style_without_control_characters() -> None:
    shown = output.printable(Text("one\ttwo", style="red"))
    assert (shown.plain, shown.style) == ("one two", "red")


def test_rows_of_other_headers_have_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    growing = output.GrowingTable()
    for headers in (["A"], ["A"], ["B"]):
        growing.add(headers, [["x"]])
    assert capsys.readouterr().out.split() == ["A", "x", "x", "B", "x"]


class Pipe(io.StringIO):
    """A stream of which another program reads what is flushed."""

    received = ""

    @override
    def flush(self) -> None:
        self.received = self.getvalue()


@pytest.mark.parametrize("fmt", output.Format)
def test_a_program_reads_an_object_of_a_stream_at_once(monkeypatch: pytest.MonkeyPatch, fmt: output.Format) -> None:
    pipe = Pipe()
    monkeypatch.setattr("sys.stdout", pipe)
    output.emit_stream([{"metadata": {"name": "first"}}], "rlruns", fmt)
    assert "first" in pipe.received


ODD = "user\u202etxt.exe\u200b\u2066\U000e0041"
SHOWN = r"user\u202etxt.exe\u200b\u2066\U000e0041"


def test_characters_that_hide_or_turn_around_others_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(["NAME"], [[ODD]])
    output.notice(ODD)
    output.out().print(Text(ODD))
    output.err().print(ODD)
    show_error(CliError(ODD, ODD, details=[ODD]))
    shown = capsys.readouterr()
    assert shown.out.count(SHOWN) == 2
    assert shown.err.count(SHOWN) == 5
    assert ODD[4] not in shown.out + shown.err


@pytest.mark.parametrize("fmt", [output.Format.json, output.Format.yaml])
def test_documents_show_such_characters_and_keep_their_value(
    fmt: output.Format, capsys: pytest.CaptureFixture[str]
) -> None:
    output.emit_document({"name": ODD, "other": "\u00e9"}, fmt)
    text = capsys.readouterr().out
    assert r"\u202e" in text.lower()
    assert ODD[4] not in text
    assert yaml.safe_load(text)["name" if fmt is output.Format.yaml else "other"] in (ODD, "\u00e9")
    output.emit_document({"other": "\u00e9"}, fmt)
    assert "\u00e9" in capsys.readouterr().out
