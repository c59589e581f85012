"""The Python environment: one installation at a time, and never half of one."""

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.tools.python_environment import MARK, ensure_environment

SECONDS = 900.0


def no_packages(folder: Path, lock: Path) -> None:
    folder.mkdir()


def test_second_command_waits_for_the_first_and_installs_nothing(tmp_path: Path) -> None:
    folder, lock = tmp_path / "environment", tmp_path / "lock"
    entered, proceed = threading.Event(), threading.Event()
    installations = []

    def slowly(folder: Path, lock: Path) -> None:
        installations.append(folder)
        folder.mkdir()
        entered.set()
        assert proceed.wait(SECONDS)
        (folder / "package").touch()

    threads = [threading.Thread(target=ensure_environment, args=(folder, lock, slowly)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert entered.wait(SECONDS)
    assert not (folder / MARK).exists()
    proceed.set()
    for thread in threads:
        thread.join(SECONDS)
    assert installations == [folder]
    assert {file.name for file in folder.iterdir()} == {"package", MARK}


def test_interrupted_installation_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "half").touch()
    ensure_environment(folder, tmp_path / "lock", no_packages)
    assert [file.name for file in folder.iterdir()] == [MARK]


def test_failed_installation_leaves_no_mark(tmp_path: Path) -> None:
    def fail(folder: Path, lock: Path) -> None:
        folder.mkdir()
        raise LocalClusterError("no index")

    folder = tmp_path / "environment"
    with pytest.raises(LocalClusterError):
        ensure_environment(folder, tmp_path / "lock", fail)
    assert not (folder / MARK).exists()


def checkout(folder: Path) -> Path:
    """What `make venv` reads, with a lock without packages."""
    shutil.copytree(REPOSITORY / "local_cluster", folder / "local_cluster")
    shutil.copy(REPOSITORY / "Makefile", folder)
    (folder / "requirements").mkdir()
    (folder / "requirements" / "dev.lock").write_text("# no packages\n")
    return folder


def make_venv(checkout: Path, cache: Path) -> "subprocess.Popen[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.Popen(
        ["make", "venv"],
        cwd=checkout,
        env=environment | {"RLRUN_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_make_in_two_checkouts_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    makes = [make_venv(checkout(tmp_path / name), cache) for name in ("one", "two")]
    outputs = [make.communicate(timeout=SECONDS) for make in makes]
    assert [make.returncode for make in makes] == [0, 0], outputs
    assert sum("Python environment" in errors and "done" in errors for _, errors in outputs) == 1
    (environment,) = {Path(output.strip()) for output, _ in outputs}
    pip = subprocess.run([environment / "bin" / "pip", "--version"], capture_output=True, text=True, check=False)
    assert pip.returncode == 0, pip.stderr


@pytest.mark.slow
def test_make_after_a_killed_one(tmp_path: Path) -> None:
    cache, tree = tmp_path / "cache", checkout(tmp_path / "tree")
    first = make_venv(tree, cache)
    wait_until(lambda: any((cache / "venv").glob("*/bin/python")))
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=SECONDS)
    assert not list((cache / "venv").glob(f"*/{MARK}"))
    second = make_venv(tree, cache)
    output, errors = second.communicate(timeout=SECONDS)
    assert second.returncode == 0, errors
    assert (Path(output.strip()) / MARK).exists()
