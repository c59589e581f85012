"""Machines on which the local cluster cannot run."""

import subprocess
import sys

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.machine import require_supported
from local_cluster.host.paths import REPOSITORY


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [
        ("Darwin", "arm64", r"This machine is Darwin on arm64\. .*requirements/\*\.lock are resolved for it"),
        ("Darwin", "x86_64", r"This machine is Darwin on x86_64\. The local cluster needs Linux"),
        ("Linux", "aarch64", r"This machine is Linux on aarch64\. The local cluster needs x86_64"),
    ],
)
def test_unsupported_machine_is_refused_with_the_reason(system: str, machine: str, reason: str) -> None:
    with pytest.raises(LocalClusterError, match=reason):
        require_supported(system, machine)


@pytest.mark.parametrize("machine", ["x86_64", "amd64"])
def test_linux_on_x86_64_is_supported(machine: str) -> None:
    require_supported("Linux", machine)


def test_make_checks_the_machine_first() -> None:
    """Before the Python environment, whose packages would be the first to fail."""
    for target in ("demo", "test", "up"):
        plan = subprocess.run(
            ["make", "--no-print-directory", "-n", target, "RLRUN_CACHE=/nowhere", "PYTHON3=python3"],
            cwd=REPOSITORY, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert plan.stdout.splitlines()[0] == "python3 -m local_cluster.host.machine"


def test_check_needs_the_standard_library_alone() -> None:
    command = [sys.executable, "-S", "-m", "local_cluster.host.machine"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
