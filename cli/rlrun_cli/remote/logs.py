"""Finds the logs that `rlrun logs` prints: the logs of containers, and the copies in S3."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlrun.constants import COMPONENT_LABEL, ROLE_LABEL, RUN_LABEL, Role
from rlrun.kube import pod_logs
from rlrun.kube.kinds import POD
from rlrun.kube.objects import Obj, label
from rlrun.kube.pod_logs import ContainerStart, UnknownEnvironment, oldest_first, source
from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Store
from rlrun.storage.stored_logs import parse_log_path, select_logs

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.terminal.errors import INVALID, CliError

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class LogSelection:
    """Selection of pods and lines to print."""

    role: Role
    components: Sequence[str] = ()
    """Components such as `env-0`. If empty, all components of the role."""
    tail: int | None = None
    since: int | None = None
    """Maximum age of lines in seconds."""
    previous: bool = False
    attempt: int | None = None
    """Attempt whose copies are read. None means the newest attempt that has copies."""


def starts_of(api: RemoteCluster, run: str, chosen: LogSelection) -> list[ContainerStart]:
    """Return the main container of each selected pod, oldest pod first."""
    pods = api.list(POD, {RUN_LABEL: run, ROLE_LABEL: chosen.role.value})
    return [
        source(pod)
        for pod in oldest_first(pods)
        if not chosen.components or label(pod, COMPONENT_LABEL) in chosen.components
    ]


def read_copies(store: Store, layout: RunLayout, run: str, chosen: LogSelection) -> Iterator[str]:
    """Yield the lines of the selected logs in S3. Raises StoreError, and CliError if no log is selected."""
    folder, role, attempt = layout.logs, chosen.role.value, chosen.attempt
    files = [name for name, _ in store.list_files(folder)]
    selected = select_logs(files, run, role, attempt, chosen.previous, chosen.components)
    if not selected:
        which = f"attempt {attempt}" if attempt is not None else "any attempt"
        existing = sorted({f"attempt {log.attempt}: {log.pod}" for log in map(parse_log_path, files) if log})
        raise CliError(
            f"no log of a {role} pod in {which} is stored at {folder}",
            "logs are copied when containers terminate; select one of the listed attempts, or another --role"
            if existing
            else "logs are copied when containers terminate; this run has no copies yet",
            details=existing,
        )
    for log in selected:
        prefix = f"[{log.pod}] " if len(selected) > 1 else ""
        lines = store.get_bytes(folder / log.file).decode("utf-8", "replace").splitlines()
        tail = len(lines) if chosen.tail is None else min(chosen.tail, len(lines))
        yield from (prefix + line for line in lines[len(lines) - tail :])


def components_of(run: Obj, wanted: str) -> list[str]:
    """Return the components of the environments that --env selects, such as `env-0`.

    Raises CliError if the run has no such environment.
    """
    try:
        return pod_logs.components_of(run, wanted)
    except UnknownEnvironment as problem:
        raise CliError(
            f"--env: {run['metadata']['name']} has no environment {wanted}",
            f"select one of its environments: {', '.join(problem.existing)}",
            code=INVALID,
        ) from problem


def parse_seconds(text: str | None) -> int | None:
    """Parse a duration such as `10m` or `1h30m` into seconds. None stays None. Raises CliError for any other text."""
    if text is None:
        return None
    parts = re.findall(r"(\d+)([smhd])", text)
    seconds = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise CliError(f"--since: {text!r} is not a duration", "write it as 30s, 10m, 2h or 1h30m", code=INVALID)
    return seconds
