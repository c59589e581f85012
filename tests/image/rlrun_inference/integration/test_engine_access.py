"""Paths of vLLM's own server behind the middleware: each that is not open asks for the token, streams pass."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from rlrun_operator.resources.access.engine_access import MIDDLEWARE, PROBE_PATHS, USER_PATHS
from starlette.routing import BaseRoute, Mount, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from tests.support.engine_wire import BASE, TOKEN

API_KEY = "k" * 64


def app_of(monkeypatch: pytest.MonkeyPatch, open_paths: tuple[str, ...], *arguments: str) -> FastAPI:
    """vLLM's server without an engine, with all routes that variables can enable."""
    monkeypatch.setenv("RLRUN_TOKEN", TOKEN)
    monkeypatch.setenv("RLRUN_OPEN_PATHS", ",".join(open_paths))
    monkeypatch.setenv("VLLM_SERVER_DEV_MODE", "1")
    monkeypatch.setenv("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True")
    parser = make_arg_parser(FlexibleArgumentParser())
    args = parser.parse_args(["--model", "m", "--enable-lora", "--enable-tokenizer-info-endpoint", *arguments])
    return build_app(args, ("generate",))


def paths_of(routes: list[BaseRoute]) -> Iterator[str]:
    """A path for each route, with a value for each parameter."""
    for route in routes:
        path = str(getattr(route, "path", ""))
        if path:
            yield path.replace("{", "").replace("}", "") + ("/" if isinstance(route, Mount) else "")


def status_of(client: TestClient, path: str, token: str | None) -> set[int]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return {client.request(method, path, headers=headers).status_code for method in ("GET", "POST", "OPTIONS")}


@pytest.mark.parametrize("open_paths", [PROBE_PATHS, (*PROBE_PATHS, "/v1/models")], ids=["run", "more"])
def test_every_route_that_is_not_open_needs_the_token(
    open_paths: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_of(monkeypatch, open_paths, "--middleware", MIDDLEWARE)
    client = TestClient(app, raise_server_exceptions=False)
    paths = set(paths_of(app.routes))
    needed = {"/tokenize", "/load", "/collective_rpc", "/pause", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    assert needed | set(open_paths) - {"/metrics"} <= paths, "vLLM has other routes than this test was written for"
    for path in sorted(paths | {"/nowhere", "/docs", "/openapi.json"}):
        asked = status_of(client, path, None)
        assert (asked == {401}) == (path not in open_paths), (path, asked)
        assert 401 not in asked or path not in open_paths, path
        assert status_of(client, path, "another") == {401} or path in open_paths, path
        assert 401 not in status_of(client, path, TOKEN), path


def test_the_api_key_of_a_pool_opens_the_paths_of_users_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_POOL_API_KEY", API_KEY)
    monkeypatch.setenv("RLRUN_USER_PATHS", ",".join(USER_PATHS))
    app = app_of(monkeypatch, PROBE_PATHS, "--middleware", MIDDLEWARE)
    client = TestClient(app, raise_server_exceptions=False)
    paths = set(paths_of(app.routes))
    assert set(USER_PATHS) <= paths, "vLLM has other routes than this test was written for"
    for path in sorted(paths - set(PROBE_PATHS)):
        assert status_of(client, path, None) == {401}, path
        assert (401 in status_of(client, path, API_KEY)) == (path not in USER_PATHS), path
        assert 401 not in status_of(client, path, TOKEN), path


def test_without_the_middleware_vllms_own_key_leaves_paths_open(monkeypatch: pytest.MonkeyPatch) -> None:
    client = TestClient(app_of(monkeypatch, (), "--api-key", TOKEN), raise_server_exceptions=False)
    assert status_of(client, "/v1/models", None) >= {401}
    for path in ("/tokenize", "/collective_rpc", "/pause", "/load"):
        assert 401 not in status_of(client, path, None), path


def test_websockets_need_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_of(monkeypatch, PROBE_PATHS, "--middleware", MIDDLEWARE)
    app.routes.append(WebSocketRoute("/v1/realtime", _echo))
    client = TestClient(app)
    with pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)), client.websocket_connect("/v1/realtime"):
        pass
    with client.websocket_connect("/v1/realtime", headers={"Authorization": f"Bearer {TOKEN}"}) as connection:
        assert connection.receive_text() == "open"


async def _echo(websocket: Any) -> None:
    await websocket.accept()
    await websocket.send_text("open")
    await websocket.close()


def ask(url: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url + path, json.dumps(body).encode() if body is not None else None, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


CHAT = {"model": BASE, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "ignore_eos": True}
CLOSED: dict[str, Any] = {
    "/tokenize": {"model": BASE, "prompt": "hi"},
    "/collective_rpc": {"method": "check_health"},
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": BASE, "prompt": "hi", "max_tokens": 1},
    "/version": None,
    "/weight_info": None,
}


@pytest.mark.parametrize("path", CLOSED)
def test_an_engine_serves_its_run_only(path: str, plain_engine: str) -> None:
    assert [ask(plain_engine, path, CLOSED[path], token)[0] for token in (None, "another", TOKEN)] == [401, 401, 200]


@pytest.mark.parametrize("path", PROBE_PATHS)
def test_probes_of_an_engine_need_no_token(path: str, plain_engine: str) -> None:
    assert ask(plain_engine, path)[0] == 200


def test_a_stream_passes_in_parts(plain_engine: str) -> None:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    body = json.dumps({**CHAT, "stream": True}).encode()
    request = urllib.request.Request(plain_engine + "/v1/chat/completions", body, headers)
    with urllib.request.urlopen(request) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response if line.startswith(b"data: ")]
    assert lines[-1].strip() == b"data: [DONE]"
    assert len(lines) >= CHAT["max_tokens"]  # type: ignore[operator]
