"""`rlrun usage`."""

import json
from typing import Any

import pytest
from rlrun_cli.commands.account import usage

ROW = {"namespace": "team", "run": "a", "uid": "u", "user": "ann", "model": "m", "runs": 1, "gpus": 2}
USAGE = {
    "time": "2026-01-01T00:00:00Z",
    "rows": [
        {**ROW, "activeSeconds": 3600, "gpuSeconds": 7200},
        {**ROW, "run": "\x1b[31mb", "activeSeconds": 90, "gpuSeconds": 90},
    ],
    "total": {"runs": 2, "gpus": 4, "activeSeconds": 3690, "gpuSeconds": 7290},
    "isComplete": True,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths: list[str] = []

    def send(method: str, path: str, body: Any) -> Any:
        assert (method, body) == ("GET", None)
        paths.append(path)
        return USAGE

    monkeypatch.setattr(usage, "find_server", lambda *_: send)
    return paths


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ([], "/rlrun/v1/namespaces/team/usage?by=run"),
        (["-A", "--by", "model"], "/rlrun/v1/usage?by=model"),
        (["--by", "user", "--month", "2026-01"], "/rlrun/v1/namespaces/team/usage?by=user&month=2026-01"),
        (["--since", "2026-01-01", "--until", "2026-01-15"],
         "/rlrun/v1/namespaces/team/usage?by=run&since=2026-01-01&until=2026-01-15"),
        (["--since", "2026-01-31T10:00:00+01:00"],
         "/rlrun/v1/namespaces/team/usage?by=run&since=2026-01-31T10%3A00%3A00%2B01%3A00"),
    ],
)  # fmt: skip
def test_the_question(rlrun: Any, asked: list[str], arguments: list[str], path: str) -> None:
    assert rlrun("usage", *arguments).code == 0
    assert asked == [path]


def test_the_table_has_a_total_and_no_control_characters(rlrun: Any, asked: list[str]) -> None:
    lines = rlrun("usage").out.splitlines()
    assert [line.split() for line in lines] == [
        ["NAMESPACE", "RUN", "USER", "MODEL", "RUNS", "GPUS", "ACTIVE", "GPU-HOURS"],
        ["team", "a", "ann", "m", "1", "2", "60m", "2.00"],
        ["team", "[31mb", "ann", "m", "1", "2", "90s", "0.03"],
        ["total", "-", "-", "-", "2", "4", "61m", "2.02"],
    ]


def test_output_for_programs(rlrun: Any, asked: list[str]) -> None:
    assert json.loads(rlrun("usage", "-o", "json").out) == USAGE
    assert rlrun("usage", "-o", "name").out.splitlines()[0] == "a"


def test_a_wrong_time_is_not_sent(rlrun: Any, asked: list[str]) -> None:
    found = rlrun("usage", "--since", "yesterday")
    assert (found.code, asked) == (2, [])
    assert "--since: 'yesterday' is not a time" in found.err
