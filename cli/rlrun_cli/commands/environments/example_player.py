"""Runs one example of an environment with a scripted model, by the same program as in pods."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun_cli.inputs.bundle.package_tools import run_tool
from rlrun_cli.inputs.environment_checks import Remark
from rlrun_cli.inputs.package_generation import problem_of_this_python, version_of_verifiers
from rlrun_cli.inputs.wheel_builder import Wheel, unpack
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS

PROGRAM = (sys.executable, "-P", "-m", "rlrun_environment.worker.example_check")
"""Command that runs the example. -P prevents modules in the current folder from hiding those of wheels and platform."""
MAX_REPORT = 64 * 1024
LATE_SECONDS = 60.0
"""Time limit in seconds for loading the environment, in addition to the limit for rollouts."""


def play_example(wheels: Sequence[Wheel], args: Mapping[str, Any], seconds: float) -> Remark:
    """Run the first example of an environment and return the result. The last of `wheels` is the environment's package.

    The environment's code runs in a separate process with the user's rights and Python. Raises
    UnsupportedVerifiersError.
    """
    if problem := problem_of_this_python(wheels):
        return Remark(f"example 0 was not run: {problem}")
    config = {"id": f"check/{wheels[-1].name}", "args": dict(args)}
    with tempfile.TemporaryDirectory(prefix="rlrun-check-") as scratch:
        packages, report = Path(scratch, "packages"), Path(scratch, "report")
        unpack(wheels, packages)
        command = [*PROGRAM, str(report), f"--folder={packages}", f"--seconds={seconds}"]
        command += [f"--verifiers={version_of_verifiers(wheels)}"]
        variables = {"RLRUN_ENVIRONMENT": json.dumps(config)}
        result = run_tool(command, seconds + LATE_SECONDS, variables=variables)
        found = _read(report)
    if result.status is None:
        text = f"example 0 did not finish within {seconds + LATE_SECONDS:.0f} s"
        return Remark(text, "look for calls that hang, or increase --timeout")
    if not found:
        text = f"example 0 failed: {' '.join(result.last_lines[-1:]) or 'the process exited without output'}"
        return Remark(text, "fix the cause in the environment's code")
    return describe(found)


def describe(report: Mapping[str, Any]) -> Remark:
    """Return a remark that summarizes the program's report about the example."""
    if missing := report.get("missing"):
        return Remark(f"example 0 was not run: this Python lacks {_text(missing)}")
    if problem := report.get("problem"):
        return Remark(
            f"example 0 failed: {_text(problem)}",
            "fix the environment; each request got the example's reference answer, or 1 if the example has none",
        )
    rewards = ", ".join(f"{reward:.3g}" for reward in report.get("rewards", ()))
    requests = report.get("requests", 0)
    return Remark(f"example 0 ran; requests with scripted answers: {requests}, rewards: {rewards}")


def _read(report: Path) -> dict[str, Any]:
    try:
        with report.open(encoding="utf-8") as file:
            found = json.loads(file.read(MAX_REPORT))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    return str(value).translate(CONTROL_CHARACTERS)
