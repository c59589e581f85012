"""Execution of programs."""

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.shell import run


def test_failed_command_reports_its_output_and_the_next_step() -> None:
    with pytest.raises(LocalClusterError, match=r"(?s)failed \(2\).*oh.*Try this"):
        run(["sh", "-c", "echo oh >&2; exit 2"], next_step="Try this.")
    with pytest.raises(LocalClusterError, match="not installed"):
        run(["no-such-program-here"])
