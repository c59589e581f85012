"""The local cluster goes without a trace, comes back, and survives the death of all its processes.

Runs last: it takes the cluster down.
"""

import json
import os
import signal
import subprocess
import sys


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
    """SIGKILL to every process that serves the cluster, containers included; how many."""
    names = {
        "etcd", "kube-apiserver", "kube-controller-manager", "kube-controller", "kube-scheduler", "kubelet",
        "kube-proxy", "containerd", "containerd-shim-runc-v2", "containerd-shim", "coredns", "weed", "pause",
    }  # fmt: skip
    killed = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                program = os.path.basename(file.read().split(b"\0")[0].decode(errors="replace"))
            if program in names:
                os.kill(int(pid), signal.SIGKILL)
                killed += 1
        except (FileNotFoundError, ProcessLookupError):
            continue
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
