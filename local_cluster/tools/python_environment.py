"""The project's Python environment, shared by all checkouts with the same lock.

`python3 -m local_cluster.tools.python_environment FOLDER LOCK`, for the Makefile. Needs nothing but Python.

The environment is made under its final name: the scripts of a virtual environment name their interpreter by an absolute
path, so a renamed environment would not run. A file lock keeps other commands out until the mark `.complete` is
written. A folder without the mark is the rest of an interrupted installation, and is made again.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.locks import file_lock
from local_cluster.host.progress import progress
from local_cluster.host.shell import run

MARK = ".complete"
"""File in a finished environment. The Makefile's target has this name."""

Install = Callable[[Path, Path], None]


def install(folder: Path, lock: Path) -> None:
    """Make a virtual environment with the packages of a lock. Raises LocalClusterError."""
    run([sys.executable, "-m", "venv", folder], next_step="On Debian, `apt-get install python3-venv` provides venv.")
    # The lock is complete, with a version that one of its packages does not admit: requirements/environment-v0-with.in.
    options = ("--quiet", "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:")
    run(
        [folder / "bin" / "python", "-m", "pip", "install", *options, "-r", lock],
        next_step="Check that pip can reach its package index, then repeat the command.",
    )


def ensure_environment(folder: Path, lock: Path, install: Install = install) -> None:
    """Make the environment unless it is complete. Waits while another command makes it. Raises LocalClusterError."""
    mark = folder / MARK
    with file_lock(folder.with_name(folder.name + ".lock")):
        if mark.exists():
            return
        with progress.step("Python environment (once per requirements/dev.lock, about 2 min)"):
            if folder.exists():
                shutil.rmtree(folder)
            install(folder, lock)
            mark.touch()


def main() -> None:
    """Make the environment that the arguments name."""
    folder, lock = (Path(argument) for argument in sys.argv[1:])
    try:
        ensure_environment(folder, lock)
    except LocalClusterError as error:
        progress.say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
