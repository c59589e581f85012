"""Command `chat`, with the server and an engine on loopback."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP
from rlrun.kube.requests import KubeRequest
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import CliContext
from rlrun_server.authentication.users import User
from rlrun_server.rest.base.access import Caller
from starlette.requests import Request
from typing_extensions import override

from tests.support.command_line import Answer, call
from tests.support.completion_engine import event, piece
from tests.support.fake_cluster import FakeCluster
from tests.support.inference_api import ThreadedApi, adapter, threaded_inference_api
from tests.support.sync_fake_transport import SyncFakeTransport
from tests.unit.rlrun_cli.conftest import TEAM

KEY = f"rlk_{'a' * 12}_{'b' * 43}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedApi]:
    with threaded_inference_api(monkeypatch, adapter("one"), adapter("two", "team-b", number=2)) as found:
        found.api.user("ann", "team", "team-b")
        yield found


class Proxy(SyncFakeTransport):
    """An API server that passes streams to rlrun-server."""

    def __init__(self, cluster: FakeCluster, url: str) -> None:
        super().__init__(cluster)
        self._url = url

    @override
    def stream(self, request: KubeRequest) -> Iterator[bytes]:
        assert (request.namespace, request.name) == ("rlrun-system", "https:rlrun-server:https")
        path = (request.subresource or "").removeprefix("proxy")
        body = json.dumps(request.body)
        response = urllib3.request("POST", self._url + path, body=body, headers=request.headers, preload_content=False)
        if response.status != 200:
            raise ApiError.from_response(response.status, response.read())
        yield from response.stream(decode_content=True)


def ask(server: ThreadedApi, *words: object, input: str | None = None, **variables: str) -> Answer:
    """Run `rlrun chat` with the token of ann."""

    def connect(kubeconfig: Any, context: Any, namespace: str | None) -> RemoteCluster:
        return RemoteCluster(
            lambda _: SyncFakeTransport(FakeCluster()), namespace or TEAM, lambda: "token-of-ann",
            is_namespace_chosen=bool(namespace),
        )  # fmt: skip

    env = {"RLRUN_SERVER": server.url, "RLRUN_API_KEY": None, **variables}
    return call("chat", *words, context=CliContext(connect=connect), env=env, input=input)


def test_an_answer_to_a_prompt(server: ThreadedApi) -> None:
    answer = ask(server, "one", "hello", "--system", "Be short.", "--max-tokens", 9, "--temperature", 0)
    assert (answer.code, answer.out) == (0, "onetwo\n"), answer.err
    ((_, _, body),) = server.engine.requests
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hello"},
    ]
    assert (body["max_tokens"], body["temperature"], body["model"]) == (9, 0.0, "m:one")


def test_a_prompt_of_standard_input(server: ThreadedApi) -> None:
    answer = ask(server, "one", "-", input="a long\ntext")
    assert answer.code == 0, answer.err
    assert server.engine.requests[0][2]["messages"] == [{"role": "user", "content": "a long\ntext"}]


@pytest.mark.parametrize(
    ("words", "model"),
    [
        (["two", "-n", "team-b"], "team-b"),
        (["team-b/two"], "team-b"),
        (["m:two"], "team-b"),
    ],
)
def test_adapters_of_other_namespaces(server: ThreadedApi, words: list[str], model: str) -> None:
    answer = ask(server, *words, "hello")
    # The fake engine has the key of the pool of `team`.
    assert "The engines of serving pool" in answer.err
    assert f"namespace {model}" in " ".join(answer.err.split())


def test_a_conversation_remembers_what_was_said(server: ThreadedApi) -> None:
    answer = ask(server, "one", input="first\n\nsecond\n")
    assert (answer.code, answer.out) == (0, "onetwo\nonetwo\n"), answer.err
    assert [m["content"] for m in server.engine.requests[1][2]["messages"]] == ["first", "onetwo", "second"]


def test_an_api_key_finds_the_adapter_in_its_own_namespace(server: ThreadedApi) -> None:
    sent: list[str] = []

    async def identify(request: Request) -> Caller:
        sent.append(request.headers["authorization"])
        return Caller(User("ann", namespace="team"), KEY)

    server.api.rest.services.access.identify = identify  # type: ignore[method-assign]
    answer = ask(server, "one", "hello", RLRUN_API_KEY=KEY)
    assert (answer.code, answer.out) == (0, "onetwo\n"), answer.err
    assert set(sent) == {f"Bearer {KEY}"}
    unknown = ask(server, "three", "hello", RLRUN_API_KEY=KEY)
    assert "no deployed adapter named three" in unknown.err


def test_text_of_a_model_does_not_control_the_terminal(server: ThreadedApi) -> None:
    server.engine.events = [event(piece("\x1b]0;title\x07a\x9b31m")), event(b"[DONE]")]
    assert ask(server, "one", "hello").out == "]0;titlea31m\n"


def test_a_stream_that_breaks(server: ThreadedApi) -> None:
    server.engine.events = [event(piece("half"))]
    answer = ask(server, "one", "hello")
    assert (answer.code, answer.out) == (1, "half")
    assert "the response was aborted: The engine of team/one ended the stream" in " ".join(answer.err.split())


def test_errors_say_what_to_do(server: ThreadedApi) -> None:
    unknown = ask(server, "three", "hello")
    assert unknown.code == 1
    assert "rlrun-server refused the request (404): Model team/three does not exist" in " ".join(unknown.err.split())
    empty = ask(server, "one", "  ")
    assert (empty.code, "the message is empty" in empty.err) == (2, True)
    away = ask(server, "one", "hello", RLRUN_SERVER="http://127.0.0.1:1")
    assert "rlrun-server does not respond" in away.err


def test_through_the_api_server(server: ThreadedApi) -> None:
    cluster = FakeCluster()
    metadata = {"name": "rlrun-server", "namespace": "kube-public"}
    data = {"service": "rlrun-system/https:rlrun-server:https"}
    cluster.put({"apiVersion": "v1", "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data})

    cluster.answers[f"get the proxy/rlrun/v1/whoami of Service {data['service']}"] = [{"name": "ann"}]

    def connect(*_: Any) -> RemoteCluster:
        return RemoteCluster(lambda _: Proxy(cluster, server.url), TEAM, lambda: "token-of-ann")

    env = {"RLRUN_SERVER": None, "RLRUN_API_KEY": None}
    answer = call("chat", "one", "hello", context=CliContext(connect=connect), env=env)
    assert (answer.code, answer.out) == (0, "onetwo\n"), answer.err
    refused = call("chat", "three", "hello", context=CliContext(connect=connect), env=env)
    assert "rlrun-server refused the request (404): Model team/three does not exist" in " ".join(refused.err.split())
