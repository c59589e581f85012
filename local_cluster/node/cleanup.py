"""Removal of leftovers: processes first, then mounts, links, rules, control groups and files.

Every step can be repeated and works if an earlier step failed. `leftovers` lists what could not be removed. Only
processes of this cluster are killed, as identified by `host_leftovers`.
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

from local_cluster.host.daemons import send_signal
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


def remove_leftovers(paths: Paths) -> Counter[str]:
    """Remove all leftovers except the state directory. Returns the number of each kind."""
    removed: Counter[str] = Counter()
    removed["processes"] = kill_processes(paths)
    # The bundles name the shims' sockets, so list the files before removing the mounts.
    outside = [file for file in host_leftovers.files(paths) if file != paths.state]
    removed["mounts"] = unmount(paths)
    removed["links"] = remove_links(paths)
    removed["iptables rules and chains"] = remove_rules(paths)
    removed["IP sets"] = remove_ip_sets(paths)
    removed["cgroups"] = remove_cgroups(paths)
    removed["files"] = remove_files(outside)
    return +removed


def kill_processes(paths: Paths) -> int:
    """Send SIGKILL until no process of the cluster is left. The kubelet comes first, because it restarts containers."""
    seen: set[int] = set()

    def all_gone() -> bool:
        found = host_leftovers.processes(paths)
        for pid, _ in sorted(found.items(), key=lambda item: "kubelet" not in item[1]):
            if send_signal(pid, signal.SIGKILL, partial(_is_owned, pid, paths)):
                seen.add(pid)
        return not found

    _wait(all_gone)
    return len(seen)


def _is_owned(pid: int, paths: Paths) -> bool:
    return host_leftovers.owned_command(pid, paths) is not None


def unmount(paths: Paths) -> int:
    """Unmount everything below the cluster's directories. A busy mount is detached until its last user exits."""
    points = host_leftovers.mounts(paths)
    for point in points:
        if run(["umount", point], check=False).returncode != 0:
            run(["umount", "--lazy", point], check=False)
    return len(points)


def remove_links(paths: Paths) -> int:
    """Delete the pods' veth pairs, and wait until the kernel has removed pairs whose network namespace is gone."""
    names = host_leftovers.links(paths)
    for name in names:
        run(["ip", "link", "delete", name], check=False)
    _wait(lambda: not host_leftovers.links(paths))
    return len(names)


def remove_rules(paths: Paths) -> int:
    """Delete the chains of kube-proxy and kubelet and the jumps to them, one table at a time."""
    count = 0
    for where, changes in host_leftovers.rules(paths).items():
        program, table = where.split(" ")
        script = "\n".join([f"*{table}", *changes, "COMMIT", ""])
        if run([f"{program}-restore", "--noflush"], stdin=script, check=False).returncode != 0:
            _remove_one_by_one(program, table, changes)
        count += len(changes)
    return count


def remove_ip_sets(paths: Paths) -> int:
    """Delete kube-router's sets. A set that a rule refers to cannot be deleted, so the rules are deleted first."""
    names = host_leftovers.ip_sets(paths)
    for name in names:
        run(["ipset", "destroy", name], check=False)
    return len(names)


def remove_cgroups(paths: Paths) -> int:
    """Remove the control groups of the pods, innermost first."""
    count = 0
    for root in host_leftovers.cgroup_roots(paths):
        for folder, _, _ in os.walk(root, topdown=False):
            _wait(partial(_removed, Path(folder)), seconds=3.0)
            count += 1
    return count


def remove_files(files: list[Path]) -> int:
    """Remove files outside the state directory, and the standard directories around them if they are empty."""
    for file in files:
        file.unlink(missing_ok=True)
    for folder in _SHARED_FOLDERS:
        with suppress(OSError):  # Absent, or used by other programs.
            Path(folder).rmdir()
    return len(files)


def remove_tree(directory: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
    """Remove a directory of the cluster. Raises LocalClusterError if it has mounts, which may contain other data."""
    if not directory.exists():
        return
    still = host_leftovers.parse_mounts(mountinfo.read_text(), [directory])
    if still:
        raise LocalClusterError(
            f"Still mounted below {directory}: {', '.join(still)}. Unmount it, then repeat the command."
        )
    shutil.rmtree(directory)


def remove_state(paths: Paths) -> None:
    """Remove the state directory. Raises an error for a directory that the local cluster did not create."""
    if paths.state.exists() and any(paths.state.iterdir()) and not (paths.state / MARKER).exists():
        raise LocalClusterError(
            f"{paths.state} was not created by the local cluster (it contains no {MARKER}) and was not removed. "
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
