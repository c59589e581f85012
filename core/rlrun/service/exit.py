"""Termination message of a process, which Kubernetes shows in the status of its container."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from rlrun.protocol.problem import Problem

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
TERMINATION_LOG_VARIABLE = "RLRUN_TERMINATION_LOG"
"""Variable that overrides the path of the termination message."""
MESSAGE_CHARACTERS = 1000
"""Maximum length of the problem's message. Kubernetes keeps 4096 bytes of the file."""


def termination_log(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file for the termination message."""
    return Path(environ.get(TERMINATION_LOG_VARIABLE) or TERMINATION_LOG)


def write_termination_message(problem: Problem, path: Path = TERMINATION_LOG) -> None:
    """Write the problem as JSON. A failure to write is only logged, because the exit code is sufficient."""
    short = problem.model_copy(update={"message": problem.message[:MESSAGE_CHARACTERS]})
    try:
        path.write_text(short.model_dump_json(by_alias=True), encoding="utf-8")
    except OSError as error:
        log.warning("could not write the termination message to %s: %s", path, error)
