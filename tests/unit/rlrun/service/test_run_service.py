import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError
from rlrun.service.run_service import run_service
from rlrun.service.settings import read_settings


class Settings(Schema):
    """Settings of the service under test."""

    port: int = 8080


def load_settings(environ: Mapping[str, str]) -> Settings:
    return read_settings(Settings, environ)


def run(tmp_path: Path, serve, **variables: str) -> tuple[int, dict[str, str]]:
    log = tmp_path / "log"
    code = run_service("test", load_settings, serve, environ=variables | {"RLRUN_TERMINATION_LOG": str(log)})
    return code, json.loads(log.read_text()) if log.exists() else {}


def test_exit_code_is_that_of_the_service(tmp_path: Path) -> None:
    async def serve(settings: Settings) -> int:
        return settings.port

    assert run(tmp_path, serve, RLRUN_PORT="7") == (7, {})


@pytest.mark.parametrize(
    ("variables", "message"), [({"RLRUN_PORT": "x"}, "RLRUN_PORT"), ({"RLRUN_LOG_LEVEL": "loud"}, "LOUD")]
)
def test_invalid_variable_ends_the_process_for_good(
    tmp_path: Path, variables: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # basicConfig looks at its level only where the root logger has no handler; pytest's stays out of the way.
    monkeypatch.setattr("logging.root.handlers", [])

    async def serve(_: Settings) -> int:
        raise AssertionError("was served")

    code, problem = run(tmp_path, serve, **variables)
    assert (code, problem["reason"]) == (64, "InvalidConfiguration")
    assert message in problem["message"]


def test_fatal_error_becomes_exit_code_and_termination_message(tmp_path: Path) -> None:
    async def serve(_: Settings) -> int:
        raise FatalError(Problem(reason="S3BucketMissing", message="create it"), 64)

    assert run(tmp_path, serve) == (64, {"reason": "S3BucketMissing", "message": "create it"})


def test_report_replaces_the_termination_message(tmp_path: Path) -> None:
    async def serve(_: Settings) -> int:
        raise FatalError(Problem(reason="S3BucketMissing", message="create it"))

    reported: list[Problem] = []
    environ = {"RLRUN_TERMINATION_LOG": str(tmp_path / "log")}
    assert run_service("test", load_settings, serve, environ=environ, report=reported.append) == 1
    assert [problem.reason for problem in reported] == ["S3BucketMissing"]
    assert not (tmp_path / "log").exists()


def test_long_problem_fits_into_the_termination_message(tmp_path: Path) -> None:
    async def serve(_: Settings) -> int:
        raise FatalError(Problem(reason="Long", message="ä" * 10_000))

    code, problem = run(tmp_path, serve)
    assert (code, len(problem["message"])) == (1, 1000)
    assert (tmp_path / "log").stat().st_size < 4096


def test_termination_log_that_cannot_be_written_keeps_the_exit_code(tmp_path: Path) -> None:
    async def serve(_: Settings) -> int:
        raise FatalError(Problem(reason="S3BucketMissing", message="create it"), 64)

    environ = {"RLRUN_TERMINATION_LOG": str(tmp_path / "none" / "log")}
    assert run_service("test", load_settings, serve, environ=environ) == 64
