"""Runs the rollouts of a baseline in a separate process with a deadline."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlrun_cli.inputs.baseline import BaselineRollout
from rlrun_cli.inputs.baseline_process import KEY_VARIABLE, BaselineRequest
from rlrun_cli.inputs.package_generation import problem_of_this_python
from rlrun_cli.inputs.wheel_builder import Wheel, unpack
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, CliError

MODULE = "rlrun_cli.inputs.baseline_process"
OUTPUT_LINES = 5
MAX_RESULTS = 16 * 1024**2
"""Maximum number of characters of the results that are read. The rest is ignored."""


def run_baseline(wheels: Sequence[Wheel], request: BaselineRequest, key: str, seconds: float) -> list[BaselineRollout]:
    """Run the rollouts and return their results. Ignores the request's `folder` and `results`. `key` is the API key.

    Raises CliError if the environment cannot be loaded or run, or the rollouts do not finish within `seconds`.
    """
    if problem := problem_of_this_python(wheels):
        hint = "install rlrun into a Python version that the package's requires-python allows"
        raise CliError(f"the environment cannot be run: {problem}", hint)
    with tempfile.TemporaryDirectory(prefix="rlrun-check-") as scratch:
        packages = Path(scratch, "packages")
        unpack(wheels, packages)
        results, log = Path(scratch, "results"), Path(scratch, "log")
        asked = {**asdict(request), "folder": str(packages), "results": str(results)}
        with log.open("wb") as output:
            is_late = not _run(json.dumps(asked), key, seconds, output)
        rollouts, problem = read_results(results)
        expected = request.examples * request.rollouts
        if is_late:
            raise CliError(
                f"only {len(rollouts)} of up to {expected} rollouts finished within {seconds:.0f} s",
                "check that the endpoint responds; use fewer --examples or a longer --timeout",
            )
        if problem or not rollouts:
            last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-OUTPUT_LINES:]
            raise CliError(
                f"the environment cannot be run: {problem or 'it has no examples'}",
                "fix the environment; verifiers and the packages that the environment imports must be installed in "
                f"this Python: {sys.executable}",
                details=last,
            )
    return rollouts


def _run(request: str, key: str, seconds: float, output: Any) -> bool:
    """Run the process and kill it at the deadline. Returns False if it did not exit in time."""
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", MODULE],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **({KEY_VARIABLE: key} if key else {})},
        start_new_session=True,
    )
    try:
        child.communicate(request, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    finally:
        # Also kill child processes of the environment, and after Ctrl-C.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return True


def read_results(file: Path) -> tuple[list[BaselineRollout], str]:
    """Return the rollouts, and the reason why the environment could not be run, which is empty if it could."""
    if not file.is_file():
        return [], "the process exited before it wrote results"
    rollouts: list[BaselineRollout] = []
    with file.open(encoding="utf-8") as lines:
        for line in lines.read(MAX_RESULTS).splitlines():
            try:
                result = json.loads(line)
            except ValueError:
                continue  # truncated
            if "problem" in result:
                return rollouts, str(result["problem"])
            rollouts.append(BaselineRollout(**{**result, "error": str(result["error"]).translate(CONTROL_CHARACTERS)}))
    return rollouts, ""
