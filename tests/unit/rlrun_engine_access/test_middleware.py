"""The middleware in a small app, as vLLM calls it. Inside of vLLM: tests/image/rlrun_inference/integration."""

import json
from typing import Any

import pytest
from rlrun_engine_access.middleware import EngineAccess, Message, Receive, Send

TOKEN = "t" * 64
API_KEY = "k" * 64
OPEN = "/health,/metrics"
USERS = "/v1/models,/v1/completions"


class App:
    """An application that remembers what reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.reached.append(scope.get("path", scope["type"]))


async def ask(
    path: str, token: str | None = None, kind: str = "http", header: bytes = b"authorization"
) -> tuple[bool, list[Any]]:
    """Return whether the request reached the application, and what the middleware sent itself."""
    app, sent = App(), []

    async def receive() -> Message:
        raise AssertionError("the middleware must not wait for the body")

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"engine")] + ([(header, f"Bearer {token}".encode())] if token is not None else [])
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
