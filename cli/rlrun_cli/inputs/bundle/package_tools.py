"""Runs uv and pip, each in a separate process with a deadline, bounded output and pip's settings."""

import ast
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, CliError

KEPT_LINES = 500
LINE_CHARACTERS = 2000
"""Maximum length of an output line. Longer lines are split, because build code may print endless lines."""
OUTPUT_LINES = 20
"""Number of output lines that an error shows."""
PROGRESS = ("Downloading ", "Using cached ")
PIP = (sys.executable, "-P", "-m", "pip")
"""Command for pip. -P prevents modules in the current folder from hiding pip's."""
SETTINGS_SECONDS = 60.0
UV_FLAGS = {"no-index": "--no-index", "pre": "--prerelease=allow"}
UV_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
    "only-binary": "--only-binary",
    "no-binary": "--no-binary",
}
UV_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "proxy": "ALL_PROXY",
    "retries": "UV_HTTP_RETRIES",
    "timeout": "UV_HTTP_TIMEOUT",
}
SOURCES = ("global", "download", ":env:")
"""Sections of pip's settings that `pip download` reads. Later sections take precedence."""
SETTING = re.compile(rf"({'|'.join(SOURCES)})\.([a-z-]+)=(.+)")
CREDENTIALS = re.compile(r"://[^/\s@]*@")
QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#)\]`]*")


@dataclass(frozen=True)
class ToolResult:
    """Exit status and output of a command."""

    status: int | None
    """Exit status, or None if the process was killed at the deadline."""
    lines: Sequence[str]
    """Last KEPT_LINES lines of output, without passwords."""

    @property
    def last_lines(self) -> list[str]:
        """Last OUTPUT_LINES lines that are not empty, for error messages."""
        return [line for line in self.lines if line.strip()][-OUTPUT_LINES:]


@dataclass(frozen=True)
class UvSettings:
    """pip's settings for indexes and builds, as options and variables of uv."""

    options: Sequence[str]
    variables: Mapping[str, str]


def read_settings() -> UvSettings:
    """Read pip's configuration files and variables. uv's own settings are ignored, because pip would not use them.

    Raises CliError if pip does not respond within SETTINGS_SECONDS.
    """
    command = [*PIP, "config", "list"]
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, timeout=SETTINGS_SECONDS, env=_environ(), check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CliError(
            f"`pip config list` did not finish within {SETTINGS_SECONDS:.0f} s",
            f"run `{' '.join(command)}` to see why, then repeat the command",
        ) from error
    options: list[str] = []
    found = [match for match in map(SETTING.fullmatch, listed.stdout.split("\n")) if match]
    # pip lists the sections by name.
    found.sort(key=lambda match: SOURCES.index(match[1]))
    values = {match[2]: str(ast.literal_eval(match[3])) for match in found}
    for name, value in values.items():
        if flag := UV_FLAGS.get(name):
            options += [flag] if value.strip().lower() in {"1", "true", "yes", "on"} else []
        elif option := UV_OPTIONS.get(name):
            options += [
                f"{option}={each}" for each in re.split(r"[\s,]+" if name.endswith("binary") else r"\s+", value) if each
            ]
    if "extra-index-url" in values:
        options.append("--index-strategy=unsafe-best-match")  # pip does not rank its indexes
    return UvSettings(options, {UV_VARIABLES[name]: value for name, value in values.items() if name in UV_VARIABLES})


def run_tool(
    command: Sequence[str], seconds: float, *, variables: Mapping[str, str] | None = None, shows_downloads: bool = False
) -> ToolResult:
    """Run a command, and kill it after `seconds`. `variables` are added to the environment variables."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=_environ() | dict(variables or {}),
        start_new_session=True,
    )
    late = threading.Event()

    def stop() -> None:
        late.set()
        _kill(child)

    timer = threading.Timer(seconds, stop)
    timer.start()
    lines = deque[str](maxlen=KEPT_LINES)
    try:
        assert child.stdout is not None
        while raw := child.stdout.readline(LINE_CHARACTERS):
            line = _printable(raw)
            lines.append(line)
            if shows_downloads and line.strip().startswith(PROGRESS):
                output.notice(f"  {line.strip()}")
        status = child.wait()
    finally:
        timer.cancel()
        _kill(child)
        child.wait()
    return ToolResult(None if late.is_set() else status, tuple(lines))


def _environ() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith("UV_") or name == "UV_CACHE_DIR"}
    return own | {"PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "NO_COLOR": "1"}


def _kill(child: subprocess.Popen[str]) -> None:
    # Also kill child processes of the tool, and after Ctrl-C.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _printable(line: str) -> str:
    """Return a line of output without control characters, and without passwords and tokens in URLs."""
    text = line.rstrip().translate(CONTROL_CHARACTERS)
    return QUERY.sub(r"\1?****", CREDENTIALS.sub("://****@", text))
