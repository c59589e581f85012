"""Background processes that are started detached, found again by a later command, and stopped.

A pid file contains the process id and the start time of the process. Process ids are reused: without the start time, a
pid file left behind by a power failure could lead to killing an unrelated process.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.host.atomic_files import write
from local_cluster.host.errors import LocalClusterError
from local_cluster.host.progress import progress
from local_cluster.host.shell import tail

START_SECONDS = 90.0
_POLL_SECONDS = 0.1
# The out-of-memory killer should prefer a container over a daemon. Machines that forbid this score run without it.
_OOM_SCORE_ADJ = "-500"


@dataclass(frozen=True)
class Daemon:
    """Background process.

    Attributes:
        name: Name of the daemon's pid file and log.
        argv: Program and arguments.
        ready: Returns True when the daemon is ready to serve.
        hint: Next step for the user when it does not start.
        configuration: Text of its configuration file. A running daemon with a different configuration is replaced.
    """

    name: str
    argv: tuple[str, ...]
    ready: Callable[[], bool]
    hint: str = "The last lines of the log give the cause. Fix it and repeat the command."
    configuration: str = ""

    @property
    def fingerprint(self) -> str:
        """Hash of arguments and configuration. A running daemon with a different hash must be replaced."""
        return hashlib.sha256("\0".join([*self.argv, self.configuration]).encode()).hexdigest()[:16]


class Supervisor:
    """Process supervisor for the daemons of one state directory."""

    def __init__(self, run_dir: Path, log_dir: Path, *, die_with_parent: bool = False) -> None:
        """Set the directories.

        Args:
            run_dir: Directory of the pid files.
            log_dir: Directory of the logs. Each daemon appends to its own file.
            die_with_parent: Let the kernel kill the daemons when the thread that started them ends. Meant for test
                fixtures, whose process may be killed at any moment.
        """
        self.run_dir = run_dir
        self.log_dir = log_dir
        self.die_with_parent = die_with_parent
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, daemon: Daemon) -> bool:
        """Start a daemon and wait until it is ready. Does nothing if it is already running and ready.

        Returns:
            True if the daemon had to be started.

        Raises:
            LocalClusterError: The daemon exited or was not ready in time. The message has the end of its log.
        """
        if self.pid(daemon.name) is not None:
            same = self._record(daemon.name).get("fingerprint") == daemon.fingerprint
            if same and _ready_within(daemon, 10.0, lambda: None):
                return False
            self.stop(daemon.name)
        with progress.step(f"start {daemon.name}"):
            process = self._spawn(daemon)
            if not _ready_within(daemon, START_SECONDS, process.poll):
                raise LocalClusterError(self._failure(daemon, process.poll()))
        return True

    def stop(self, name: str, grace: float = 10.0) -> bool:
        """Stop a daemon, with SIGKILL after `grace` seconds. Returns True if it was running."""
        pid = self.pid(name)
        if pid is not None:
            _end(pid, grace, lambda: self.pid(name) is None)
        child = self._children.pop(name, None)
        if child is not None:
            child.wait()
        self._pid_file(name).unlink(missing_ok=True)
        return pid is not None

    def pid(self, name: str) -> int | None:
        """Return the process id of a running daemon, or None."""
        record = self._record(name)
        pid = int(record.get("pid", 0))
        return pid if pid and start_time(pid) == record["start"] else None

    def running(self) -> dict[str, int]:
        """Return the running daemons of this state directory with their process ids."""
        names = [file.stem for file in sorted(self.run_dir.glob("*.pid"))]
        return {name: pid for name in names if (pid := self.pid(name)) is not None}

    def log(self, name: str) -> Path:
        """Return the path of a daemon's log."""
        return self.log_dir / f"{name}.log"

    def _record(self, name: str) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(self._pid_file(name).read_text())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return record

    def _pid_file(self, name: str) -> Path:
        return self.run_dir / f"{name}.pid"

    def _spawn(self, daemon: Daemon) -> subprocess.Popen[bytes]:
        for directory in (self.run_dir, self.log_dir):
            directory.mkdir(parents=True, exist_ok=True)
        argv = list(daemon.argv)
        if self.die_with_parent:
            argv = ["setpriv", "--pdeathsig", "KILL", "--", *argv]
        with self.log(daemon.name).open("ab") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        self._children[daemon.name] = process
        with suppress(OSError):
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(_OOM_SCORE_ADJ)
        record = {"pid": process.pid, "start": start_time(process.pid), "fingerprint": daemon.fingerprint}
        write(self._pid_file(daemon.name), json.dumps(record))
        return process

    def _failure(self, daemon: Daemon, status: int | None) -> str:
        log = self.log(daemon.name)
        ending = tail(log.read_text(errors="replace")[-8000:])
        what = f"was not ready after {START_SECONDS:.0f} s" if status is None else f"exited with status {status}"
        return f"{daemon.name} {what}. End of {log}:\n{ending}\n{daemon.hint}"


def start_time(pid: int) -> int | None:
    """Return the start time of a process in clock ticks since boot, or None if it has exited or is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may contain blanks and brackets; the fields after its closing bracket do not.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _ready_within(daemon: Daemon, seconds: float, ended: Callable[[], int | None]) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if ended() is not None:
            return False
        if daemon.ready():
            return True
        time.sleep(_POLL_SECONDS)
    return False


def send_signal(pid: int, number: int, is_meant: Callable[[], bool]) -> bool:
    """Send a signal to a process if `is_meant` returns True. Returns True if the signal was sent.

    Process ids are reused. The process is pinned by a pidfd first and checked afterwards, so that the signal can never
    reach a process that took over the id in between.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        if not is_meant():
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _end(pid: int, grace: float, has_ended: Callable[[], bool]) -> None:
    for number, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, 10.0)):
        if not send_signal(pid, number, lambda: not has_ended()):
            return
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if has_ended():
                return
            time.sleep(0.05)
    raise LocalClusterError(f"Process {pid} did not exit after SIGKILL. `cat /proc/{pid}/stack` shows where it hangs.")
