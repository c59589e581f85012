"""pip's settings as uv's."""

import subprocess
from pathlib import Path

import pytest
from rlrun_cli.inputs.bundle import package_tools
from rlrun_cli.inputs.bundle.package_tools import read_settings
from rlrun_cli.terminal.errors import CliError

CONFIGURATION = """
[global]
index-url = https://all.example/simple
extra-index-url = https://more.example/simple
proxy = proxy.example:3128
[download]
extra-index-url = https://downloads.example/simple
[install]
index-url = https://installs.example/simple
"""


@pytest.fixture(autouse=True)
def configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Settings of pip in this file only."""
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    (tmp_path / "pip.conf").write_text(CONFIGURATION)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "index"), [(None, "https://all.example/simple"), ("https://own.example", None)])
def test_the_source_that_pip_download_prefers_decides(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, index: str | None
) -> None:
    if variable is not None:
        monkeypatch.setenv("PIP_INDEX_URL", variable)
    settings = read_settings()
    found = {option for option in settings.options if "index=" in option}
    assert found == {f"--default-index={index or variable}", "--index=https://downloads.example/simple"}
    assert settings.variables["ALL_PROXY"] == "proxy.example:3128"


def test_a_pip_that_does_not_respond_is_an_error_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: object, *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(str(command), timeout)

    monkeypatch.setattr(package_tools.subprocess, "run", hang)
    with pytest.raises(CliError, match="`pip config list` did not finish within 60 s"):
        read_settings()
