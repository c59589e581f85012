"""One run of pip in a process of its own, with a deadline and bounded output."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun_cli.inputs.bundle import pip_process
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS

PROGRAM = Path(pip_process.__file__)
"""Run by its path: it needs nothing of this package, which need not be on the path of a new process."""
KEPT_LINES = 500
LINE_CHARACTERS = 2000
"""Length at which a line of output is cut: builds run code of others, which may write no end of line."""
OUTPUT_LINES = 12
"""Number of pip's output lines that an error shows."""
PROGRESS = ("Downloading ", "Using cached ")

CREDENTIALS = re.compile(r"://[^/\s@]*@")
QUERY = re.compile(r"(://[^\s?#]*)\?[^\s#)\]]*")


@dataclass(frozen=True)
class PipResult:
    """Result of a run of pip."""

    status: int | None
    """Exit status. None if pip was ended at the deadline."""
    lines: Sequence[str]
    """Last lines of output, without passwords."""

    @property
    def last_lines(self) -> list[str]:
        """The lines that an error shows."""
        return [line for line in self.lines if line.strip()][-OUTPUT_LINES:]


def run_pip(
    arguments: Iterable[str], seconds: float, *, markers: Mapping[str, str] | None = None, shows_downloads: bool = False
) -> PipResult:
    """Run pip for up to `seconds`. `markers`: values of markers of PEP 508 in place of those of this machine."""
    child = subprocess.Popen(
        # -P: modules in the current folder, the user's, must not hide those of pip.
        [sys.executable, "-P", str(PROGRAM), json.dumps(dict(markers or {})), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, "PIP_NO_INPUT": "1", "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
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
    return PipResult(None if late.is_set() else status, tuple(lines))


def _kill(child: subprocess.Popen[str]) -> None:
    # Also what pip has started, and after Ctrl-C.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _printable(line: str) -> str:
    """Return a line of pip without control characters, passwords and tokens in URLs."""
    text = line.rstrip().translate(CONTROL_CHARACTERS)
    return QUERY.sub(r"\1?****", CREDENTIALS.sub("://****@", text))
