"""Copies of container logs in S3, which the operator makes before the pods of a run are deleted.

Their path is `{run root}/logs/attempt-{n}/{pod}/{container}.log`, and `{container}.previous.log` for the log of a
container before its last restart. The default is the newest attempt.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Store

from rlrun_cli.terminal.errors import CliError

PATH = re.compile(r"attempt-(\d+)/([^/]+)/([^/]+?)(\.previous)?\.log")
MAIN_CONTAINERS = {
    "orchestrator": "orchestrator",
    "trainer": "trainer",
    "inference": "vllm",
    "environment": "environment",
}
"""Container of each role whose log is shown."""
POD_NAME_PATTERNS = {
    "orchestrator": r"orchestrator-",
    "trainer": r"trainer-",
    "inference": r"inference-",
    "environment": r"(env|eval)-\d+-",
}
"""Pattern of the names of a role's pods after `{run}-`."""


@dataclass(frozen=True)
class StoredLog:
    """One stored log."""

    attempt: int
    pod: str
    container: str
    previous: bool
    file: str
    """Path below `logs/`."""


def parse_log_path(file: str) -> StoredLog | None:
    """Parse the path of a stored log. Returns None for another file."""
    found = PATH.fullmatch(file)
    return StoredLog(int(found[1]), found[2], found[3], bool(found[4]), file) if found else None


def select_logs(
    files: list[str], run: str, role: str, attempt: int | None, previous: bool, components: Sequence[str] = ()
) -> list[StoredLog]:
    """Return the logs of one role in one attempt, by pod. Default: the newest attempt that has any.

    `components`: only of these, such as `env-0`. Empty: of all.
    """
    wanted_pods = f"({'|'.join(map(re.escape, components))})-" if components else POD_NAME_PATTERNS[role]
    pod_name = re.compile(re.escape(run) + "-" + wanted_pods)
    logs = [
        log
        for log in map(parse_log_path, files)
        if log and log.container == MAIN_CONTAINERS[role] and log.previous == previous and pod_name.match(log.pod)
    ]
    wanted = attempt if attempt is not None else max((log.attempt for log in logs), default=0)
    return sorted((log for log in logs if log.attempt == wanted), key=lambda log: log.pod)


def read_stored_logs(
    store: Store,
    layout: RunLayout,
    run: str,
    role: str,
    *,
    attempt: int | None,
    tail: int | None,
    previous: bool,
    components: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines of the stored logs. Raises StoreError, and CliError if there are none."""
    folder = layout.logs
    files = [name for name, _ in store.list_files(folder)]
    found = select_logs(files, run, role, attempt, previous, components)
    if not found:
        which = f"attempt {attempt}" if attempt is not None else "any attempt"
        existing = sorted({f"attempt {log.attempt}: {log.pod}" for log in map(parse_log_path, files) if log})
        raise CliError(
            f"no log of a {role} pod in {which} is stored at {folder}",
            "logs are copied when containers end; select one of the listed attempts, or another --role"
            if existing
            else "logs are copied when containers end, and this run has no copy yet",
            details=existing,
        )
    for log in found:
        prefix = f"[{log.pod}] " if len(found) > 1 else ""
        lines = store.get_bytes(folder / log.file).decode("utf-8", "replace").splitlines()
        yield from (prefix + line for line in (lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]))
