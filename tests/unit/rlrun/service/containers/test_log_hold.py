"""A log hold keeps its pod until it is told that the logs are kept, or its time is over, whoever else connects."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from rlrun.service.containers.log_hold import CONNECTIONS, ENDED, KEPT, hold

from tests.support.ports import claimed_ports
from tests.support.source_tree import PYTHONPATH


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as found:
        yield found


def connect(server: socket.socket) -> socket.socket:
    return socket.create_connection(server.getsockname(), timeout=60)


def held(server: socket.socket, seconds: float) -> tuple[threading.Thread, list[bool]]:
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(hold(server, seconds)), daemon=True)
    thread.start()
    return thread, results


@pytest.mark.parametrize("is_early", [True, False])
def test_the_answer_of_the_operator_ends_it(server: socket.socket, is_early: bool) -> None:
    client = connect(server) if is_early else None
    thread, results = held(server, 600)
    with client or connect(server) as client:
        assert client.recv(100) == ENDED
        client.sendall(KEPT)
        thread.join(60)
    assert results == [True]


def test_others_that_connect_neither_end_it_nor_keep_the_operator_out(server: socket.socket) -> None:
    thread, results = held(server, 600)
    strangers = [connect(server) for _ in range(2 * CONNECTIONS)]
    for number, stranger in enumerate(strangers[CONNECTIONS:]):
        if number % 2:
            stranger.sendall(b"stop\n")
        stranger.close()
    with connect(server) as client:
        assert client.recv(100) == ENDED
        assert thread.is_alive()
        client.sendall(KEPT)
        thread.join(60)
    assert results == [True]
    for stranger in strangers:
        stranger.close()


def test_an_operator_that_ends_does_not_let_the_pod_go(server: socket.socket) -> None:
    thread, results = held(server, 600)
    connect(server).close()
    with connect(server) as client:
        assert client.recv(100) == ENDED
        client.sendall(KEPT)
        thread.join(60)
    assert results == [True]


def test_its_time_ends(server: socket.socket) -> None:
    with connect(server):
        assert hold(server, 0.05) is False


@pytest.mark.slow
@pytest.mark.parametrize("is_taken", [False, True])
def test_the_program_ends_at_sigterm_without_an_error(is_taken: bool) -> None:
    with claimed_ports(1) as (port,):
        code = (
            f"import sys; from rlrun.service.containers import log_hold; log_hold.LOG_HOLD_PORT = {port}; "
            "sys.exit(log_hold.main(['600']))"
        )
        taken = socket.create_server(("", port)) if is_taken else None
        process = subprocess.Popen(
            [sys.executable, "-c", code], env={"PYTHONPATH": PYTHONPATH}, stderr=subprocess.PIPE, text=True
        )
        if taken is not None:
            assert process.stderr is not None
            assert "cannot wait for its logs to be copied, because port" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            taken.close()
        else:
            client = None
            while client is None:
                try:
                    client = socket.create_connection(("127.0.0.1", port), timeout=60)
                except ConnectionRefusedError:
                    assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert client.recv(100) == ENDED
            client.sendall(KEPT)
            client.close()
        assert process.wait(60) == 0
        assert process.stderr is not None
        process.stderr.close()
