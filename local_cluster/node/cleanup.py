"""Removing traces, children first: containers and shims, then daemons, mounts, namespaces, links, rules, groups, files.

Every step can be repeated and none needs the one before to have worked; what can't be removed is left for
`leftovers` to name.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import MARKER, Paths
from local_cluster.host.shell import run
from local_cluster.node import host_leftovers

_WAIT_SECONDS = 15.0
_SHARED_FOLDERS = (
    "/var/lib/kubelet/device-plugins",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/lib/cni/results",
    "/var/lib/cni",
    "/run/containerd/s",
    "/run/containerd",
)


def remove_traces(paths: Paths) -> Counter[str]:
    """Remove everything that `traces` finds, but for the state directory. Returns how many of each kind."""
    removed: Counter[str] = Counter()
    removed["processes"] = kill_processes(paths)
    # While the bundles still exist, they say where the shims' sockets are.
    outside = [file for file in host_leftovers.files(paths) if file != paths.state]
    removed["mounts"] = unmount(paths)
    removed["links"] = remove_links()
    removed["iptables rules and chains"] = remove_rules()
    removed["cgroups"] = remove_cgroups()
    removed["files"] = remove_files(outside)
    return +removed


def kill_processes(paths: Paths) -> int:
    """SIGKILL until nothing is left; the kubelet first, or it would start containers again meanwhile."""
    seen: set[int] = set()

    def all_gone() -> bool:
        found = host_leftovers.processes(paths)
        for pid, _ in sorted(found.items(), key=lambda item: "kubelet" not in item[1]):
            seen.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    _wait(all_gone)
    return len(seen)


def unmount(paths: Paths) -> int:
    """Unmount everything below the cluster's directories; a busy mount is detached and goes with its last user."""
    points = host_leftovers.mounts(paths)
    for point in points:
        if run(["umount", point], check=False).returncode != 0:
            run(["umount", "--lazy", point], check=False)
    return len(points)


def remove_links() -> int:
    """Delete the pods' veth pairs; the kernel removes those itself whose namespace is gone, a little later."""
    names = host_leftovers.links()
    for name in names:
        run(["ip", "link", "delete", name], check=False)
    _wait(lambda: not host_leftovers.links())
    return len(names)


def remove_rules() -> int:
    """Delete the chains of kube-proxy and kubelet, a table at a time, and nobody else's rules."""
    count = 0
    for where, changes in host_leftovers.rules().items():
        program, table = where.split(" ")
        script = "\n".join([f"*{table}", *changes, "COMMIT", ""])
        if run([f"{program}-restore", "--noflush"], stdin=script, check=False).returncode != 0:
            _remove_one_by_one(program, table, changes)
        count += len(changes)
    return count


def remove_cgroups() -> int:
    """Remove the pods' control groups, innermost first."""
    count = 0
    for root in host_leftovers.cgroup_roots():
        for folder, _, _ in os.walk(root, topdown=False):
            _wait(partial(_removed, Path(folder)), seconds=3.0)
            count += 1
    return count


def remove_files(files: list[Path]) -> int:
    """Remove files outside the state directory, and the fixed directories around them that this leaves empty."""
    for file in files:
        file.unlink(missing_ok=True)
    for folder in _SHARED_FOLDERS:
        with suppress(OSError):  # absent, or not empty: then others use it
            Path(folder).rmdir()
    return len(files)


def remove_tree(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Remove a directory of the cluster's, unless something is still mounted in it: that could be anybody's data."""
    if not directory.exists():
        return
    still = host_leftovers.parse_mounts(mountinfo.read_text(), [directory])
    if still:
        raise LocalClusterError(f"Still mounted below {directory}: {', '.join(still)}. Unmount it, then repeat.")
    shutil.rmtree(directory)


def remove_state(paths: Paths) -> None:
    """Remove the state directory, if it is one."""
    if paths.state.exists() and any(paths.state.iterdir()) and not (paths.state / MARKER).exists():
        raise LocalClusterError(
            f"{paths.state} was not made by the local cluster (it has no {MARKER} in it) and is left alone. "
            "Set RLRUN_STATE to another directory."
        )
    remove_tree(paths.state)


def _remove_one_by_one(program: str, table: str, changes: list[str]) -> None:
    for change in changes:
        run([program, "-w", "-t", table, *shlex.split(change)], check=False)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _wait(done: Callable[[], bool], seconds: float = _WAIT_SECONDS) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
