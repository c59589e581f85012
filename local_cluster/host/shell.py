"""Runner for other programs, whose errors contain the end of the program's output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from local_cluster.host.errors import LocalClusterError

TAIL_LINES = 15


def run(
    command: Sequence[str | Path],
    *,
    stdin: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout: float | None = None,
    next_step: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a program to completion.

    Args:
        command: The argv.
        stdin: Text for its standard input. Empty by default, so that no program waits for a keyboard.
        cwd: Working directory.
        env: Variables in addition to the inherited ones.
        check: Raise an error if the exit status is not 0.
        timeout: Seconds until the program is killed and counts as failed. None disables it.
        next_step: Instruction for the user when the program fails.

    Returns:
        The finished process with its output as text.

    Raises:
        LocalClusterError: The program is missing, ran too long, or failed while `check` is set.
    """
    argv = [str(part) for part in command]
    try:
        done = subprocess.run(
            argv,
            input=stdin or "",
            cwd=cwd,
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError as error:
        raise LocalClusterError(f"{argv[0]} is not installed. {next_step}".strip()) from error
    except subprocess.TimeoutExpired as error:
        raise LocalClusterError(f"`{' '.join(argv)}` ran longer than {timeout:.0f} s. {next_step}".strip()) from error
    if check and done.returncode != 0:
        ending = tail(done.stderr + done.stdout)
        raise LocalClusterError(f"`{' '.join(argv)}` failed ({done.returncode}):\n{ending}\n{next_step}".strip())
    return done


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last lines of an output, indented."""
    return "\n".join("    " + line for line in text.strip().splitlines()[-lines:])
