"""Workers share what takes a start: one starts it, and it ends when the last of them has left."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support import ports
from tests.support.ports import claimed_ports
from tests.support.sharing import shared
from tests.support.source_tree import PYTHONPATH


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


def test_a_claimed_port_is_given_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "HIGHEST", ports.LOWEST + 99)
    with claimed_ports(8) as ours, claimed_ports(8) as theirs:
        assert len({*ours, *theirs}) == 16


@pytest.mark.slow
def test_a_claim_holds_for_a_process_that_has_another_folder_for_temporary_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As the image levels' containers, which share the host's network.
    monkeypatch.setattr(ports, "HIGHEST", ports.LOWEST + 99)
    claim = "from tests.support import ports; ports.HIGHEST = ports.LOWEST + 99\n"
    claim += "with ports.claimed_ports(30) as found: print(*found)"
    environment = os.environ | {"PYTHONPATH": PYTHONPATH, "TMPDIR": str(tmp_path)}
    with claimed_ports(60) as ours:
        theirs = subprocess.check_output([sys.executable, "-c", claim], env=environment, text=True, timeout=60)
    assert not {*ours} & {*map(int, theirs.split())}
