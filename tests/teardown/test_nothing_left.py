"""Removal of the local cluster, and its recovery after all of its processes were killed.

These tests run last, because they take the cluster down.
"""

import json
import subprocess
import sys

import pytest

from local_cluster.host.paths import paths
from local_cluster.host.provider_choice import provider_choice
from local_cluster.node.cleanup import kill_processes

embedded_only = pytest.mark.skipif(
    provider_choice().name != "embedded", reason="the processes of a kind cluster belong to Docker"
)


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
    """Send SIGKILL to every process of this cluster, containers included. Returns how many there were.

    Another cluster on this machine runs the same programs, so ownership decides and not the name of a program.
    """
    return kill_processes(paths())


def test_down_leaves_nothing_and_up_works_again() -> None:
    cluster("down")
    assert_nothing_left()
    cluster("up")
    assert_up()


@embedded_only
def test_up_works_after_everything_was_killed() -> None:
    cluster("up")
    assert kill_everything() >= 8
    cluster("up")
    assert_up()


@embedded_only
def test_down_works_after_everything_was_killed() -> None:
    cluster("up")
    kill_everything()
    cluster("down")
    assert_nothing_left()
    cluster("down")
    assert_nothing_left()
