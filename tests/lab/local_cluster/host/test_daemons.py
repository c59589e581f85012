"""Supervision of daemons, with real processes."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from local_cluster.host.daemons import Daemon, Supervisor, send_signal, start_time
from local_cluster.host.errors import LocalClusterError


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path / "run", tmp_path / "logs")


def sleeper(seconds: str = "60") -> Daemon:
    return Daemon("sleeper", ("sleep", seconds), lambda: True)


def test_running_daemon_is_not_started_again_and_is_found_by_another_supervisor(supervisor: Supervisor) -> None:
    assert supervisor.start(sleeper()) is True
    pid = supervisor.pid("sleeper")
    assert supervisor.start(sleeper()) is False
    assert Supervisor(supervisor.run_dir, supervisor.log_dir).running() == {"sleeper": pid}
    assert supervisor.stop("sleeper") is True
    assert supervisor.running() == {}
    assert supervisor.stop("sleeper") is False


def test_running_daemon_with_other_arguments_is_replaced(supervisor: Supervisor) -> None:
    supervisor.start(sleeper("60"))
    first = supervisor.pid("sleeper")
    assert supervisor.start(sleeper("61")) is True
    assert supervisor.pid("sleeper") != first
    supervisor.stop("sleeper")


def test_failed_start_reports_the_log_and_the_next_step(supervisor: Supervisor) -> None:
    daemon = Daemon("broken", ("sh", "-c", "echo no such disk; exit 3"), lambda: False, "Buy a disk.")
    with pytest.raises(LocalClusterError, match=r"(?s)status 3.*no such disk.*Buy a disk"):
        supervisor.start(daemon)


def test_reused_process_id_does_not_count_as_running(supervisor: Supervisor) -> None:
    own = start_time(os.getpid())
    assert own is not None
    supervisor.run_dir.mkdir()
    (supervisor.run_dir / "old.pid").write_text(json.dumps({"pid": os.getpid(), "start": own - 1}))
    assert supervisor.pid("old") is None
    (supervisor.run_dir / "old.pid").write_text("{damaged")
    assert supervisor.pid("old") is None


def test_zombie_does_not_count_as_running() -> None:
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 5
    while start_time(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_time(child.pid) is None
    child.wait()


def test_signal_is_not_sent_to_a_process_that_took_over_the_id() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert send_signal(process.pid, signal.SIGKILL, lambda: False) is False
        assert process.poll() is None
        assert send_signal(process.pid, signal.SIGKILL, lambda: True) is True
        process.wait()
        assert send_signal(process.pid, signal.SIGKILL, lambda: True) is False
