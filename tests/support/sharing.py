"""One server for all pytest workers of a call.

The worker that needs it first starts it; the others find it. The worker that started it ends it, after all others have
left. A worker that is killed leaves by itself: its lock goes with it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO

import pytest

POLL_SECONDS = 0.1


def folder_of_all_workers(factory: pytest.TempPathFactory) -> Path:
    """Return a temporary folder that all workers of this call of pytest have in common."""
    own = factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


@contextmanager
def shared(folder: Path, name: str, start: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    """Yield what `start` yields in the worker that comes first.

    Args:
        folder: A folder that all workers have in common.
        name: Names the server; each name is started once.
        start: Starts the server and yields a text by which another process finds it.
    """
    description = folder / f"{name}.description"
    # Held while looking at or changing who is there, and while the server starts.
    gate = folder / f"{name}.gate"
    with (folder / f"{name}.users").open("a") as users:
        with _locked(gate):
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (ours := not description.exists()):
                text = description.read_text()
            else:
                server = start()
                text = server.__enter__()
                description.write_text(text)
        try:
            yield text
        finally:
            if ours:
                while not _ended(gate, users, description):
                    time.sleep(POLL_SECONDS)
                server.__exit__(None, None, None)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _ended(gate: Path, users: IO[str], description: Path) -> bool:
    """Withdraw the server if this worker is its last user; return whether it was."""
    with _locked(gate):
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        description.unlink()
        return True
