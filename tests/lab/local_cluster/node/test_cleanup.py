"""Removal of leftovers: what belongs to the cluster goes, everything else stays."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import MARKER, Paths
from local_cluster.node import cleanup


def planted(program: str, argument: Path) -> subprocess.Popen[bytes]:
    """Start a process that looks like a daemon on the command line."""
    argv = [program, "-c", "import time; time.sleep(60)", f"--data-dir={argument}"]
    return subprocess.Popen(argv, executable=sys.executable, stdin=subprocess.DEVNULL)


def test_only_processes_of_the_own_state_directory_are_killed(tmp_path: Path) -> None:
    """Two clusters run the same programs: the name of a program says nothing about its cluster."""
    paths = Paths(state=tmp_path / "ours", cache=tmp_path / "cache")
    own = [planted(name, paths.state / "data") for name in ("etcd", "kubelet", "/usr/bin/containerd")]
    foreign = [
        planted("etcd", tmp_path / "theirs" / "data"),
        planted("kubelet", tmp_path / "ours-too" / "data"),
        planted("editor", paths.state / "config"),
    ]
    try:
        assert cleanup.kill_processes(paths) == len(own)
        assert [process.wait(timeout=10) for process in own] == [-signal.SIGKILL] * len(own)
        assert [process.poll() for process in foreign] == [None] * len(foreign)
    finally:
        for process in (*own, *foreign):
            process.kill()
            process.wait()


def test_directory_without_the_marker_is_not_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "thesis.txt").touch()
    paths = Paths(state=state, cache=tmp_path / "cache")
    with pytest.raises(LocalClusterError, match="RLRUN_STATE"):
        cleanup.remove_state(paths)
    (state / MARKER).touch()
    cleanup.remove_state(paths)
    assert not state.exists()


def test_directory_with_a_mount_in_it_is_not_removed(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    directory = tmp_path / "images"
    directory.mkdir()
    mountinfo.write_text(f"1 1 0:1 / {directory}/mnt rw - tmpfs tmpfs rw\n")
    with pytest.raises(LocalClusterError, match="Still mounted"):
        cleanup.remove_tree(directory, mountinfo)
    assert directory.exists()
