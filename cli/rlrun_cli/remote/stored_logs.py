"""Logs of a run whose pods are gone: the copies that the operator keeps beside the run's checkpoints.

They lie at `{run root}/logs/attempt-{n}/{pod}/{container}.log`, with `{container}.previous.log` for what the container
said before its last restart. The newest attempt is meant unless another one is asked for.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rlrun.storage.layout import RunLayout
from rlrun.storage.store import Store

from rlrun_cli.terminal.errors import CliError

PATH = re.compile(r"attempt-(\d+)/([^/]+)/([^/]+?)(\.previous)?\.log")
MAIN = {"orchestrator": "orchestrator", "trainer": "trainer", "inference": "vllm", "environment": "environment"}
"""The container of each role that people mean when they name the role."""
PODS = {
    "orchestrator": r"orchestrator-",
    "trainer": r"trainer-",
    "inference": r"inference-",
    "environment": r"(env|eval)-\d+-",
}
"""How the names of a role's pods go on after the run's name."""


@dataclass(frozen=True)
class KeptLog:
    """One file."""

    attempt: int
    pod: str
    container: str
    previous: bool
    file: str
    """Its name below `logs/`."""


def kept_log(file: str) -> KeptLog | None:
    """The log that a file is; None for a name of another kind."""
    found = PATH.fullmatch(file)
    return KeptLog(int(found[1]), found[2], found[3], bool(found[4]), file) if found else None


def choose(files: list[str], run: str, role: str, attempt: int | None, previous: bool) -> list[KeptLog]:
    """The files of one role in one attempt (else the newest that has any), by pod."""
    mine = re.compile(re.escape(run) + "-" + PODS[role])
    logs = [
        log
        for log in map(kept_log, files)
        if log and log.container == MAIN[role] and log.previous == previous and mine.match(log.pod)
    ]
    wanted = attempt if attempt is not None else max((log.attempt for log in logs), default=0)
    return sorted((log for log in logs if log.attempt == wanted), key=lambda log: log.pod)


def read_kept(
    store: Store, layout: RunLayout, run: str, role: str, *, attempt: int | None, tail: int | None, previous: bool
) -> Iterator[str]:
    """Their lines. Raises StoreError, and CliError when there are none."""
    folder = layout.logs
    files = [name for name, _ in store.list_files(folder)]
    found = choose(files, run, role, attempt, previous)
    if not found:
        which = f"attempt {attempt}" if attempt is not None else "any attempt"
        there = sorted({f"attempt {log.attempt}: {log.pod}" for log in map(kept_log, files) if log})
        raise CliError(
            f"no log of a {role} pod in {which} is kept at {folder}",
            "logs are copied when containers end; see what there is above" if there else "nothing is kept there at all",
            details=there,
        )
    for log in found:
        prefix = f"[{log.pod}] " if len(found) > 1 else ""
        lines = store.get_bytes(folder / log.file).decode("utf-8", "replace").splitlines()
        yield from (prefix + line for line in (lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]))
