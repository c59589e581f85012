"""The middleware of a shared pool's engine in a small app. In vLLM: tests/image/rlrun_inference/integration."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol import shared_pool as protocol
from rlrun.protocol.environment import MAX_SHARED_ROLLOUTS
from rlrun.protocol.pool_usage import USAGE_PATH, PoolUsage
from rlrun_engine_access import body as bodies
from rlrun_engine_access import shared_pool
from rlrun_engine_access.admission import QUEUE_FACTOR
from rlrun_engine_access.asgi import Message, Receive, Send
from rlrun_engine_access.engine_usage import EngineUsage
from rlrun_engine_access.middleware import EngineAccess
from rlrun_engine_access.shared_pool import TOKENIZATIONS

from tests.unit.rlrun_engine_access.test_order import TOKENS, pool_order, replace_file

POOL_TOKEN = "p" * 64
BASE = "org/model"
COMPLETIONS, CHAT, TOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize"
MODEL = "X-Rlrun-Model"
LIMIT = 4
"""Limit of each run in the order of these tests."""


class Engine:
    """Application that answers at once, or when `gate` is set, and records requests."""

    def __init__(self) -> None:
        self.gate: asyncio.Event | None = None
        self.failure: Exception | None = None
        self.answer = b"{}"
        self.pause = 0.0
        """Seconds between the parts of a response."""
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.references: list[int] = []
        """Numbers of references to the bodies of the requests."""
        self.running = Counter[str]()
        self.most = 0
        """Maximum number of adapters that had requests at the same time."""

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await answer(send, 200)
            return
        message = await receive()
        assert not message["more_body"]
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        raw = message["body"]
        del message
        self.references.append(sys.getrefcount(raw))
        body = json.loads(raw)
        assert headers.get("content-length", str(len(raw))) == str(len(raw))
        self.requests.append((scope["path"], headers, body))
        name = str(body.get("model"))
        self.running[name] += 1
        self.most = max(self.most, len(+self.running - Counter({BASE: 1_000_000})))
        try:
            if self.failure is not None:
                raise self.failure
            if self.gate is not None:
                gone = asyncio.ensure_future(receive())
                opened = asyncio.ensure_future(self.gate.wait())
                await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
                gone.cancel(), opened.cancel()
            await answer(send, 200, self.pause, self.answer)
        finally:
            self.running[name] -= 1


async def answer(send: Send, status: int, pause: float = 0, body: bytes = b"{}") -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await asyncio.sleep(pause)
    await send({"type": "http.response.body", "body": body})


class Call:
    """Request in progress."""

    def __init__(self, app: EngineAccess, scope: Message, body: bytes) -> None:
        self.sent: list[Message] = []
        self.reads = True
        """False for a client that does not read its response."""
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.task = asyncio.create_task(app(scope, self._messages.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)
        if not self.reads:
            await asyncio.Event().wait()

    def disconnect(self) -> None:
        self._messages.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int | None:
        return self.sent[0]["status"] if self.sent else None

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.sent[1]["body"])["error"]
        return error

    async def end(self) -> int | None:
        await asyncio.wait_for(self.task, 10)
        return self.status


class Pool:
    """Middleware in front of an engine, and its order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.engine = Engine()
        self.write(3)
        self.app = EngineAccess(self.engine)

    def write(self, count: int) -> None:
        replace_file(self.path, pool_order(count).model_dump_json(by_alias=True, exclude={"grant"}))

    def call(
        self,
        run: int | None = None,
        model: str | None = "policy-v000001-0123abcd",
        *,
        path: str = COMPLETIONS,
        token: str | None = None,
        method: str = "POST",
        body: Any = None,
        **headers: str,
    ) -> Call:
        token = TOKENS[f"run-{run}"] if run is not None else token
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        if model is not None:
            given[MODEL] = model
        raw = body if isinstance(body, bytes) else json.dumps(body or {"prompt": "hi", "model": "other"}).encode()
        encoded = [(name.lower().encode(), value.encode()) for name, value in given.items()]
        return Call(self.app, {"type": "http", "method": method, "path": path, "headers": encoded}, raw)

    async def usage(self) -> PoolUsage:
        """Return the usage as the sidecar receives it."""
        call = self.call(token=POOL_TOKEN, model=None, path=USAGE_PATH, method="GET")
        assert await call.end() == 200
        return PoolUsage.model_validate_json(call.sent[1]["body"])

    @property
    def is_idle(self) -> bool:
        inner = self.app._shared
        assert inner is not None
        runs = [*inner._samples._runs.values(), *inner._tokenizations._runs.values()]
        return not (inner._turns or inner._buffer._sizes or inner._samples._active or any(run.present for run in runs))


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pool:
    path = tmp_path / protocol.ORDER_FILE
    monkeypatch.setenv("RLRUN_TOKEN", POOL_TOKEN)
    monkeypatch.setenv("RLRUN_OPEN_PATHS", "/health")
    monkeypatch.setenv("RLRUN_POOL_ORDER_FILE", str(path))
    monkeypatch.setenv("RLRUN_MAX_LORAS", "2")
    monkeypatch.setenv("RLRUN_MAX_SEQUENCES", "16")
    monkeypatch.setenv("RLRUN_MAX_BODY", "4096")
    monkeypatch.setattr(shared_pool, "ORDER_SECONDS", 0.01)
    return Pool(path)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


PATHS = (
    COMPLETIONS, CHAT, TOKENIZE, "/metrics", "/v1/models", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/detokenize", "/v1/responses", "/collective_rpc", "/pause", "/v1/completions/", "/v1/chat/completions/batch",
    "/v1/completions/render", "/inference/v1/generate", "/abort_requests", "//tokenize", "/pool-usage", "",
)  # fmt: skip


@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "PUT"])
@pytest.mark.parametrize("path", PATHS)
async def test_a_token_opens_its_paths_only(path: str, method: str, pool: Pool) -> None:
    for token in (None, "", "another", TOKENS["run-0"][:-1]):
        assert await pool.call(token=token, path=path, method=method).end() == 401, token
    assert await pool.call(token=POOL_TOKEN, path=path, method=method).end() == 200
    is_open = path in (COMPLETIONS, CHAT, TOKENIZE) and method == "POST"
    call = pool.call(0, path=path, method=method)
    assert await call.end() == (200 if is_open else 401)
    assert pool.is_idle


async def test_health_needs_no_token(pool: Pool) -> None:
    assert await pool.call(path="/health", method="GET").end() == 200


async def test_a_websocket_needs_the_pools_token(pool: Pool) -> None:
    for token, expected in ((TOKENS["run-0"], "websocket.close"), (POOL_TOKEN, "http.response.start")):
        headers = [(b"authorization", f"Bearer {token}".encode())]
        call = Call(pool.app, {"type": "websocket", "path": COMPLETIONS, "headers": headers}, b"")
        await call.task
        assert call.sent[0]["type"] == expected


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, TOKENIZE])
async def test_a_request_gets_the_name_of_its_own_run(path: str, pool: Pool) -> None:
    given = b'{"model": "run-1_policy", "priority": -9, "vllm_xargs": {"x": 1}, "model": "b", "prompt": "hi"} '
    assert await pool.call(0, "policy", path=path, body=given).end() == 200
    assert await pool.call(1, BASE, path=path, body=given).end() == 200
    (_, _, first), (_, _, second) = pool.engine.requests
    assert first["model"] == protocol.engine_name("run-0", "policy")
    assert second["model"] == BASE
    assert (first["cache_salt"], second["cache_salt"]) == ("run-0", "run-1")
    for body in (first, second):
        assert (body["priority"], body["vllm_xargs"], body["prompt"], body["n"]) == (0, None, "hi", 1)


@pytest.mark.parametrize("name", ["policy-v000001-0123abcd", "run-1_policy", "../run-1_policy", "run-1.x", ".", "-"])
async def test_no_name_reaches_the_adapter_of_another_run(name: str, pool: Pool) -> None:
    if await pool.call(0, name).end() == 200:
        assert pool.engine.requests[0][2]["model"] == f"run-0_{name}"
    else:
        assert not pool.engine.requests


def test_names_of_adapters_are_those_of_the_protocol() -> None:
    assert shared_pool.engine_name("uid", "policy") == protocol.engine_name("uid", "policy")
    assert "_" in protocol.engine_name("uid", "policy"), "see the docstring of rlrun_engine_access.shared_pool"
    assert shared_pool.MODEL_HEADER.decode() == protocol.MODEL_HEADER.lower()
    assert shared_pool.SEQUENCES_HEADER.decode() == protocol.SEQUENCES_HEADER.lower()
    assert shared_pool.MAX_SEQUENCES >= MAX_SHARED_ROLLOUTS


async def test_a_request_has_the_number_of_sequences_of_its_header(pool: Pool) -> None:
    assert await pool.call(0, X_Rlrun_Sequences="3", body=b'{"prompt": "hi", "n": 9}').end() == 200
    assert await pool.call(0, X_Rlrun_Sequences="64").end() == 200
    few, many = (body["n"] for _, _, body in pool.engine.requests)
    assert (few, many) == (3, pool_order(3).runs[0].max_requests), "no more than the run may have in the engine"


@pytest.mark.parametrize("count", ["0", "65", "-1", "1.5", "100", "", " 2", "two"])
async def test_a_request_without_a_valid_number_of_sequences_is_refused(count: str, pool: Pool) -> None:
    call = pool.call(0, X_Rlrun_Sequences=count)
    assert await call.end() == 400
    assert "x-rlrun-sequences must be a number from 1 to 64" in call.error["message"]
    assert not pool.engine.requests


@pytest.mark.parametrize("name", [None, "", "a/b", "a b", "a\n", "x" * 129, "ä", "org/model ", "\ufeff", "a\0"])
async def test_a_request_without_a_valid_name_is_refused(name: str | None, pool: Pool) -> None:
    call = pool.call(0, name)
    assert await call.end() == 400
    assert "x-rlrun-model" in call.error["message"]
    assert not pool.engine.requests


async def test_two_names_are_refused(pool: Pool) -> None:
    headers = [(b"authorization", f"Bearer {TOKENS['run-0']}".encode()), *[(MODEL.lower().encode(), b"policy")] * 2]
    call = Call(pool.app, {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers}, b"{}")
    assert await call.end() == 400


async def test_the_tokens_of_a_chat_reach_the_engine(pool: Pool) -> None:
    tokens = {"prompt_token_ids": [3, 1, 4]}
    body = {"messages": [], "kv_transfer_params": tokens}
    assert await pool.call(0, path=CHAT, body=body).end() == 200
    [(_, _, received)] = pool.engine.requests
    assert received["kv_transfer_params"] == tokens


async def test_headers_that_steer_the_engine_do_not_reach_it(pool: Pool) -> None:
    steering = {
        "X-Vllm-Priority": "-5", "X-data-parallel-rank": "1", "X-Session-ID": "s", "X-Request-Id": "r",
        "Transfer-Encoding": "chunked", "Content-Length": "1", "traceparent": "00",
        "endpoint-load-metrics-format": "TEXT",
    }  # fmt: skip
    assert await pool.call(0, **steering, Content_Type="application/json", Accept="*/*").end() == 200
    (_, headers, _) = pool.engine.requests[0]
    assert headers.keys() == {"content-type", "accept", "content-length"}


@pytest.mark.parametrize("body", [b"[]", b"{", b"", b"{}x", b"\xff\xfe{\0}\0"])
async def test_a_body_that_is_no_object_is_refused_before_it_waits(body: bytes, pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    running = [pool.call(0) for _ in range(LIMIT)]
    await settle()
    assert await pool.call(0, body=body).end() == 400
    pool.engine.gate.set()
    assert {await call.end() for call in running} == {200}
    assert pool.is_idle


async def test_at_most_as_many_adapters_as_vllm_batches_have_requests(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(run, path=path) for run in range(3) for path in (COMPLETIONS, CHAT)]
    base = [pool.call(run, BASE) for run in range(3)]
    tokenized = [pool.call(run, path=TOKENIZE) for run in range(1)]
    await settle()
    assert len(pool.engine.requests) == 4 + len(base) + len(tokenized)
    pool.engine.gate.set()
    assert {await call.end() for call in [*calls, *base, *tokenized]} == {200}
    assert pool.engine.most == 2
    assert pool.is_idle


async def test_a_third_adapter_gets_its_turn_although_two_always_have_requests(pool: Pool) -> None:
    """Each response takes one turn of the loop below, so that the third adapter waits for one response."""
    waits, calls, third, gate = [], list[Call](), None, asyncio.Event()
    for turn in range(200):
        opened = gate
        pool.engine.gate = gate = asyncio.Event()
        calls = [call for call in calls if not call.task.done()]
        calls += [pool.call(run) for run in (0, 1) for _ in range(2)]
        if third is None:
            third, begin = pool.call(2), turn
        opened.set()
        await settle()
        assert pool.engine.most <= 2
        if any(body["model"].startswith("run-2") for _, _, body in pool.engine.requests):
            waits.append(turn - begin)
            third = None
        pool.engine.requests.clear()
        calls = [call for call in calls if call.status != 429]
    assert len(waits) > 50
    assert max(waits) <= 2
    gate.set()
    await asyncio.gather(*(call.end() for call in calls))


async def test_ten_thousand_requests_are_bounded(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(0) for _ in range(10_000)]
    await settle()
    assert len(pool.engine.requests) == LIMIT
    refused = [call for call in calls if call.status == 429]
    assert len(refused) == 10_000 - LIMIT * (1 + QUEUE_FACTOR)
    assert (b"retry-after", b"1") in refused[0].sent[0]["headers"]
    assert refused[0].error["type"] == "rate_limit_error"
    other = pool.call(1)
    await settle()
    assert len(pool.engine.requests) == LIMIT + 1, "another run is not affected"
    pool.engine.gate.set()
    assert Counter([await call.end() for call in calls]) == {200: 20, 429: 9_980}
    assert await other.end() == 200
    assert pool.is_idle


async def test_tokenizing_does_not_wait_for_samples_and_has_a_limit_of_its_own(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    samples = [pool.call(0) for _ in range(LIMIT * 2)]
    calls = [pool.call(0, path=TOKENIZE) for _ in range(TOKENIZATIONS + 4)]
    await settle()
    assert Counter(path for path, _, _ in pool.engine.requests) == {COMPLETIONS: LIMIT, TOKENIZE: TOKENIZATIONS}
    other = pool.call(1, path=TOKENIZE)
    await settle()
    assert len(pool.engine.requests) == LIMIT + TOKENIZATIONS + 1
    pool.engine.gate.set()
    assert {await call.end() for call in [*samples, *calls, other]} == {200}
    assert pool.is_idle


async def test_the_engine_has_a_quarter_more_requests_than_it_batches(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_MAX_SEQUENCES", "4")
    pool.app = EngineAccess(pool.engine)
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(run, BASE) for run in (0, 0, 0, 0, 1, 1, 2)]
    await settle()
    assert len(pool.engine.requests) == 5
    pool.engine.gate.set()
    assert {await call.end() for call in calls} == {200}
    assert pool.is_idle


async def test_a_body_counts_until_its_response_ends_and_only_vllm_references_it(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BUFFERED_PER_RUN", 300)
    pool.engine.gate = asyncio.Event()
    first = pool.call(0, body={"prompt": "x" * 200})
    await settle()
    assert pool.engine.references == [2], "the name in the engine, and the argument of getrefcount"
    assert await pool.call(0, body={"prompt": "x" * 200}).end() == 429
    pool.engine.gate.set()
    assert await first.end() == 200
    assert await pool.call(0, body={"prompt": "x" * 200}).end() == 200
    assert pool.is_idle


async def test_a_body_is_bounded_by_the_variable(pool: Pool) -> None:
    for size, expected in ((4096, 200), (4097, 413)):
        body = b'{"prompt": "' + b"x" * (size - 14) + b'"}'
        assert len(body) == size
        assert await pool.call(0, body=body).end() == expected


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": ["hi"] * 100}),
        (COMPLETIONS, {"prompt": [[1], [2]]}),
        (CHAT, {"messages": [], "kv_transfer_params": {"prompt_token_ids": [[1], [2]]}}),
    ],
)
async def test_a_request_of_a_run_is_one_sequence(path: str, body: dict[str, Any], pool: Pool) -> None:
    assert await pool.call(0, path=path, body=body).end() == 400
    assert not pool.engine.requests
    assert await pool.call(token=POOL_TOKEN, model=None, path=path, body=body).end() == 200, "the sidecar's probe"
    assert pool.is_idle


async def test_a_response_that_nobody_reads_ends(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_pool, "SEND_SECONDS", 0.02)
    pool.engine.pause = 0.1
    slow = pool.call(0)
    assert await slow.end() == 200
    assert len(slow.sent) == 2, "only the time of sending counts"
    stalled = pool.call(0)
    stalled.reads = False
    await stalled.end()
    assert len(stalled.sent) == 1
    assert pool.is_idle


async def test_a_client_that_leaves_frees_its_place(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    running = [pool.call(0) for _ in range(LIMIT)]
    waiting = [pool.call(0) for _ in range(LIMIT * QUEUE_FACTOR)]
    assert await pool.call(0).end() == 429
    waiting[0].disconnect()
    assert await waiting[0].end() is None
    again = pool.call(0)
    await settle()
    assert again.status is None, "it has the place of the one that left"
    running[0].disconnect()
    assert await running[0].end() == 200
    await settle()
    assert len(pool.engine.requests) == LIMIT + 1, "the next one runs"
    pool.engine.gate.set()
    assert {await call.end() for call in [*running, *waiting[1:], again]} == {200}
    assert len(pool.engine.requests) == LIMIT * (1 + QUEUE_FACTOR)
    assert pool.is_idle


async def test_a_cancelled_request_frees_its_place_at_every_stage(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(0) for _ in range(LIMIT + 1)]
    await settle()
    for call in (calls[-1], calls[0]):
        call.task.cancel()
    await settle()
    assert calls[0].task.cancelled()
    assert calls[-1].task.cancelled()
    receiving = pool.call(0)
    receiving.task.cancel()
    calls[1].task.cancel()
    pool.engine.gate.set()
    await asyncio.gather(*(call.task for call in [*calls, receiving]), return_exceptions=True)
    assert pool.is_idle


async def test_a_request_that_fails_frees_its_place(pool: Pool) -> None:
    pool.engine.failure = RuntimeError("engine died")
    for _ in range(3 * LIMIT):
        with pytest.raises(RuntimeError, match="engine died"):
            await pool.call(0).end()
    pool.engine.failure = None
    assert [await pool.call(run).end() for run in range(3)] == [200] * 3
    assert pool.is_idle


async def test_waiting_requests_of_a_run_that_leaves_the_order_are_refused(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    staying, leaving = ([pool.call(run) for _ in range(LIMIT + 1)] for run in (0, 1))
    await settle()
    pool.write(1)
    assert await leaving[-1].end() == 401, "without another request"
    assert await pool.call(1).end() == 401
    pool.engine.gate.set()
    assert {await call.end() for call in [*staying, *leaving[:-1]]} == {200}
    pool.write(3)
    assert await pool.call(1).end() == 200
    assert pool.is_idle


async def test_a_run_that_leaves_while_it_sends_a_body_is_refused(pool: Pool) -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    call = pool.call(1)
    call._messages = messages
    call.task.cancel()
    headers = [(b"authorization", f"Bearer {TOKENS['run-1']}".encode()), (MODEL.lower().encode(), b"policy")]
    scope = {"type": "http", "method": "POST", "path": COMPLETIONS, "headers": headers}
    task = asyncio.create_task(pool.app(scope, messages.get, call._send))
    await settle()
    pool.write(1)
    messages.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
    await task
    assert call.status == 401
    assert not pool.engine.requests
    assert pool.is_idle


@pytest.mark.parametrize("text", [None, "", "{}", "{"])
async def test_without_a_valid_order_no_run_is_served(text: str | None, pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(0) for _ in range(LIMIT + 1)]
    await settle()
    if text is None:
        pool.path.unlink()
    else:
        replace_file(pool.path, text)
    assert await calls[-1].end() == 503
    call = pool.call(0)
    assert await call.end() == 503
    assert "list of runs" in call.error["message"]
    assert await pool.call(path="/v1/models", method="GET", token=POOL_TOKEN).end() == 200
    pool.engine.gate.set()
    assert {await each.end() for each in calls[:-1]} == {200}
    assert await pool.call(token=POOL_TOKEN).end() == 200
    pool.write(3)
    assert await pool.call(0).end() == 200
    assert pool.is_idle


async def test_the_sidecars_samples_wait_for_a_slot_and_are_not_changed(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(run) for run in (0, 1)]
    await settle()
    probe = pool.call(token=POOL_TOKEN, model=None, body={"model": "probe", "priority": 3})
    await settle()
    assert len(pool.engine.requests) == 2
    pool.engine.gate.set()
    assert {await call.end() for call in [*calls, probe]} == {200}
    assert pool.engine.requests[-1][2] == {"model": "probe", "priority": 3}
    assert pool.is_idle


@pytest.mark.parametrize(
    ("variable", "value"),
    [("RLRUN_TOKEN", ""), ("RLRUN_MAX_LORAS", "many"), ("RLRUN_MAX_SEQUENCES", "many"), ("RLRUN_MAX_BODY", "many")],
)
def test_a_pool_without_its_variables_does_not_start(
    variable: str, value: str, pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=r"RLRUN_TOKEN|many"):
        EngineAccess(pool.engine)


USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


async def test_usage_counts_the_samples_of_each_run_and_nothing_else(pool: Pool) -> None:
    assert {uid: sum(run.tokens.values()) for uid, run in (await pool.usage()).runs.items()} == dict.fromkeys(TOKENS, 0)
    pool.engine.answer = json.dumps({"choices": [], "usage": USAGE}).encode()
    for run, path in ((0, COMPLETIONS), (0, CHAT), (1, COMPLETIONS), (1, TOKENIZE), (2, TOKENIZE)):
        assert await pool.call(run, path=path).end() == 200
    assert await pool.call(token=POOL_TOKEN, model=None).end() == 200, "the sidecar's probe"
    usage = await pool.usage()
    assert usage.runs.keys() == TOKENS.keys()
    counted = [run.tokens for run in usage.runs.values()]
    assert counted == [{"prompt": 5 * n, "cached": 4 * n, "sampled": 2 * n} for n in (2, 1, 0)]
    assert [run.device_seconds > 0 for run in usage.runs.values()] == [True, True, False]


async def test_usage_has_the_time_of_requests_in_the_engine_and_of_those_that_were_aborted(pool: Pool) -> None:
    assert pool.app._shared is not None
    age = 60.0
    pool.app._shared._usage = EngineUsage(lambda: age)
    pool.engine.gate = asyncio.Event()
    await pool.usage()
    calls = [pool.call(run) for run in (0, 1, 1)]
    await settle()
    age = 66.0
    calls[0].disconnect()
    calls[1].task.cancel()
    await asyncio.wait([call.task for call in calls[:2]])
    age = 67.0
    running = await pool.usage()
    assert [run.device_seconds for run in running.runs.values()] == [2, 5, 0]
    pool.engine.gate.set()
    assert await calls[2].end() == 200
    age = 70.0
    ended = await pool.usage()
    assert ended.runs == running.runs
    assert (running.idle_seconds, ended.idle_seconds) == (60, 63)
    assert all(sum(run.tokens.values()) == 0 for run in ended.runs.values())
    assert pool.is_idle


async def test_usage_has_waiting_and_refused_requests(pool: Pool) -> None:
    pool.engine.gate = asyncio.Event()
    calls = [pool.call(0) for _ in range(LIMIT * (1 + QUEUE_FACTOR) + 3)]
    await settle()
    assert await pool.call(1, body=b"[]").end() == 400
    usage = await pool.usage()
    assert usage.waiting == LIMIT * QUEUE_FACTOR
    assert [run.refused for run in usage.runs.values()] == [3, 0, 0]
    pool.engine.gate.set()
    await asyncio.gather(*(call.end() for call in calls))
    assert (await pool.usage()).waiting == 0


async def test_bodies_that_do_not_fit_into_memory_are_refused_requests(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "MAX_BUFFERED_PER_RUN", 10)
    assert await pool.call(1).end() == 429
    assert [run.refused for run in (await pool.usage()).runs.values()] == [0, 1, 0]


async def test_usage_has_the_runs_of_the_current_order_without_a_request(pool: Pool) -> None:
    pool.write(1)
    assert (await pool.usage()).runs.keys() == {"run-0"}
    pool.write(2)
    assert (await pool.usage()).runs.keys() == {"run-0", "run-1"}
    pool.path.unlink()
    assert (await pool.usage()).runs.keys() == {"run-0", "run-1"}, "they are exported for a while"
