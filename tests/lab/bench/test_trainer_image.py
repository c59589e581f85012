"""Results that come from the trainer's image."""

import json
import sys

import pytest

from bench import trainer_image
from bench.report import Result, at_least

RESULT = Result("28m, packed", "tokens/s", 2.5, at_least(1.0), samples=[{"way": "plain"}], notes=["a"])
BUSY = Result("28m", "tokens/s", 2.5, None, samples=[], notes=[], repetitions=(2.4, 2.5), cores_busy=(0.1,))


@pytest.mark.parametrize("result", [RESULT, BUSY])
def test_result_survives_serialization_from_the_image(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_image.emit(result)
    printed = capsys.readouterr().out.removeprefix(trainer_image.MARK)
    assert trainer_image.parse_result(json.loads(printed)) == result


def test_results_are_recorded_and_other_lines_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_image.emit(BUSY)
    line = capsys.readouterr().out
    started: list[list[str]] = []

    class Image(trainer_image.subprocess.Popen):  # type: ignore[name-defined, misc]
        def __init__(self, argv: list[str], **arguments: object) -> None:
            started.append(argv)
            script = f"print('a warning'); print({line!r}, end=''); raise SystemExit(3)"
            super().__init__([sys.executable, "-c", script], **arguments)

    recorded: list[tuple[str, Result]] = []
    monkeypatch.setattr(trainer_image.subprocess, "Popen", Image)
    monkeypatch.setattr(trainer_image, "record", lambda benchmark, result: recorded.append((benchmark, result)))
    assert trainer_image.run_in_image("wire", "bench.wire_ranks", ["--busy", "--in-image"]) == 3
    assert started[0][-5:] == ["python", "-m", "bench.wire_ranks", "--busy", "--emit"]
    assert recorded == [("wire", BUSY)]
    assert capsys.readouterr().out == "a warning\n"
