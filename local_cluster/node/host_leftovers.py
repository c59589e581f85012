"""Search for leftovers of the cluster on the machine, outside its own files.

The search reads processes, mounts, namespaces, links, rules and control groups from the kernel and does not rely on any
record of what was started. It therefore also finds leftovers of a cluster that was killed. A process belongs to this
cluster only if its command line names the state directory or it runs in the control group of that directory; the name
of its program proves nothing. The `parse_*` functions are pure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from local_cluster.host import network
from local_cluster.host.daemons import start_time
from local_cluster.host.paths import MARKER, Paths
from local_cluster.host.shell import run
from local_cluster.node.node_config import CNI_NETWORK

CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_DAEMONS = {
    *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kube-proxy", "kube-router", "containerd", "containerd-shim-runc-v2"),
    *("containerd-shim-runsc-v1", "runsc-sandbox", "runsc-gofer"),
}
_CHAIN = re.compile(r"^:(KUBE-\S+) ")
_IP_SET = re.compile(r"^(inet6:)?(KUBE-(SRC|DST)-|kube-router-)")
_RULE = re.compile(r"^-A (\S+) (.*)$")
_GATEWAY = network.NODE_POD_RANGE.split("/")[0].rpartition(".")[0] + ".1"
_SYMLINKS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


@dataclass
class HostLeftovers:
    """Leftovers found on the machine, by kind."""

    processes: dict[int, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    rules: dict[str, list[str]] = field(default_factory=dict)
    ip_sets: list[str] = field(default_factory=list)
    cgroups: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return one line per leftover."""
        found = [f"process {pid}: {command}" for pid, command in sorted(self.processes.items())]
        found += [f"mount {mount}" for mount in self.mounts]
        found += [f"link {link}" for link in self.links]
        found += [f"rule in {where}: {rule}" for where, rules in self.rules.items() for rule in rules]
        found += [f"IP set {name}" for name in self.ip_sets]
        found += [f"cgroup {group}" for group in self.cgroups]
        found += [f"file {file}" for file in self.files]
        return found


def find(paths: Paths) -> HostLeftovers:
    """Search the machine."""
    return HostLeftovers(
        processes=processes(paths),
        mounts=mounts(paths),
        links=links(paths),
        rules=rules(paths),
        ip_sets=ip_sets(paths),
        cgroups=cgroup_roots(paths),
        files=files(paths),
    )


def processes(paths: Paths, proc: Path = _PROC) -> dict[int, str]:
    """Return the cluster's processes with the start of their command lines: daemons, shims and processes of pods."""
    found = {}
    for pid in _process_ids(proc):
        command = owned_command(pid, paths, proc)
        if command is not None:
            found[pid] = command[:120]
    return found


def owned_command(pid: int, paths: Paths, proc: Path = _PROC) -> str | None:
    """Return the command line of a process that belongs to the cluster, or None for any other process."""
    try:
        command = _command(pid, proc)
        groups = (proc / str(pid) / "cgroup").read_text()
    except OSError:  # exited in the meantime
        return None
    if pid == os.getpid() or not (is_daemon(command, paths) or in_cluster_group(groups, paths)):
        return None
    # A zombie holds nothing and cannot be killed; it disappears when its parent collects it.
    return command if start_time(pid) is not None else None


def is_daemon(command: str, paths: Paths) -> bool:
    """Return True for the command line of this cluster's daemon or shim, which names a path in the state directory."""
    return _program(command) in _DAEMONS and mentions(command, paths.state)


def another_cluster_runs(paths: Paths, proc: Path = _PROC) -> bool:
    """Return True if a kube-proxy of another cluster runs in this network namespace. It may own rules and links."""
    own_network = os.readlink(proc / "self" / "ns" / "net")
    for pid in _process_ids(proc):
        try:
            command = _command(pid, proc)
            if _program(command) != "kube-proxy" or mentions(command, paths.state):
                continue
            if os.readlink(proc / str(pid) / "ns" / "net") == own_network:
                return True
        except OSError:  # exited in the meantime
            continue
    return False


def mentions(text: str, directory: Path) -> bool:
    """Return True if a text names the directory or a path below it, but not a longer name with the same prefix."""
    return re.search(re.escape(str(directory)) + r"(?![\w.-])", text) is not None


def in_cluster_group(groups: str, paths: Paths) -> bool:
    """Return True if a group in the text of /proc/<pid>/cgroup is below the group of this state directory."""
    return any(line.split(":", 2)[-1].startswith(f"/{paths.cgroup}/") for line in groups.splitlines())


def mounts(paths: Paths) -> list[str]:
    """Return mount points below the directories of the cluster, innermost first."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text(), [paths.state, paths.containerd_root])


def parse_mounts(mountinfo: str, below: Iterable[Path]) -> list[str]:
    """Return the mount points of a mountinfo text below the directories, in the order to unmount them."""
    prefixes = tuple(f"{directory}/" for directory in below)
    points = [_unescape(line.split(" ")[4]) for line in mountinfo.splitlines() if line]
    return [point for point in reversed(points) if point.startswith(prefixes)]


def links(paths: Paths) -> list[str]:
    """Return the host ends of the pods' veth pairs."""
    if shutil.which("ip") is None or another_cluster_runs(paths):
        return []
    return parse_links(run(["ip", "-json", "-4", "address", "show"]).stdout)


def parse_links(text: str) -> list[str]:
    """Return the links with the gateway address of the pod network; `ptp` gives it to every host end."""
    return [
        str(link["ifname"])
        for link in json.loads(text or "[]")
        if any(address.get("local") == _GATEWAY for address in link.get("addr_info", []))
    ]


def rules(paths: Paths) -> dict[str, list[str]]:
    """Return chains and rules of kube-proxy and kubelet, by `<program> <table>`."""
    found: dict[str, list[str]] = {}
    if another_cluster_runs(paths):
        return found
    for program in ("iptables", "ip6tables"):
        if shutil.which(f"{program}-save") is None:
            continue
        saved = run([f"{program}-save"], check=False).stdout
        for table, changes in parse_rules(saved).items():
            found[f"{program} {table}"] = changes
    return found


def parse_rules(saved: str) -> dict[str, list[str]]:
    """Return input for `iptables-restore --noflush` that removes every KUBE- chain and the rules that jump there.

    Args:
        saved: Output of iptables-save.

    Returns:
        Per table, in order: rules to delete from other chains, chains to empty, chains to delete.
    """
    found: dict[str, list[str]] = {}
    table = ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table, chains, deletions = line[1:], [], []
        elif chain := _CHAIN.match(line):
            chains.append(chain[1])
        elif rule := _RULE.match(line):
            if not rule[1].startswith("KUBE-") and re.search(r"(-j|-g) KUBE-", rule[2]):
                deletions.append(f"-D {rule[1]} {rule[2]}")
        elif line == "COMMIT" and (chains or deletions):
            found[table] = [*deletions, *(f"-F {name}" for name in chains), *(f"-X {name}" for name in chains)]
    return found


def ip_sets(paths: Paths) -> list[str]:
    """Return the IP sets to which the rules of kube-router refer."""
    if shutil.which("ipset") is None or another_cluster_runs(paths):
        return []
    return parse_ip_sets(run(["ipset", "list", "-name"], check=False).stdout)


def parse_ip_sets(listing: str) -> list[str]:
    """Return the names in a list of IP sets that belong to kube-router, for IPv4 and IPv6."""
    return [name for name in listing.split() if _IP_SET.match(name)]


def cgroup_roots(paths: Paths, root: Path = CGROUPS) -> list[Path]:
    """Return the control group of the cluster in each hierarchy; with cgroup v2 there is only one."""
    candidates = [root / paths.cgroup, *(root.glob(f"*/{paths.cgroup}"))]
    return sorted({group.resolve() for group in candidates if group.is_dir()})


def files(paths: Paths, results: Path = _CNI_RESULTS, proc: Path = _PROC) -> list[Path]:
    """Return the state directory, and the files that kubelet and network plugins create outside of it."""
    found = [paths.state] if (paths.state / MARKER).exists() else []
    if _SYMLINKS.is_dir():
        logs = str(paths.state / "pod-logs")
        found += [link for link in _SYMLINKS.iterdir() if link.is_symlink() and os.readlink(link).startswith(logs)]
    found += shim_sockets(paths)
    if another_cluster_runs(paths, proc):  # The files below do not name their cluster.
        return found
    found += cni_results(results)
    socket = _DEVICE_PLUGINS / "kubelet.sock"
    # The kubelet of another cluster has its root there, with many more files.
    if socket.exists() and not (_DEVICE_PLUGINS.parent / "config.yaml").exists():
        found.append(socket)
    return found


def cni_results(directory: Path) -> list[Path]:
    """Return the files in which the network plugins record the address and the loopback device of each pod."""
    found = []
    for result in sorted(directory.glob(f"{CNI_NETWORK}-*")):
        sandbox = result.name.removeprefix(f"{CNI_NETWORK}-").rpartition("-")[0]
        found += [result, *directory.glob(f"cni-loopback-{sandbox}-*")]
    return found


def shim_sockets(paths: Paths) -> list[Path]:
    """Return the sockets of container shims, which tasks create outside containerd's state directory."""
    sockets = []
    for address in paths.containerd_state.glob("io.containerd.runtime.v2.task/*/*/address"):
        socket = Path(address.read_text().strip().removeprefix("unix://"))
        if socket.exists():
            sockets.append(socket)
    return sockets


def _process_ids(proc: Path) -> list[int]:
    return [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]


def _command(pid: int, proc: Path) -> str:
    return (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def _program(command: str) -> str:
    return os.path.basename(command.split(" ", 1)[0])


def _unescape(point: str) -> str:
    """Decode the octal escapes with which the kernel writes blanks and backslashes in paths."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)
