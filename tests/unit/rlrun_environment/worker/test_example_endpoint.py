"""The endpoint that replaces the gateway when an example is run."""

import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
from rlrun_environment.worker import example_endpoint
from rlrun_environment.worker.example_endpoint import ExampleEndpoint


async def test_requests_of_an_example_may_wait_until_a_busy_machine_accepts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for method in ("serve_forever", "shutdown"):
        monkeypatch.setattr(example_endpoint._Server, method, lambda *_: None)
    monkeypatch.setattr("socketserver.TCPServer.request_queue_size", 5)
    endpoint = ExampleEndpoint("answer")
    with endpoint.serving(), ExitStack() as connections:
        place = ("127.0.0.1", urlsplit(endpoint.base_url).port)
        for _ in range(64):
            connections.enter_context(socket.create_connection(place, timeout=0.5))
