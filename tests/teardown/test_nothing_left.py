"""The local cluster goes without a trace, comes back, and survives the death of all its processes.

Runs last: it takes the cluster down.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

from local_cluster import traces
from local_cluster.paths import paths


def cluster(*args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "local_cluster", *args], capture_output=True, text=True, check=check, timeout=600
    )


def assert_nothing_left() -> None:
    answer = cluster("leftovers", check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def assert_up() -> None:
    status = json.loads(cluster("status", "--json").stdout)
    nodes = subprocess.run(
        [status["kubectl"], "--kubeconfig", status["kubeconfig"], "get", "nodes", "--no-headers"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert " Ready " in nodes


def kill_everything() -> int:
    """Send SIGKILL to every process of this cluster, containers included; return to how many.

    They are known by the state directory in their arguments and by their control group, never by their name: another
    cluster of this machine has processes of the same names.
    """
    killed = 0
    for pid in traces.processes(paths()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            killed += 1
    return killed


def test_down_leaves_nothing_and_up_works_again() -> None:
    cluster("down")
    assert_nothing_left()
    cluster("up")
    assert_up()


def test_up_works_after_everything_was_killed() -> None:
    cluster("up")
    assert kill_everything() >= 8
    cluster("up")
    assert_up()


def test_down_works_after_everything_was_killed() -> None:
    cluster("up")
    kill_everything()
    cluster("down")
    assert_nothing_left()
    cluster("down")
    assert_nothing_left()
