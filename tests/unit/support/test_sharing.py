"""Workers share what takes a start: one starts it, and it ends when the last of them has left."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import ports
from tests.support.ports import claimed_ports
from tests.support.sharing import shared


class Server:
    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def start(self) -> Iterator[str]:
        self.events.append("start")
        yield "where it is"
        self.events.append("end")


def test_a_server_is_started_once_and_ends_after_the_last_user_has_left(tmp_path: Path) -> None:
    server, owner, guest = Server(), ExitStack(), ExitStack()
    assert owner.enter_context(shared(tmp_path, "server", server.start)) == "where it is"
    assert guest.enter_context(shared(tmp_path, "server", server.start)) == "where it is"
    leaving = threading.Thread(target=owner.close)
    leaving.start()
    assert server.events == ["start"], "the guest still needs it"
    guest.close()
    leaving.join(60)
    assert server.events == ["start", "end"]


def test_a_worker_that_comes_after_the_end_starts_the_server_again(tmp_path: Path) -> None:
    server = Server()
    for _ in range(2):
        with shared(tmp_path, "server", server.start):
            pass
    assert server.events == ["start", "end"] * 2


def test_a_claimed_port_is_given_to_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ports, "_CLAIMS", tmp_path)
    monkeypatch.setattr(ports, "HIGHEST", ports.LOWEST + 99)
    with claimed_ports(8) as ours, claimed_ports(8) as theirs:
        assert len({*ours, *theirs}) == 16
