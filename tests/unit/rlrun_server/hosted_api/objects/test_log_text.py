"""Lines of logs for hosted clients, which show them as JSON or, raw, as markup."""

import json

from rlrun.constants import Role
from rlrun_server.hosted_api.objects.log_text import log_text
from rlrun_server.rest.logs.log_models import LogLevel, LogLine


def line(message: str, time: str | None = None, level: LogLevel | None = None) -> LogLine:
    return LogLine(role=Role.orchestrator, pod="p", attempt=1, message=message, time=time, level=level)


def test_every_line_is_json_with_three_texts() -> None:
    lines = [line("a"), line("b\nc", "2026-01-01T00:00:00Z", LogLevel.error), line("d")]
    found = [json.loads(text) for text in log_text(lines).split("\n")]
    assert found == [
        {"timestamp": "1970-01-01T00:00:00Z", "level": "INFO", "message": "a"},
        {"timestamp": "2026-01-01T00:00:00Z", "level": "ERROR", "message": "b\nc"},
        {"timestamp": "2026-01-01T00:00:00Z", "level": "INFO", "message": "d"},
    ]
    assert log_text([]) == ""


def test_no_line_is_markup_and_none_is_changed() -> None:
    message = 'x [/INST] [bold] "quoted" \\[ \\u005b {"a": [1]} ü'
    text = log_text([line(message)])
    assert not {"[", "]"} & set(text)
    assert json.loads(text)["message"] == message
