"""Selects copies of container logs in S3. The operator makes the copies before the pods of a run are deleted.

A copy is at `{run root}/logs/attempt-{n}/{pod}/{container}.log`, or `{container}.previous.log` for the log before the
container's latest restart.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PATH = re.compile(r"attempt-([0-9]{1,9})/([a-z0-9][a-z0-9.-]{0,252})/([a-z0-9-]{1,63})(\.previous)?\.log")
MAIN_CONTAINERS = {
    "orchestrator": "orchestrator",
    "trainer": "trainer",
    "inference": "vllm",
    "environment": "environment",
}
"""Container whose log is shown, by role."""
POD_NAME_PATTERNS = {
    "orchestrator": r"orchestrator-",
    "trainer": r"trainer-",
    "inference": r"inference-",
    "environment": r"(env|eval)-\d+-",
}
"""Pattern of pod names after `{run}-`, by role."""


@dataclass(frozen=True)
class StoredLog:
    """Log of a container in S3."""

    attempt: int
    pod: str
    container: str
    previous: bool
    file: str
    """Path below `logs/`."""


def parse_log_path(file: str) -> StoredLog | None:
    """Parse the path of a stored log. Returns None for the path of any other file."""
    match = PATH.fullmatch(file)
    return StoredLog(int(match[1]), match[2], match[3], bool(match[4]), file) if match else None


def select_logs(
    files: Iterable[str],
    run: str | None,
    role: str,
    attempt: int | None,
    previous: bool,
    components: Sequence[str] = (),
) -> list[StoredLog]:
    """Return the logs of one role in one attempt, sorted by pod. If `attempt` is None, the newest attempt with logs is
    used.

    `run` is None for a deleted run whose name is unknown. `components` selects components such as `env-0`; if it is
    empty, all components are selected.
    """
    wanted_pods = f"({'|'.join(map(re.escape, components))})-" if components else POD_NAME_PATTERNS[role]
    pod_name = re.compile(("[a-z0-9.-]+" if run is None else re.escape(run)) + "-" + wanted_pods)
    logs = [
        log
        for log in map(parse_log_path, files)
        if log and log.container == MAIN_CONTAINERS[role] and log.previous == previous and pod_name.match(log.pod)
    ]
    wanted = attempt if attempt is not None else max((log.attempt for log in logs), default=0)
    return sorted((log for log in logs if log.attempt == wanted), key=lambda log: log.pod)
