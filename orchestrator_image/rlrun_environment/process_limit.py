"""Limit of processes in an environment's container. When it is exceeded, the server ends all user code.

Code that keeps starting processes uses up the process ids of its node. The kubelet's `podPidsLimit` is the hard
limit, but it is the node's, and unset by default. RLIMIT_NPROC would count the processes of all pods of the node,
because they have the same user, so that one run could stop those of others. The server is the first process of its
container: it sees all others, and one signal reaches them all. Until it has counted them, the container's memory limit
bounds them.

As the first process it also has to collect the ended processes that user code left behind.
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
"""Id of the first process of a container."""
POLL_SECONDS = 0.2
PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """Line of /proc/<pid>/stat."""

    pid: int
    parent: int
    threads: int
    ended: bool
    """True if its exit status was not collected yet."""


def parse_stat(text: str) -> Process:
    """Read the contents of /proc/<pid>/stat. Raises ValueError, IndexError."""
    # The name of the program is in parentheses and may contain any character.
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    return Process(int(pid), int(fields[1]), int(fields[17]), ended=fields[0] in "ZX")


def read_processes(proc: Path = PROC) -> list[Process]:
    """Return the existing processes, without those that end during the read."""
    processes = []
    for name in os.listdir(proc):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                processes.append(parse_stat((proc / name / "stat").read_text(errors="replace")))
    return processes


def count_tasks(processes: Iterable[Process], first: int = FIRST) -> int:
    """Return the number of processes and threads, without those that the first process is about to collect."""
    return sum(process.threads for process in processes if not (process.ended and process.parent == first))


def abandoned_processes(processes: Iterable[Process], children: Collection[int], first: int = FIRST) -> set[int]:
    """Return the ended processes that only the first process can reap and that are not its own `children`."""
    return {p.pid for p in processes if p.ended and p.parent == first and p.pid not in children}


class ProcessLimit:
    """Watches the processes of the container."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._seen: set[int] = set()
        """Abandoned processes of the previous check: one of `children` may end before it is recorded as such."""

    @property
    def applies(self) -> bool:
        """True in a container. Elsewhere the signal would reach unrelated processes."""
        return os.getpid() == FIRST

    async def watch(self, children: Callable[[], Collection[int]], on_excess: Callable[[int], None]) -> None:
        """Check until cancelled; beyond the limit call `on_excess` and kill all other processes of the container.

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
            log.error("User code has %d processes and threads, more than %d: killing it", count, self.limit)
            on_excess(count)
            # One call for all: a process that is just being started gets it as well.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
