"""Python environment of the project, shared by all checkouts with the same lock file.

`python3 -m local_cluster.tools.python_environment FOLDER LOCK`, called by the Makefile. Needs only Python.

The environment is created under its final name, because the scripts of a virtual environment refer to their interpreter
by absolute path and would break after a rename. A file lock blocks other commands until the file `.complete` is
written. A folder without this file is left over from an interrupted installation and is created again.
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
"""Marker file in a finished environment. The file is the Makefile's target."""

Install = Callable[[Path, Path], None]


def install(folder: Path, lock: Path) -> None:
    """Create a virtual environment with the packages of a lock file. Raises LocalClusterError."""
    run([sys.executable, "-m", "venv", folder], next_step="On Debian, `apt-get install python3-venv` provides venv.")
    # The lock is complete, but has a version that one of its packages rejects: requirements/environment-v0-with.in.
    options = ("--quiet", "--no-deps", "--no-compile", "--require-hashes", "--only-binary", ":all:")
    run(
        [folder / "bin" / "python", "-m", "pip", "install", *options, "-r", lock],
        next_step="Check that pip can reach its package index, then repeat the command.",
    )


def ensure_environment(folder: Path, lock: Path, install: Install = install) -> None:
    """Create the environment unless it is complete. Waits for a creation in progress. Raises LocalClusterError."""
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
    """Create the environment given by the arguments."""
    folder, lock = (Path(argument) for argument in sys.argv[1:])
    try:
        ensure_environment(folder, lock)
    except LocalClusterError as error:
        progress.say(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
