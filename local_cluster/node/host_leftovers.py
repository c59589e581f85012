"""What the cluster leaves on the machine outside its files, found by looking at the machine.

Nothing here trusts a record of what was started: processes, mounts, namespaces, links, rules and control groups are
read from the kernel, so traces of a cluster that was killed, or that an earlier version made, are found as well. The
`parse_*` functions are pure.
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
from local_cluster.node.node_config import CGROUP_ROOT, CNI_NETWORK

CGROUPS = Path("/sys/fs/cgroup")
_CHAIN = re.compile(r"^:(KUBE-\S+) ")
_RULE = re.compile(r"^-A (\S+) (.*)$")
_GATEWAY = network.NODE_POD_RANGE.split("/")[0].rpartition(".")[0] + ".1"
_SYMLINKS = Path("/var/log/containers")
_CNI_RESULTS = Path("/var/lib/cni/results")
_DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")


@dataclass
class HostLeftovers:
    """Everything found, by kind."""

    processes: dict[int, str] = field(default_factory=dict)
    mounts: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    rules: dict[str, list[str]] = field(default_factory=dict)
    cgroups: list[Path] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def lines(self) -> list[str]:
        """One line per trace; no line means that nothing is left."""
        found = [f"process {pid}: {command}" for pid, command in sorted(self.processes.items())]
        found += [f"mount {mount}" for mount in self.mounts]
        found += [f"link {link}" for link in self.links]
        found += [f"rule in {where}: {rule}" for where, rules in self.rules.items() for rule in rules]
        found += [f"cgroup {group}" for group in self.cgroups]
        found += [f"file {file}" for file in self.files]
        return found


def find(paths: Paths) -> HostLeftovers:
    """Look at the machine."""
    return HostLeftovers(
        processes=processes(paths),
        mounts=mounts(paths),
        links=links(),
        rules=rules(),
        cgroups=cgroup_roots(),
        files=files(paths),
    )


def processes(paths: Paths) -> dict[int, str]:
    """Daemons and shims (their arguments name the state directory) and whatever runs in the pods' control groups."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            groups = (entry / "cgroup").read_text()
        except OSError:  # ended meanwhile
            continue
        # A zombie holds nothing and can't be killed; it goes when its parent looks.
        if (is_daemon(command, paths) or in_cluster_group(groups)) and start_time(int(entry.name)) is not None:
            found[int(entry.name)] = command[:120]
    return found


def is_daemon(command: str, paths: Paths) -> bool:
    """Whether a command line is one of the cluster's daemons: a program of it, with a path of this state directory."""
    program = os.path.basename(command.split(" ", 1)[0])
    names = ("etcd", "kube-", "kubelet", "containerd")
    return program.startswith(names) and mentions(command, paths.state)


def mentions(text: str, directory: Path) -> bool:
    """Whether a text names the directory or something below it, and not just a longer name that starts the same."""
    return re.search(re.escape(str(directory)) + r"(?![\w.-])", text) is not None


def in_cluster_group(groups: str) -> bool:
    """Whether the text of /proc/<pid>/cgroup lies below the cluster's group, in any hierarchy."""
    return any(line.split(":", 2)[-1].startswith(f"/{CGROUP_ROOT}/") for line in groups.splitlines())


def mounts(paths: Paths) -> list[str]:
    """Mount points below the cluster's directories, innermost first."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text(), [paths.state, paths.containerd_root])


def parse_mounts(mountinfo: str, below: Iterable[Path]) -> list[str]:
    """Mount points of a mountinfo text that lie below the directories, in the order to unmount them."""
    prefixes = tuple(f"{directory}/" for directory in below)
    points = [_unescape(line.split(" ")[4]) for line in mountinfo.splitlines() if line]
    return [point for point in reversed(points) if point.startswith(prefixes)]


def links() -> list[str]:
    """Host ends of the pods' veth pairs."""
    if shutil.which("ip") is None:
        return []
    return parse_links(run(["ip", "-json", "-4", "address", "show"]).stdout)


def parse_links(text: str) -> list[str]:
    """Names of the links that carry the pod network's gateway address: `ptp` gives it to every host end."""
    return [
        str(link["ifname"])
        for link in json.loads(text or "[]")
        if any(address.get("local") == _GATEWAY for address in link.get("addr_info", []))
    ]


def rules() -> dict[str, list[str]]:
    """Chains and rules of kube-proxy and kubelet, by `<program> <table>`."""
    found = {}
    for program in ("iptables", "ip6tables"):
        if shutil.which(f"{program}-save") is None:
            continue
        saved = run([f"{program}-save"], check=False).stdout
        for table, changes in parse_rules(saved).items():
            found[f"{program} {table}"] = changes
    return found


def parse_rules(saved: str) -> dict[str, list[str]]:
    """What `iptables-restore --noflush` has to be told to remove every KUBE- chain and the rules that jump there.

    Args:
        saved: Output of iptables-save.

    Returns:
        Per table, in order: rules to delete from others' chains, chains to empty, chains to delete.
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


def cgroup_roots() -> list[Path]:
    """The cluster's control group, in each hierarchy (one on a unified machine)."""
    candidates = [CGROUPS / CGROUP_ROOT, *(CGROUPS.glob(f"*/{CGROUP_ROOT}"))]
    return sorted({group.resolve() for group in candidates if group.is_dir()})


def files(paths: Paths) -> list[Path]:
    """Files outside the state directory that the kubelet and the network plugin place, and the state itself."""
    found = [paths.state] if (paths.state / MARKER).exists() else []
    if _SYMLINKS.is_dir():
        logs = str(paths.state / "pod-logs")
        found += [link for link in _SYMLINKS.iterdir() if link.is_symlink() and os.readlink(link).startswith(logs)]
    found += cni_results()
    found += shim_sockets(paths)
    socket = _DEVICE_PLUGINS / "kubelet.sock"
    # A kubelet of somebody else's cluster has its root there, with much more in it.
    if socket.exists() and not (_DEVICE_PLUGINS.parent / "config.yaml").exists():
        found.append(socket)
    return found


def cni_results(directory: Path = _CNI_RESULTS) -> list[Path]:
    """What the network plugins' library remembers of each pod: its address, and the loopback device beside it."""
    found = []
    for result in sorted(directory.glob(f"{CNI_NETWORK}-*")):
        sandbox = result.name.removeprefix(f"{CNI_NETWORK}-").rpartition("-")[0]
        found += [result, *directory.glob(f"cni-loopback-{sandbox}-*")]
    return found


def shim_sockets(paths: Paths) -> list[Path]:
    """Sockets of container shims, which containerd keeps outside its state directory; each task names its own."""
    sockets = []
    for address in paths.containerd_state.glob("io.containerd.runtime.v2.task/*/*/address"):
        socket = Path(address.read_text().strip().removeprefix("unix://"))
        if socket.exists():
            sockets.append(socket)
    return sockets


def _unescape(point: str) -> str:
    """The kernel writes blanks and backslashes of paths as octal escapes."""
    return re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), point)
