"""Programs installed by the user. The kind provider uses these; the embedded one builds its own."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.shell import run

_VERSION = re.compile(r"\bv(\d+)\.(\d+)")
_ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class UserProgram:
    """Program on PATH.

    Attributes:
        name: Name of the command.
        version_arguments: Arguments that make it print its version without a cluster.
        minimum: Oldest supported version, major and minor.
        guide: Page with installation instructions.
    """

    name: str
    version_arguments: tuple[str, ...]
    minimum: tuple[int, int]
    guide: str


# The oldest Kubernetes that the chart accepts is 1.32; kind 0.26 has it in its node image, and Helm 3.17 supports it.
KIND = UserProgram("kind", ("version",), (0, 26), "https://kind.sigs.k8s.io/docs/user/quick-start/#installation")
KUBECTL = UserProgram(
    "kubectl", ("version", "--client", "-o", "json"), (1, 31), "https://kubernetes.io/docs/tasks/tools/"
)
HELM = UserProgram("helm", ("version", "--template", "{{.Version}}"), (3, 17), "https://helm.sh/docs/intro/install/")


def find_user_program(program: UserProgram) -> Path:
    """Return the path of a program on PATH.

    Raises:
        LocalClusterError: The program is missing or too old.
    """
    wanted = ".".join(map(str, program.minimum))
    advice = f"Install {program.name} {wanted} or newer: {program.guide}"
    path = shutil.which(program.name)
    if path is None:
        raise LocalClusterError(f"{program.name} is not on PATH. {advice}")
    output = run([path, *program.version_arguments], check=False, timeout=_ANSWER_SECONDS).stdout
    version = parse_version(output)
    if version is None:
        raise LocalClusterError(f"`{program.name} {' '.join(program.version_arguments)}` prints no version. {advice}")
    if version < program.minimum:
        raise LocalClusterError(f"{path} has version {version[0]}.{version[1]}. {advice}")
    return Path(path)


def parse_version(output: str) -> tuple[int, int] | None:
    """Return the first version (major and minor) in the output of a program, or None if there is none."""
    match = _VERSION.search(output)
    return (int(match[1]), int(match[2])) if match else None
