"""Tests that are not marked slow start no processes, and servers of tests lose no connection on a busy machine."""

import marshal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from tests.support.chat_endpoint import Endpoint

COMMAND = [sys.executable, "-c", ""]


def test_a_fast_test_that_starts_a_process_fails() -> None:
    with pytest.raises(pytest.fail.Exception, match="mark it slow"):
        subprocess.run(COMMAND, check=True)


@pytest.mark.slow
def test_a_slow_test_may_start_one() -> None:
    subprocess.run(COMMAND, check=True)


def test_a_fast_test_may_do_all_else_that_python_audits() -> None:
    assert marshal.loads(marshal.dumps({})) == {}


def test_servers_of_tests_let_many_connections_wait() -> None:
    with Endpoint() as idle, ExitStack() as connections:
        for _ in range(64):
            connections.enter_context(socket.create_connection(idle.server_address, timeout=0.5))
