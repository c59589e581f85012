"""The middleware in a small app, as vLLM calls it. Inside of vLLM: tests/image/rlrun_inference/integration."""

import json
from typing import Any

import pytest
from rlrun.protocol.engine_proof import is_proven
from rlrun_engine_access.asgi import Message, Receive, Send
from rlrun_engine_access.middleware import EngineAccess

TOKEN = "t" * 64
API_KEY = "k" * 64
SERVER_KEY = "s" * 64
OPEN = "/health,/metrics"
USERS = "/v1/models,/v1/completions"


class App:
    """An application that remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.reached.append(scope.get("path", scope["type"]))


async def ask(
    path: str,
    token: str | None = None,
    kind: str = "http",
    header: bytes = b"authorization",
    more: list[tuple[bytes, bytes]] | None = None,
    app: App | None = None,
) -> tuple[bool, list[Any]]:
    """Return whether the request reached the application, and what was sent."""
    app, sent = app or App(), []

    async def receive() -> Message:
        raise AssertionError("the middleware must not wait for the body")

    async def send(message: Message) -> None:
        sent.append(message)

    given = [(header, f"Bearer {token}".encode())] if token is not None else []
    headers = [(b"host", b"engine"), *given, *(more or [])]
    await EngineAccess(app)({"type": kind, "path": path, "headers": headers}, receive, send)
    return app.reached == [path], sent


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_TOKEN", TOKEN)
    monkeypatch.setenv("RLRUN_OPEN_PATHS", OPEN)


@pytest.mark.parametrize(
    "path",
    [
        "/tokenize", "/load", "/collective_rpc", "/v1/models", "/v1/load_lora_adapter", "/metrics/", "/metricsx",
        "//health", "/health/", "/health/../tokenize", "/Health", "/", "",
    ],
)  # fmt: skip
async def test_all_other_paths_need_the_token(path: str) -> None:
    reached, sent = await ask(path)
    assert not reached
    assert sent[0]["status"] == 401
    assert b"/health, /metrics" in json.loads(sent[1]["body"])["error"]["message"].encode()
    assert (await ask(path, TOKEN)) == (True, [])


@pytest.mark.parametrize("path", ["/health", "/metrics"])
async def test_probes_need_none(path: str) -> None:
    assert (await ask(path)) == (True, [])


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "t", TOKEN.upper()])
async def test_another_token_is_refused(token: str) -> None:
    reached, sent = await ask("/tokenize", token)
    assert not reached
    assert TOKEN.encode() not in sent[1]["body"]


async def test_a_websocket_is_refused_before_it_is_accepted() -> None:
    assert (await ask("/v1/realtime", kind="websocket")) == (False, [{"type": "websocket.close", "code": 1008}])
    assert (await ask("/v1/realtime", TOKEN, kind="websocket")) == (True, [])


async def test_start_and_end_of_the_server_pass() -> None:
    app = App()
    await EngineAccess(app)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]
    assert app.reached == ["lifespan"]


async def test_without_a_token_all_requests_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLRUN_TOKEN")
    assert (await ask("/tokenize")) == (True, [])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_POOL_API_KEY", API_KEY)
    monkeypatch.setenv("RLRUN_POOL_API_KEY_SECRET", "pool-api-key")
    monkeypatch.setenv("RLRUN_USER_PATHS", USERS)


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
async def test_users_of_a_pool_need_its_api_key(path: str) -> None:
    for wrong in (None, "", "x", API_KEY[:-1]):
        reached, sent = await ask(path, wrong)
        assert not reached
        message = json.loads(sent[1]["body"])["error"]["message"]
        assert "OPENAI_API_KEY in Secret pool-api-key" in message
        assert API_KEY not in message
    assert (await ask(path, API_KEY)) == (True, [])
    assert (await ask(path, TOKEN)) == (True, []), "the sidecar lists models as well"


class Answering(App):
    """An application that answers."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await super().__call__(scope, receive, send)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"answer"})


@pytest.mark.usefixtures("pool")
async def test_the_server_gets_a_proof_that_the_engine_has_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_POOL_SERVER_KEY", SERVER_KEY)
    nonce = [(b"x-rlrun-nonce", b"n1")]
    reached, (start, body) = await ask("/v1/completions", SERVER_KEY, more=nonce, app=Answering())
    assert reached
    headers = dict(start["headers"])
    assert is_proven(SERVER_KEY, "n1", headers[b"x-rlrun-proof"].decode())
    assert headers[b"content-type"] == b"text/plain"
    assert body["body"] == b"answer"
    for path in ("/v1/load_lora_adapter", "/tokenize", "/v1/models/"):
        assert not (await ask(path, SERVER_KEY))[0]
    for key in (API_KEY, TOKEN):
        reached, (start, _) = await ask("/v1/completions", key, more=nonce, app=Answering())
        assert reached
        assert b"x-rlrun-proof" not in dict(start["headers"]), "users could have nonces signed"


@pytest.mark.usefixtures("pool")
async def test_without_a_key_nobody_is_the_server() -> None:
    for given in (None, "", "None"):
        assert not (await ask("/v1/models", given))[0]


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    "path", ["/v1/load_lora_adapter", "/tokenize", "/v1/models/", "/v1/completions/../../tokenize"]
)
async def test_the_api_key_opens_the_paths_of_users_only(path: str) -> None:
    reached, sent = await ask(path, API_KEY)
    assert not reached
    assert "token of the engine's run or serving pool" in json.loads(sent[1]["body"])["error"]["message"]
    assert (await ask("/health")) == (True, [])


@pytest.mark.parametrize("key", ["", None])
async def test_without_an_api_key_nobody_is_a_user(monkeypatch: pytest.MonkeyPatch, key: str | None) -> None:
    monkeypatch.setenv("RLRUN_USER_PATHS", USERS)
    if key is not None:
        monkeypatch.setenv("RLRUN_POOL_API_KEY", key)
    for given in (None, "", "None"):
        assert not (await ask("/v1/models", given))[0]


async def test_without_open_paths_nothing_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLRUN_OPEN_PATHS")
    assert not (await ask("/health"))[0]
    assert not (await ask(""))[0]
