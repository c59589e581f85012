"""Records which run was computing when a shared pool's trainer crashed, so that one run cannot crash it repeatedly.

Two files are kept in a folder that outlives the container, but not the pod. One names the run whose unit is running;
the other lists crashes ("deaths"). Every normal exit, including one after SIGTERM, removes the name. If a name is
present when the process starts, that run counts as the cause of the previous process's crash.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field
from rlrun.api.base.received import InputInvalid, limits_of, parse
from rlrun.api.base.schema import Schema

log = logging.getLogger(__name__)

WINDOW_SECONDS = 3600.0
"""Age in seconds below which a crash counts."""
MAX_DEATHS = 2
"""Number of crashes within WINDOW_SECONDS at which a run is evicted. A single crash may have another cause."""
MAX_LISTED = 256
"""Maximum number of crashes in the file. The kubelet restarts a container less often within WINDOW_SECONDS."""
NAME_BYTES = 64
"""Size in bytes of the file with the run's name. Uids are shorter."""


class Death(Schema):
    """Crash of the trainer's process."""

    uid: str = Field(min_length=1, max_length=NAME_BYTES)
    """Uid of the run that was computing."""
    at: float
    """Unix time in seconds at which the next process detected the crash."""


class DeathList(Schema):
    """Content of the deaths file."""

    deaths: list[Death] = Field(default_factory=list, max_length=MAX_LISTED)
    """Crashes, oldest first."""


def recent_deaths(deaths: Sequence[Death], now: float) -> list[Death]:
    """Return the crashes less than WINDOW_SECONDS before or after `now`, because the clock may have been set back; at
    most the newest MAX_LISTED.
    """
    return [death for death in deaths if abs(now - death.at) < WINDOW_SECONDS][-MAX_LISTED:]


def is_evicted(deaths: Sequence[Death], uid: str, now: float) -> bool:
    """Return True if the run crashed the process so often that it needs a trainer of its own."""
    return sum(death.uid == uid for death in recent_deaths(deaths, now)) >= MAX_DEATHS


class RunDeaths:
    """Files with the name of the computing run and the list of crashes. If there is no path, nothing is recorded. A
    failure to read or write a file is logged and stops no run.
    """

    def __init__(self, path: Path | None, clock: Callable[[], float] = time.time) -> None:
        """`path` is the deaths file. `clock` returns the Unix time in seconds."""
        self._clock = clock
        self._deaths: list[Death] = []
        self._current = ""
        self._lock = threading.Lock()
        self._file: int | None = None
        if path is None:
            return
        running = path.with_name(f"{path.name}.running")
        try:
            self._record(path, running)
            self._file = os.open(running, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except OSError as error:
            log.warning("Cannot record which run crashes this process: %s; check the folder %s", error, path.parent)

    def enter(self, owner: str) -> None:
        """Write the name of the run whose unit starts, or no name if `owner` is empty. Writes only if the run has
        changed.
        """
        if owner == self._current:
            return
        with self._lock:
            self._write(owner)

    def close(self) -> None:
        """Remove the name of the computing run, because the process exits normally."""
        with self._lock:
            self._write("")
            self._close()

    def is_evicted(self, uid: str) -> bool:
        """Return True if the run is evicted (see the function of the same name)."""
        return is_evicted(self._deaths, uid, self._clock())

    def _write(self, owner: str) -> None:
        if self._file is None:
            return
        self._current = owner
        try:
            os.pwrite(self._file, owner.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0"), 0)
        except OSError as error:
            log.warning("Cannot record which run crashes this process: %s", error)
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def _record(self, path: Path, running: Path) -> None:
        """Read the crashes, and add one if the previous process left the name of a run. Raises OSError."""
        now = self._clock()
        self._deaths = recent_deaths(_read(path), now)
        uid = _read_bytes(running, NAME_BYTES).rstrip(b"\0").decode("utf-8", "replace")
        if not uid:
            return
        log.error("The trainer crashed while computing for run %s", uid)
        self._deaths = recent_deaths([*self._deaths, Death(uid=uid, at=now)], now)
        temporary = path.with_name(f"{path.name}.tmp")
        temporary.write_text(DeathList(deaths=self._deaths).model_dump_json(by_alias=True), encoding="utf-8")
        temporary.replace(path)


def _read(path: Path) -> list[Death]:
    try:
        return parse(DeathList, _read_bytes(path, limits_of(DeathList).size + 1) or b"{}", f"The file {path}").deaths
    except InputInvalid as error:
        log.warning("Earlier crashes of the trainer are not counted: %s", error)
        return []


def _read_bytes(path: Path, limit: int) -> bytes:
    """Return the first `limit` bytes of the file, or nothing if it does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(limit)
    except FileNotFoundError:
        return b""
