"""The last words of a container, where Kubernetes shows them: at most 4096 bytes."""

import logging
from pathlib import Path

from rlrun.schema.wire import Problem

log = logging.getLogger(__name__)

TERMINATION_LOG = Path("/dev/termination-log")
MESSAGE_CHARACTERS = 1000


def write_termination_message(problem: Problem, path: Path = TERMINATION_LOG) -> None:
    """Write the problem as JSON. A path that cannot be written is logged: the exit status still tells the story."""
    short = problem.model_copy(update={"message": problem.message[:MESSAGE_CHARACTERS]})
    try:
        path.write_text(short.model_dump_json(by_alias=True), encoding="utf-8")
    except OSError as error:
        log.warning("could not write the termination message to %s: %s", path, error)
