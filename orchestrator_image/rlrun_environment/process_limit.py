"""Limit on processes in an environment's container. If it is exceeded, the server kills all user code.

Code that keeps starting processes exhausts the process ids of its node. The kubelet's `podPidsLimit` is the hard limit,
but it is a node setting that is unset by default. RLIMIT_NPROC would count the processes of all pods on the node,
because they have the same user, so one run could prevent other runs from starting processes. The server is the first
process of its container: it sees all other processes and can kill them with one signal. Between two counts, only the
container's memory limit bounds their number.

As the first process, the server must also reap zombie processes that user code leaves behind.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

FIRST = 1
"""Process id of a container's first process."""
POLL_SECONDS = 0.2
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """State of one process, from /proc/<pid>/stat."""

    pid: int
    parent: int
    threads: int
    ended: bool
    """True if the process has ended and its exit status has not been collected yet."""


def parse_stat(text: str) -> Process:
    """Parse the contents of /proc/<pid>/stat. Raises ValueError or IndexError if they are incomplete."""
    # The name of the program is in parentheses and may contain any character.
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return Process(int(pid), int(fields[1]), int(fields[17]), ended=fields[0] in "ZX")


def read_processes(proc: Path = PROC) -> list[Process]:
    """Return the existing processes. Processes that end during the call may be missing."""
    processes = []
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                processes.append(parse_stat((proc / name / "stat").read_text(errors="replace")))
    return processes


def count_tasks(processes: Iterable[Process], first: int = FIRST) -> int:
    """Return the number of processes and threads, without ended processes that the first process is about to reap."""
    return sum(process.threads for process in processes if not (process.ended and process.parent == first))


def abandoned_processes(processes: Iterable[Process], children: Collection[int], first: int = FIRST) -> set[int]:
    """Return the ended processes that only the first process can reap, excluding its own `children`."""
    return {p.pid for p in processes if p.ended and p.parent == first and p.pid not in children}


class ProcessLimit:
    """Kills user code if the container has too many processes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen: set[int] = set()
        """Abandoned processes at the previous check. Only these are reaped, because a new child may end before it is
        recorded in `children`.
        """

    @property
    def applies(self) -> bool:
        """True in a container. Outside of a container, killing all processes would affect unrelated processes."""
        return os.getpid() == FIRST

    async def watch(self, children: Callable[[], Collection[int]], on_excess: Callable[[int], None]) -> None:
        """Check the number of processes until cancelled. If it exceeds the limit, call `on_excess` and kill all other
        processes of the container.

        `children` returns the processes whose exit status the caller collects.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            self.check_once(children(), on_excess)

    def check_once(self, children: Collection[int], on_excess: Callable[[int], None]) -> None:
        """Check the number of processes once."""
        processes = read_processes()
        left = abandoned_processes(processes, children)
        for pid in left & self._seen:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        self._seen = left
        count = count_tasks(processes)
        if count > self.limit and self.applies:
            log.error(
                "User code has %d processes and threads, more than the limit of %d; killing it", count, self.limit
            )
            on_excess(count)
            # One call for all processes, so that a process that is just being started receives the signal too.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
