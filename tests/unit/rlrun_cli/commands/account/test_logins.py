"""Commands `login`, `logout` and `whoami`, with a server that keeps what it is asked."""

import json
import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP
from rlrun_cli.commands.account import logins
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import CliContext
from rlrun_cli.remote.logins import StoredLogin
from rlrun_cli.terminal.errors import CliError

from tests.support.command_line import Answer, call
from tests.support.fake_cluster import FakeCluster
from tests.support.sync_fake_transport import SyncFakeTransport
from tests.unit.rlrun_cli.conftest import TEAM, custom_object

KEY_ID = "abcdefghijkl"
KEY = f"rlk_{KEY_ID}_{'s' * 43}"
MADE = {"id": KEY_ID, "namespace": TEAM, "owner": "ann", "created": "2026-01-01T00:00:00Z", "expires": "2026-04-01"}
DELETION_PATH = f"/rlrun/v1/namespaces/{TEAM}/keys/{KEY_ID}/delete"
TOKEN = "create the token of ServiceAccount team/rlrun-user"


class Server(ThreadingHTTPServer):
    """Knows tokens of a namespace's account, and keys until they are deleted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, str]] = []
        self.refused: set[str] = set()
        self.broken: set[str] = set()
        """Methods and paths that are refused."""
        self.unknown = 0
        """Number of requests with the key before this replica knows it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method: str, path: str, credential: str) -> tuple[int, Any]:
        """Return status and body."""
        self.asked.append((method, path, credential))
        if credential in self.refused:
            return 401, {"reason": "Unauthenticated", "detail": "The credential has ended."}
        if method in self.broken or path in self.broken:
            return 403, {"reason": "NotAllowed", "detail": "not now"}
        if credential == KEY and self.unknown:
            self.unknown -= 1
            return 401, {"reason": "Unauthenticated", "detail": "The key is not known."}
        if path == "/rlrun/v1/whoami":
            key = {"apiKey": KEY_ID, "namespace": TEAM} if credential == KEY else {}
            return 200, {"name": "ann", "groups": ["g"], **key}
        if path == f"/rlrun/v1/namespaces/{TEAM}/keys" and method == "POST":
            return 201, {**MADE, "key": KEY}
        if path == DELETION_PATH and method == "POST":
            if KEY in self.refused:
                return 404, {"reason": "ApiKeyNotFound", "detail": "no such key"}
            self.refused.add(KEY)
            return 200, MADE
        return 404, {"reason": "NotFound", "detail": "no such path"}


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Server

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        credential = str(self.headers["Authorization"]).removeprefix("Bearer ")
        status, body = self.server.answer(self.command, self.path, credential)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        threading.Thread(target=found.serve_forever, args=(0.01,), daemon=True).start()
        yield found
        found.shutdown()


@pytest.fixture(autouse=True)
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where logins are kept."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RLRUN_API_KEY", raising=False)
    monkeypatch.delenv("RLRUN_SERVER", raising=False)
    return tmp_path / "config" / "rlrun" / "logins.json"


class User:
    """A user with a kubeconfig whose cluster has published the server."""

    def __init__(self, server: Server, token: str = "", default: str = TEAM) -> None:
        self.cluster, self.token, self.default = FakeCluster(), token, default
        found = custom_object(CONFIG_MAP, "rlrun-server", data={"url": server.url})
        found["metadata"]["namespace"] = "kube-public"
        self.cluster.put(found)
        status = {"token": "token-of-account", "expirationTimestamp": "2099-01-01T00:00:00Z"}
        self.cluster.answers[TOKEN] = [{"status": status}]

    def __call__(self, *words: object, input: str | None = None) -> Answer:
        def connect(kubeconfig: Path | None, context: str | None, namespace: str | None) -> RemoteCluster:
            return RemoteCluster(
                lambda _: SyncFakeTransport(self.cluster),
                namespace or self.default,
                lambda: self.token,
                is_namespace_chosen=bool(namespace),
                login_name="lab at https://10.0.0.1",
            )

        return call(*words, context=CliContext(connect=connect, connect_server=connect), input=input)


def test_a_certificate_gets_a_key_that_is_kept_used_and_deleted(server: Server, file: Path) -> None:
    user = User(server)
    answer = user("login", "--days", "7")
    assert (answer.code, answer.out) == (0, "logged in as ann\n"), answer.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert ("POST", f"/rlrun/v1/namespaces/{TEAM}/keys", "token-of-account") in server.asked
    server.asked.clear()
    shown = user("whoami", "-o", "json")
    assert json.loads(shown.out)["apiKey"] == KEY_ID
    assert {credential for _, _, credential in server.asked} == {KEY}
    assert user("logout").out == "logged out\n"
    assert server.asked[-1] == ("POST", DELETION_PATH, "token-of-account")
    assert KEY not in file.read_text()
    assert json.loads(user("whoami", "-o", "json").out).get("apiKey") is None
    assert all(KEY not in text for a in (answer, shown) for text in (a.out, a.err))


def test_a_token_of_the_kubeconfig_is_used_and_nothing_is_kept(server: Server, file: Path) -> None:
    user = User(server, "token-of-ann")
    answer = user("login")
    assert (answer.code, answer.out) == (0, "logged in as ann\n"), answer.err
    assert "No key is stored" in answer.err
    assert {credential for _, _, credential in server.asked} == {"token-of-ann"}
    assert "token-of-ann" not in (file.read_text() if file.exists() else "")


def test_a_given_key_and_url_are_kept_and_work_without_a_kubeconfig(
    server: Server, file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    answer = call("login", "--key", "--server", server.url, input=f"{KEY}\n")
    assert (answer.code, answer.out) == (0, "logged in as ann\n"), answer.err
    shown = call("whoami")
    assert KEY_ID in shown.out, shown.err
    assert call("logout").code == 0
    assert all(path != DELETION_PATH for _, path, _ in server.asked), "the key is not one of the login"
    assert call("whoami").code == 2


@pytest.mark.parametrize("text", ["", "secret", f"{KEY}x"])
def test_a_broken_key_is_refused_and_not_shown(server: Server, file: Path, text: str) -> None:
    answer = User(server)("login", "--key", input=f"{text}\n")
    assert answer.code == 2
    assert not text or text not in answer.err
    assert not file.exists()
    assert server.asked == []


def test_a_credential_that_has_ended_says_what_to_do_and_is_not_kept(server: Server, file: Path) -> None:
    server.refused.add(KEY)
    answer = User(server)("login", "--key", input=KEY)
    assert answer.code == 1
    error, hint = answer.err.splitlines()
    assert error == "Error: rlrun-server does not accept your credential: The credential has ended."
    assert "rlrun login" in hint
    assert not file.exists()


def test_a_key_is_not_used_for_another_namespace(server: Server) -> None:
    user = User(server)
    user("login")
    server.asked.clear()
    user.cluster.answers[TOKEN.replace("team", "other")] = user.cluster.answers[TOKEN]
    assert user("whoami", "-n", "other").code == 0
    assert {credential for _, _, credential in server.asked} == {"token-of-account"}


def test_a_second_login_deletes_the_key_of_the_first(server: Server) -> None:
    user = User(server)
    user("login")
    user("login")
    assert sum(path == DELETION_PATH for _, path, _ in server.asked) == 1


@pytest.mark.parametrize("command", ["logout", "login"])
def test_the_key_of_another_namespace_is_deleted_with_a_token_of_that_one(server: Server, command: str) -> None:
    user = User(server, default="default")
    user.cluster.answers[TOKEN.replace("team", "default")] = [
        {"status": {"token": "token-of-default", "expirationTimestamp": "2099-01-01T00:00:00Z"}}
    ]
    assert user("login", "-n", TEAM).code == 0
    user.token = "token-of-ann" if command == "login" else ""
    answer = user(command)
    assert answer.code == 0, answer.err
    assert ("POST", DELETION_PATH, user.token or "token-of-account") in server.asked
    assert "Warning" not in answer.err


def test_a_logout_that_cannot_delete_the_key_keeps_the_login(server: Server, file: Path) -> None:
    user = User(server)
    user("login")
    server.broken.add(DELETION_PATH)
    answer = user("logout")
    assert (answer.code, answer.out) == (1, "")
    assert f"cannot delete key {KEY_ID} in namespace {TEAM}" in answer.err
    assert KEY in file.read_text()
    server.broken.clear()
    assert user("logout").out == "logged out\n"
    assert KEY not in file.read_text()


def test_a_logout_succeeds_if_the_key_has_ended(server: Server, file: Path) -> None:
    user = User(server)
    user("login")
    server.refused.add(KEY)
    assert user("logout").out == "logged out\n"
    assert KEY not in file.read_text()


@pytest.mark.parametrize(
    ("status", "missing", "code"), [(404, "rlrun-user", 0), (404, "team", 0), (404, "", 1), (403, "rlrun-user", 1)]
)
def test_a_logout_succeeds_if_the_account_of_the_key_is_gone(
    server: Server, file: Path, status: int, missing: str, code: int
) -> None:
    user = User(server)
    user("login")
    user.cluster.answers[TOKEN] = [ApiError(status, "Refused", "no token", details={"name": missing})]
    answer = user("logout")
    assert answer.code == code, answer.err
    assert (KEY in file.read_text()) is bool(code)
    assert ("rlrun logout --local" in answer.err.splitlines()[-1]) if code else not answer.err


def test_a_login_can_be_forgotten_on_this_machine_only(server: Server, file: Path) -> None:
    user = User(server)
    user("login")
    server.broken.add(DELETION_PATH)
    assert "rlrun logout --local" in user("logout").err.splitlines()[-1]
    server.asked.clear()
    answer = user("logout", "--local")
    assert (answer.code, answer.out, server.asked) == (0, "logged out\n", [])
    assert answer.err.splitlines() == [
        f"Warning: key {KEY_ID} in namespace {TEAM} stays valid until it expires.",
        f"Delete it: rlrun key delete {KEY_ID} -n {TEAM}",
    ]
    assert KEY not in file.read_text()


def test_a_key_is_deleted_if_the_login_fails(server: Server, file: Path) -> None:
    server.broken.add("GET")
    assert User(server)("login").code == 1
    assert ("POST", DELETION_PATH, "token-of-account") in server.asked
    assert not file.exists()


def test_a_key_is_deleted_if_the_login_cannot_be_kept(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, login: StoredLogin | None) -> None:
        raise CliError("no space left on device")

    monkeypatch.setattr(logins, "keep_login", fail)
    assert User(server)("login").code == 1
    assert ("POST", DELETION_PATH, "token-of-account") in server.asked


def test_a_replica_that_does_not_know_the_new_key_is_asked_again(
    server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "NEW_KEY_SECONDS", 0.0)
    server.unknown = 2
    answer = User(server)("login")
    assert (answer.code, answer.out) == (0, "logged in as ann\n"), answer.err
    assert KEY in file.read_text()


def test_a_damaged_file_is_named(server: Server, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("{")
    answer = User(server)("whoami")
    assert answer.code == 1
    assert f"{file} cannot be read" in answer.err
    assert "delete it" in answer.err
