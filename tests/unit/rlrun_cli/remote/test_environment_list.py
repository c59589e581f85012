"""`rlrun env list`: pages of rlrun-server, and what the table shows of them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rlrun_cli.remote.context import CliContext
from rlrun_cli.remote.server import RemoteStorage

from tests.support.command_line import Answer, call
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_cli.conftest import remote_cluster

ITEMS = [
    {"id": "acme/private", "version": "1.0", "versions": 1, "pushed": "2026-01-01T00:00:00+00:00", "public": False},
    {"id": "me/reverse", "version": "0.10", "versions": 2, "pushed": "2026-01-01T00:00:00+00:00", "public": True},
]


class Server:
    """Answers with one item per page."""

    def __init__(self, items: list[dict[str, Any]], *, is_complete: bool = True) -> None:
        self.items = items
        self.is_complete = is_complete
        self.paths: list[str] = []

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        assert (method, body) == ("GET", None)
        self.paths.append(path)
        at = len(self.paths) - 1
        more = {"next": str(at + 1)} if at + 1 < len(self.items) else {}
        return {"items": self.items[at : at + 1], "total": len(self.items), "isComplete": self.is_complete, **more}


def listed(server: Server, *words: str, env: dict[str, str | None] | None = None) -> Answer:
    context = CliContext(
        connect=lambda kubeconfig, context, namespace: remote_cluster(FakeCluster(), namespace),
        server=lambda cluster, url: server.send,
    )
    return call("env", "list", *words, context=context, env={"RLRUN_API_KEY": None, **(env or {})})


def test_all_pages_are_one_table() -> None:
    server = Server(ITEMS)
    answer = listed(server)
    assert answer.code == 0
    assert [line.split()[:4] for line in answer.out.splitlines()] == [
        ["ID", "NEWEST", "VERSIONS", "PUBLIC"],
        ["acme/private", "1.0", "1", "no"],
        ["me/reverse", "0.10", "2", "yes"],
    ]
    assert server.paths == [
        "/rlrun/v1/environments?limit=500&namespace=team",
        "/rlrun/v1/environments?limit=500&namespace=team&cursor=1",
    ]


def test_output_for_programs() -> None:
    assert listed(Server(ITEMS), "-o", "name").out.split() == ["acme/private", "me/reverse"]
    assert json.loads(listed(Server(ITEMS), "-o", "json").out) == ITEMS


def test_a_key_has_its_own_namespace() -> None:
    server = Server(ITEMS[:1])
    listed(server, env={"RLRUN_API_KEY": "rlk_x"})
    assert "namespace" not in server.paths[0]


def test_none_says_how_to_push_one() -> None:
    answer = listed(Server([]), "--owner", "me")
    assert "No environment packages of me yet. Push one: rlrun env push DIR --owner team" in answer.err


def test_a_list_that_is_not_complete_says_so() -> None:
    assert "too many packages" in listed(Server(ITEMS, is_complete=False)).err


@pytest.mark.parametrize("reply", [{}, {"items": [{"id": 1}]}, []])
def test_another_answer_is_an_error_of_one_line(reply: Any) -> None:
    server = Server([])
    server.send = lambda method, path, body: reply  # type: ignore[method-assign]
    answer = listed(server)
    assert answer.code == 1
    assert "returned no package list" in answer.err


@pytest.mark.parametrize(
    ("missing", "said"),
    [("me/Revers", "similar packages: me/reverse"), ("me/chess", "rlrun env push DIR --owner me")],
)
def test_a_missing_package_names_its_neighbours(missing: str, said: str) -> None:
    server = Server(ITEMS)
    store: Any = InMemoryStore("b")
    context = CliContext(
        connect=lambda kubeconfig, context, namespace: remote_cluster(FakeCluster(), namespace),
        server=lambda cluster, url: server.send,
        storage=lambda cluster, url: RemoteStorage("b", "p", store),
    )
    answer = call("env", "info", missing, context=context, env={"RLRUN_API_KEY": None})
    assert (answer.code, said in answer.err) == (1, True), answer.err
    assert "owner=me" in server.paths[0]


class Owners:
    """Answers whether packages of an owner are public."""

    def __init__(self, public: bool | None) -> None:
        self.public = public

    def send(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        assert path == "/rlrun/v1/environments?limit=1&owner=acme"
        return {"items": [], "total": 0} | ({} if self.public is None else {"public": self.public})


def pushed(project: Path, store: InMemoryStore, public: bool | None, *words: str) -> Answer:
    context = CliContext(
        connect=lambda kubeconfig, context, namespace: remote_cluster(FakeCluster(), namespace),
        server=lambda cluster, url: Owners(public).send,
        storage=lambda cluster, server: RemoteStorage("b", "p", store),
    )
    return call("env", "push", str(project), "--owner", "acme", "--no-deps", *words, context=context)


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--private",), ("--visibility", "PRIVATE"), ("--visibility", "private")])
def test_a_private_push_needs_an_owner_with_private_packages(tmp_path: Path, words: tuple[str, ...]) -> None:
    project = tmp_path / "words"
    assert call("env", "init", "words", "--dir", str(project)).code == 0
    store = InMemoryStore("b")
    for public, fact in ((True, "packages of acme are public"), (None, "does not report their")):
        answer = pushed(project, store, public, *words)
        assert answer.code == 1
        assert fact in answer.err
        assert "runs.environmentOwners" in answer.err
    assert not store.objects
    answer = pushed(project, store, False, *words)
    assert answer.code == 0, answer.err
    assert "Packages of acme are private" in answer.err
    assert store.objects


@pytest.mark.slow
def test_a_public_push_says_who_may_use_it(tmp_path: Path) -> None:
    project = tmp_path / "words"
    assert call("env", "init", "words", "--dir", str(project)).code == 0
    answer = pushed(project, InMemoryStore("b"), True, "--visibility", "PUBLIC")
    assert (answer.code, "are public: runs in all namespaces" in answer.err) == (0, True)
    assert pushed(project, InMemoryStore("b"), True, "--visibility", "hidden").code == 2
