"""The gateway between an OpenAI client and canned engines."""

import asyncio
import hashlib
import io
import itertools
import json
import math
import tarfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from aiohttp.typedefs import Handler
from rlrun.api.base.received import ENGINE_LIMITS
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.protocol.access import bearer
from rlrun.protocol.environment import ROLLOUT_ID_HEADER, ROLLOUT_IDS_HEADER
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MODEL_HEADER, SEQUENCES_HEADER
from rlrun.service.errors import FatalError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import AccessDenied
from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway import environment_packages, request_router, sampling_rules
from rlrun_orchestrator.inference.gateway.environment_packages import PackageMissing, PackageReader, package_digest
from rlrun_orchestrator.inference.gateway.limits import Limits
from rlrun_orchestrator.inference.gateway.live_groups import LiveGroup, LiveGroups
from rlrun_orchestrator.inference.gateway.package_pins import PackagePins, PackageRef
from rlrun_orchestrator.inference.gateway.request_router import NoReplicaAvailable, RequestRouter
from rlrun_orchestrator.inference.gateway.responses import InvalidEngineResponse, parse_turn
from rlrun_orchestrator.inference.gateway.sampling_rules import (
    BadRequest,
    CompletionKind,
    SamplingRules,
    SamplingSeedKey,
)
from rlrun_orchestrator.inference.gateway.server import Gateway
from rlrun_orchestrator.inference.replica_pool import Replica, ReplicaAddresses, ReplicaPool, choose
from rlrun_orchestrator.inference.sidecar_client import SidecarClient
from yarl import URL

from tests.support.fake_replica import FakeReplica, chat_answer
from tests.support.policy_refs import policy
from tests.support.run_processes import serve
from tests.support.run_store import RunStore
from tests.support.waiting import until

POLICY = policy(3, "s3://bucket/run")
NEWER = policy(5, "s3://bucket/run")
NOBODY: Any = None
BASE_MODEL = "owner/tiny"
SEQ_LEN = 100
CLOCK = itertools.count()
LIMITS = Limits(in_flight=3, rollouts=5, turns=4, body_bytes=10_000, body_seconds=0.3)
MESSAGES: Any = [{"role": "user", "content": "hello"}]


class CannedEngine:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.times: list[tuple[int, dict[str, Any]]] = []
        self.answer: dict[str, Any] = chat_answer(POLICY.name, [1, 2, 3], [4, 5], "hi")
        self.status = 200
        self.headers: dict[str, str] = {}
        self.arrived = asyncio.Event()
        self.gone = asyncio.Event()
        self.hangs = False
        self.released = asyncio.Event()
        self.last = 0
        self.prompt_tokens: int | None = None
        """Length of every prompt according to its tokenizer. None: it has no route for that."""
        self.seq_len: int | None = None
        """Refuses prompts with `max_tokens` above this number of tokens, as vLLM before 0.20 does. None: all fit."""
        self.tokenized: list[dict[str, Any]] = []
        self.models: list[str | None] = []
        self.sequences: list[str | None] = []
        """Header with the model's name of each request."""
        self.busy = 0
        """Number of next requests that it refuses with 429."""
        self.refused = 0
        self.takes_n = True
        """False in a shared pool that lets the run have a single sequence in the engine."""

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self.count])
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_post("/v1/completions", self.complete)
        app.router.add_post("/tokenize", self.tokenize)
        return app

    @web.middleware
    async def count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        self.models.append(request.headers.get(MODEL_HEADER))
        self.sequences.append(request.headers.get(SEQUENCES_HEADER))
        if self.busy > 0:
            self.busy -= 1
            self.refused += 1
            return web.json_response({"error": {"message": "too many"}}, status=429, headers=self.headers)
        return await handler(request)

    async def tokenize(self, request: web.Request) -> web.Response:
        self.tokenized.append(await request.json())
        if self.prompt_tokens is None:
            return web.Response(status=404)
        return web.json_response({"count": self.prompt_tokens, "tokens": [1] * self.prompt_tokens})

    async def complete(self, request: web.Request) -> web.Response:
        self.asked.append(json.loads(await request.read()))
        self.last = next(CLOCK)
        self.times.append((self.last, self.asked[-1]))
        self.arrived.set()
        if self.hangs:
            try:
                await asyncio.wait_for(self.released.wait(), 60)
            except asyncio.CancelledError:
                self.gone.set()
                raise
        if self.seq_len is not None and (self.prompt_tokens or 0) + self.asked[-1]["max_tokens"] > self.seq_len:
            message = f"This model's maximum context length is {self.seq_len} tokens. However, you requested too many."
            return web.json_response({"error": {"message": message, "code": 400}}, status=400)
        answer = self.answer
        count = self.asked[-1].get("n", 1)
        if self.takes_n and count > 1 and "choices" in answer:
            answer = several_choices(answer, count)
        return web.json_response(answer, status=self.status, headers=self.headers)


def several_choices(answer: dict[str, Any], count: int) -> dict[str, Any]:
    """Return vLLM's response with choices of different tokens, which arrive in any order."""
    choice = answer["choices"][0]
    choices = [choice | {"index": n, "token_ids": [n, *choice["token_ids"][1:]]} for n in range(count)]
    usage = answer["usage"] | {"completion_tokens": sum(len(one["token_ids"]) for one in choices)}
    return answer | {"choices": choices[::-1], "usage": usage}


def text_answer(prompt_ids: list[int], completion_ids: list[int]) -> dict[str, Any]:
    """The shape of vLLM 0.32's answer to a text completion of two tokens."""
    choice = {
        "index": 0,
        "text": "ab",
        "logprobs": {
            "text_offset": [0, 1],
            "token_logprobs": [-0.1, -0.2],
            "tokens": ["a", "b"],
            "top_logprobs": [{"a": -0.1}, {"b": -0.2}],
        },
        "finish_reason": "length",
        "stop_reason": None,
        "token_ids": completion_ids,
        "prompt_token_ids": prompt_ids,
        "prompt_logprobs": None,
    }
    usage = {"prompt_tokens": 2, "total_tokens": 4, "completion_tokens": 2}
    head = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": POLICY.name}
    return head | {"choices": [choice], "usage": usage}


@dataclass
class Setup:
    url: str
    groups: LiveGroups
    pool: ReplicaPool
    router: RequestRouter
    engines: list[CannedEngine]
    http: aiohttp.ClientSession

    @property
    def asked(self) -> list[dict[str, Any]]:
        """What all engines were asked."""
        return [asked for engine in self.engines for asked in engine.asked]

    def newest(self) -> dict[str, Any]:
        """What an engine was asked last."""
        return max((engine for engine in self.engines if engine.asked), key=lambda e: e.last).asked[-1]

    def asked_in_order(self) -> list[dict[str, Any]]:
        """What the engines were asked, in the order of time."""
        return [asked for _, asked in sorted((t, asked) for engine in self.engines for t, asked in engine.times)]

    def serve(self, ref: PolicyRef) -> None:
        """All engines have the policy."""
        for replica in self.pool.replicas.values():
            replica.adapters.add(ref.name)

    def open(self, ref: PolicyRef = POLICY, **how: Any) -> tuple[LiveGroup, openai.AsyncOpenAI]:
        group = self.groups.open(ref, **how)
        client = openai.AsyncOpenAI(base_url=f"{self.url}groups/{group.id}/v1", api_key="none", max_retries=0)
        return group, client


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    engines = [CannedEngine(), CannedEngine()]
    servers = []
    async with aiohttp.ClientSession() as http:
        groups = LiveGroups(BASE_MODEL)

        async def nobody() -> list[ReplicaAddresses]:
            return []

        pool = ReplicaPool(http, nobody, groups.policies, poll_interval=0.05)
        for engine in engines:
            server = TestServer(engine.application())
            await server.start_server()
            servers.append(server)
            url = str(server.make_url("")).rstrip("/")
            replica = Replica(
                ReplicaAddresses(url, url), SidecarClient(http, url), adapters={POLICY.name}, is_answering=True
            )
            pool.replicas[replica.endpoint] = replica
        router = RequestRouter(http, pool, groups, wait=0.3, deadline=10)
        rules = SamplingRules(
            Sampling(max_tokens=64, temperature=0.8, stop=["END"], seed=7, min_tokens=40), seq_len=SEQ_LEN
        )
        gateway = Gateway(groups, rules, router, None, limits=LIMITS)
        front = TestServer(gateway.application())
        await front.start_server()
        servers.append(front)
        yield Setup(str(front.make_url("/")), groups, pool, router, engines, http)
        for server in servers:
            await server.close()


@pytest.mark.proves("sampling.stop", "sampling.temperature", "sampling.maxTokens")
async def test_a_chat_is_answered_and_its_tokens_are_recorded(setup: Setup) -> None:
    group, client = setup.open()
    answer = await client.chat.completions.create(
        model="whatever",
        messages=MESSAGES,
        max_tokens=1000,
        temperature=0.1,
        stop="x",
        extra_headers={ROLLOUT_ID_HEADER: "r1"},
    )
    assert answer.choices[0].message.content == "hi"
    assert answer.choices[0].logprobs is None, "what only the gateway needs stays there"
    assert "prompt_token_ids" not in answer.model_dump()
    (turn,) = group.turns_of("r1")
    assert (list(turn.prompt_ids), list(turn.completion_ids)) == ([1, 2, 3], [4, 5])
    assert list(turn.logprobs) == pytest.approx([-0.254, -0.255])
    asked = next(engine.asked[0] for engine in setup.engines if engine.asked)
    assert asked["model"] == POLICY.name
    assert (asked["max_tokens"], asked["temperature"], asked["stop"]) == (64, 0.8, ["END", "x"])
    assert asked["return_token_ids"] is asked["logprobs"] is True


async def test_a_turn_that_begins_after_a_publication_uses_the_newest_policy(setup: Setup) -> None:
    group, client = setup.open()
    setup.serve(NEWER)
    await take_turn(client)
    setup.groups.publish(NEWER)
    await take_turn(client)
    assert [asked["model"] for asked in setup.asked_in_order()] == [POLICY.name, NEWER.name]
    assert [turn.version for turn in group.turns_of("r1")] == [POLICY.version, NEWER.version]
    assert (group.versions.oldest, group.versions.newest) == (POLICY.version, NEWER.version)
    setup.groups.publish(None)
    await take_turn(client)
    assert setup.newest()["model"] == NEWER.name, "without a published policy the group continues with its own"


async def test_a_turn_in_progress_keeps_its_policy_loaded_until_it_ends(setup: Setup) -> None:
    group, client = setup.open()
    setup.serve(NEWER)
    for engine in setup.engines:
        engine.hangs = True
    turn = asyncio.create_task(take_turn(client))
    await asyncio.wait({asyncio.create_task(e.arrived.wait()) for e in setup.engines}, return_when="FIRST_COMPLETED")
    setup.groups.publish(NEWER)
    in_use = set(setup.groups.policies())
    for engine in setup.engines:
        engine.released.set()
    await turn
    assert in_use == {POLICY.name}
    assert [turn.version for turn in group.turns_of("r1")] == [POLICY.version], "it went on with its policy"
    assert setup.groups.policies() == {}, "the next turn uses the newest policy, which the pool keeps"


async def test_a_group_that_measures_a_policy_keeps_it(setup: Setup) -> None:
    _, client = setup.open(record=False)
    setup.serve(NEWER)
    setup.groups.publish(NEWER)
    await take_turn(client)
    assert setup.newest()["model"] == POLICY.name
    assert set(setup.groups.policies()) == {POLICY.name}


@pytest.mark.parametrize(
    "failure",
    ["refused by the gateway", "refused by the engine", "too long", "no replica", "unusable", "hangs up", "empty"],
)
async def test_a_request_that_samples_nothing_does_not_change_the_age_of_its_group(setup: Setup, failure: str) -> None:
    group, client = setup.open()
    setup.serve(NEWER)
    setup.groups.publish(NEWER)
    changes: dict[str, Any] = {}
    if failure == "refused by the gateway":
        changes = {"response_format": {"type": "json_object"}}
    elif failure == "refused by the engine":
        refuse(setup, "roles must alternate")
    elif failure == "too long":
        refuse(setup, "This model's maximum context length is 100 tokens", prompt_tokens=120)
    elif failure == "no replica":
        setup.pool.replicas.clear()
    for engine in setup.engines:
        engine.hangs = failure == "hangs up"
        if failure == "unusable":
            engine.answer = engine.answer | {"prompt_token_ids": None}
        elif failure == "empty":
            engine.answer = chat_answer(NEWER.name, [1, 2, 3], [], "")
    if failure == "hangs up":
        request = asyncio.create_task(take_turn(client))
        arrivals = [asyncio.create_task(engine.arrived.wait()) for engine in setup.engines]
        await asyncio.wait(arrivals, return_when="FIRST_COMPLETED")
        assert (group.versions.oldest, group.model) == (NEWER.version, NEWER.name), "it may sample yet"
        request.cancel()
        await until(lambda: group.in_flight == 0)
    else:
        status, _ = await ask(setup, group, **changes)
        assert (status == 200) == (failure == "empty")
    assert (group.versions.oldest, group.versions.newest) == (POLICY.version, POLICY.version)
    setup.groups.publish(None)
    assert (group.model, set(setup.groups.policies())) == (POLICY.name, {POLICY.name}), "so the next turn may use it"


async def test_a_request_that_outlives_its_group_does_not_change_its_age(setup: Setup) -> None:
    group, client = setup.open()
    setup.serve(NEWER)
    await take_turn(client)
    setup.groups.publish(NEWER)
    for engine in setup.engines:
        engine.hangs = True
        engine.arrived.clear()
    request = asyncio.create_task(take_turn(client))
    arrivals = [asyncio.create_task(engine.arrived.wait()) for engine in setup.engines]
    await asyncio.wait(arrivals, return_when="FIRST_COMPLETED")
    assert group.versions.newest == NEWER.version
    setup.groups.close(group.id)
    assert group.versions.newest == POLICY.version
    for engine in setup.engines:
        engine.released.set()
    with pytest.raises(openai.NotFoundError):
        await request
    assert (group.versions.newest, len(group.turns_of("r1"))) == (POLICY.version, 1)


async def take_turn(client: openai.AsyncOpenAI) -> None:
    await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "r1"})


async def test_a_client_that_asks_for_logprobs_gets_them(setup: Setup) -> None:
    _, client = setup.open()
    answer = await client.chat.completions.create(model="m", messages=MESSAGES, logprobs=True)
    assert answer.choices[0].logprobs
    assert answer.choices[0].logprobs.content
    assert [token.logprob for token in answer.choices[0].logprobs.content] == [-0.254, -0.255]


async def test_a_streaming_client_gets_a_stream_and_the_turn_is_recorded(setup: Setup) -> None:
    group, client = setup.open()
    for engine in setup.engines:
        engine.answer["choices"][0]["message"]["tool_calls"] = [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]
    stream = await client.chat.completions.create(
        model="m",
        messages=MESSAGES,
        stream=True,
        stream_options={"include_usage": True},
        extra_headers={ROLLOUT_ID_HEADER: "r1"},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "hi"
    calls = chunks[0].choices[0].delta.tool_calls
    assert calls
    assert calls[0].function
    assert calls[0].function.name == "f"
    assert chunks[1].choices[0].finish_reason == "stop"
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 2
    assert len(group.turns_of("r1")) == 1
    assert setup.engines[0].asked + setup.engines[1].asked
    assert not any(a["stream"] for e in setup.engines for a in e.asked)


async def test_a_text_completion_is_recorded_from_its_own_format(setup: Setup) -> None:
    group, client = setup.open()
    for engine in setup.engines:
        engine.answer = text_answer([5, 6], [7, 8])
    answer = await client.completions.create(model="m", prompt="x", extra_headers={ROLLOUT_ID_HEADER: "r"})
    assert answer.choices[0].text == "ab"
    (turn,) = group.turns_of("r")
    assert (list(turn.prompt_ids), list(turn.completion_ids), turn.finish_reason) == ([5, 6], [7, 8], "length")
    assert list(turn.logprobs) == pytest.approx([-0.1, -0.2])
    assert next(e.asked[0] for e in setup.engines if e.asked)["logprobs"] == 0


async def test_a_request_without_a_rollout_id_is_a_rollout_of_its_own(setup: Setup) -> None:
    group, client = setup.open()
    ids = []
    for _ in range(2):
        raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        ids.append(raw.headers[ROLLOUT_ID_HEADER])
    assert len(set(ids)) == 2
    assert all(len(group.turns_of(rollout)) == 1 for rollout in ids)


async def test_the_rollout_id_may_be_in_the_path(setup: Setup) -> None:
    group, _ = setup.open()
    url = f"{setup.url}groups/{group.id}/rollouts/r9/v1/chat/completions"
    async with setup.http.post(url, json={"messages": MESSAGES}) as response:
        assert response.status == 200
    assert len(group.turns_of("r9")) == 1


async def test_closed_and_unknown_groups_are_refused(setup: Setup) -> None:
    group, client = setup.open()
    setup.groups.close(group.id)
    with pytest.raises(openai.NotFoundError, match="does not exist or has ended"):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    async with setup.http.get(f"{setup.url}groups/g-00/v1/models") as response:
        assert response.status == 404
    assert not any(engine.asked for engine in setup.engines)


async def test_the_models_of_a_group_are_its_policy(setup: Setup) -> None:
    _, client = setup.open()
    assert [model.id async for model in client.models.list()] == [POLICY.name]


async def test_a_failing_replica_leaves_rotation_and_another_answers(setup: Setup) -> None:
    group, client = setup.open()
    bad, good = setup.pool.replicas.values()
    group.home = bad
    setup.engines[0].status = 500
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "hi"
    assert (bad.is_answering, good.is_answering) == (False, True)
    assert group.home is good
    assert setup.router.stats.retries == 1


async def test_replica_without_the_adapter_loads_the_adapter_again(setup: Setup) -> None:
    group, client = setup.open()
    bad, good = setup.pool.replicas.values()
    group.home = bad
    setup.engines[0].status = 404
    setup.engines[0].answer = {"error": {"message": f"The model `{POLICY.name}` does not exist."}}
    await client.chat.completions.create(model="m", messages=MESSAGES)
    assert POLICY.name not in bad.adapters
    assert bad.wake.is_set()
    assert good.serves(POLICY.name)


async def test_each_request_names_its_model_in_a_header(setup: Setup) -> None:
    _, client = setup.open()
    for engine in setup.engines:
        engine.prompt_tokens, engine.seq_len = 50, SEQ_LEN
    await take_turn(client)
    assert {model for engine in setup.engines for model in engine.models} == {POLICY.name}
    assert any(engine.tokenized for engine in setup.engines)
    for engine in setup.engines:
        engine.models.clear()
    _, client = setup.open(record=False, base=True)
    await take_turn(client)
    assert {model for engine in setup.engines for model in engine.models} == {BASE_MODEL}


async def test_a_busy_engine_is_passed_over_and_not_marked(setup: Setup) -> None:
    _, client = setup.open()
    first, second = setup.engines
    first.busy = 1000
    await take_turn(client)
    assert (first.refused, len(second.asked)) == (1, 1)
    assert all(replica.is_answering for replica in setup.pool.replicas.values())
    assert (setup.router.stats.retries, setup.router.stats.failures) == (0, 0)


async def test_a_request_waits_while_all_engines_are_busy(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_router, "LONGEST_BUSY_SECONDS", 0.02)
    _, client = setup.open()
    for engine in setup.engines:
        engine.busy = 5
        engine.headers = {"Retry-After": "3600"}
    await take_turn(client)
    assert [engine.refused for engine in setup.engines] != [0, 0]
    assert sum(engine.refused for engine in setup.engines) > request_router.MAX_TRIES
    assert len(setup.asked) == 1
    assert all(replica.is_answering for replica in setup.pool.replicas.values())


@pytest.mark.parametrize(
    ("retry_after", "pauses"), [("2", 2.0), ("0", 0.5), ("Fri, 31 Dec 1999 23:59:59 GMT", 0.5), (None, 0.5), ("99", 10)]
)
async def test_the_pause_is_what_the_engine_asks_for(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, retry_after: str | None, pauses: float
) -> None:
    monkeypatch.setattr(request_router.random, "uniform", lambda low, _: low)
    waits: list[float] = []
    clock = [1000.0]

    async def wait(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(setup.pool, "wait_for_change", wait)
    monkeypatch.setattr(request_router.time, "monotonic", lambda: clock[0])
    setup.pool.replicas.popitem()
    engine = setup.engines[0]
    engine.busy, engine.headers = 1, {} if retry_after is None else {"Retry-After": retry_after}
    group = setup.groups.open(POLICY)
    router = RequestRouter(setup.http, setup.pool, setup.groups, wait=0.3, deadline=60)
    status, _ = await router.send(group, group.served, "/v1/chat/completions", b'{"model": "m", "max_tokens": 1}')
    assert status == 200
    assert sum(waits) == pytest.approx(pauses)


async def test_an_engine_that_stays_busy_is_asked_ever_more_seldom(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]

    async def wait(seconds: float) -> None:
        clock[0] += seconds

    monkeypatch.setattr(setup.pool, "wait_for_change", wait)
    monkeypatch.setattr(request_router.time, "monotonic", lambda: clock[0])
    setup.pool.replicas.popitem()
    engine = setup.engines[0]
    engine.busy, engine.headers = 10**9, {"Retry-After": "1"}
    group = setup.groups.open(POLICY)
    router = RequestRouter(setup.http, setup.pool, setup.groups, wait=0.3, deadline=30)
    with pytest.raises(request_router.NoReplicaAvailable, match="the inference engines are busy"):
        await router.send(group, group.served, "/v1/chat/completions", b"{}")
    assert 4 <= engine.refused <= 8


async def test_an_engine_that_does_not_know_the_run_is_replaced_by_another(setup: Setup) -> None:
    group, client = setup.open()
    stale, current = setup.pool.replicas.values()
    group.home = stale
    setup.engines[0].status = 401
    await take_turn(client)
    assert (stale.is_answering, current.is_answering) == (False, True)
    assert stale.problem is not None
    assert "does not accept this run's token" in stale.problem.message


async def test_a_run_that_no_engine_knows_gets_a_temporary_refusal(setup: Setup) -> None:
    group = setup.groups.open(POLICY)
    for engine, replica in zip(setup.engines, setup.pool.replicas.values(), strict=True):
        engine.status, replica.has_responded = 401, True
    with pytest.raises(request_router.NoReplicaAvailable, match="shared pool's list of runs is out of date"):
        await setup.router.send(group, group.served, "/v1/chat/completions", b"{}")
    assert [len(engine.asked) for engine in setup.engines] == [1, 1]


async def test_engines_that_stay_busy_fail_the_request_at_its_deadline(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_router, "LONGEST_BUSY_SECONDS", 0.02)
    group = setup.groups.open(POLICY)
    for engine in setup.engines:
        engine.busy = 10**9
    router = RequestRouter(setup.http, setup.pool, setup.groups, wait=0.01, deadline=0.2)
    with pytest.raises(request_router.NoReplicaAvailable, match="the inference engines are busy") as caught:
        await router.send(group, group.served, "/v1/chat/completions", b"{}")
    assert caught.value.problem.reason == "InferenceFailed"
    assert router.stats.failures == 1
    assert all(engine.refused > 1 for engine in setup.engines)


async def test_a_closed_group_does_not_wait_for_busy_engines(setup: Setup) -> None:
    group, client = setup.open()
    for engine in setup.engines:
        engine.busy, engine.headers = 10**9, {"Retry-After": "3600"}
    turn = asyncio.create_task(take_turn(client))
    await until(lambda: all(engine.refused for engine in setup.engines))
    setup.groups.close(group.id)
    async with asyncio.timeout(8):  # far less than the pause
        with pytest.raises(openai.NotFoundError):
            await turn


async def test_a_replica_that_appears_is_used_while_others_are_busy(setup: Setup) -> None:
    _, client = setup.open()
    busy, idle = setup.engines
    busy.busy, busy.headers = 10**9, {"Retry-After": "3600"}
    hidden = list(setup.pool.replicas.values())[1]
    hidden.is_answering = False
    turn = asyncio.create_task(take_turn(client))
    await until(lambda: busy.refused == 1)
    hidden.is_answering = True
    async with asyncio.timeout(8):
        await turn
    assert (busy.refused, len(idle.asked)) == (1, 1)


async def test_a_request_in_flight_on_a_vanished_replica_moves_on(setup: Setup) -> None:
    group, client = setup.open()
    bad, good = setup.pool.replicas.values()
    group.home = bad
    setup.engines[0].hangs = True
    request = asyncio.create_task(client.chat.completions.create(model="m", messages=MESSAGES))
    await setup.engines[0].arrived.wait()
    bad.is_answering = False
    for _ in range(3):
        setup.pool._update_replicas({good.endpoint})
    assert (await request).choices[0].message.content == "hi"


async def test_a_request_without_any_replica_waits_and_then_fails_with_the_cause(setup: Setup) -> None:
    _, client = setup.open()
    for replica in setup.pool.replicas.values():
        replica.is_answering = False
    with pytest.raises(openai.InternalServerError, match="no inference replica"):
        await client.chat.completions.create(model="m", messages=MESSAGES)


async def test_an_answer_that_is_too_large_fails_its_request_and_costs_no_replica(setup: Setup) -> None:
    group, client = setup.open()
    for engine in setup.engines:
        engine.answer = {"padding": "x" * ENGINE_LIMITS.size}
    retrying = client.with_options(max_retries=2)
    with pytest.raises(openai.APIStatusError, match=rf"larger than {ENGINE_LIMITS.size} bytes\. Request") as raised:
        await retrying.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "r1"})
    assert raised.value.status_code == 413
    assert refusals(group) == {"r1": "AnswerTooLarge"}
    assert setup.router.stats.refusals == {"AnswerTooLarge": 1}
    assert all(replica.is_answering for replica in setup.pool.replicas.values())
    assert len(setup.asked) == 1


async def test_an_engines_refusal_is_passed_on_and_costs_no_replica(setup: Setup) -> None:
    _, client = setup.open()
    for engine in setup.engines:
        engine.status = 400
        engine.answer = {"error": {"message": "maximum context length is 16", "code": 400}}
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert all(replica.is_answering for replica in setup.pool.replicas.values())


def refuse(setup: Setup, message: str, *, prompt_tokens: int | None = None) -> None:
    """Make the engines refuse every completion."""
    for engine in setup.engines:
        engine.status, engine.prompt_tokens = 400, prompt_tokens
        engine.answer = {"error": {"message": message, "type": "BadRequestError", "code": 400}}


async def ask(setup: Setup, group: LiveGroup, rollout: str = "r1", **body: Any) -> tuple[int, dict[str, Any]]:
    """Send a chat, and return status and body of the response."""
    url = f"{setup.url}groups/{group.id}/v1/chat/completions"
    body = {"model": "m", "messages": MESSAGES, **body}
    async with setup.http.post(url, json=body, headers={ROLLOUT_ID_HEADER: rollout}) as response:
        return response.status, await response.json()


async def ask_together(
    setup: Setup, group: LiveGroup, rollouts: str = "a,b,c", path: str = "/chat/completions", **body: Any
) -> tuple[int, dict[str, Any]]:
    """Send one request for several rollouts, and return status and body of the response."""
    given = {"model": "m", "messages": MESSAGES, "n": len(rollouts.split(",")), **body}
    url = f"{setup.url}groups/{group.id}/v1{path}"
    async with setup.http.post(url, json=given, headers={ROLLOUT_IDS_HEADER: rollouts}) as response:
        return response.status, await response.json()


async def test_rollouts_that_share_a_request_have_a_choice_each(setup: Setup) -> None:
    group, _ = setup.open()
    status, answer = await ask_together(setup, group)
    assert status == 200
    (asked,) = setup.asked
    assert [count for engine in setup.engines for count in engine.sequences] == ["3"]
    assert (asked["n"], asked["seed"]) == (3, SamplingSeedKey(group.ordinal, 0, 0).seed(7))
    assert {name: list(turn.completion_ids) for name, (turn,) in group.turns_by_rollout().items()} == {
        "a": [0, 5],
        "b": [1, 5],
        "c": [2, 5],
    }
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert [(choice["index"], choice["usage"]) for choice in answer["choices"]] == [(n, usage) for n in range(3)]
    assert "token_ids" not in answer["choices"][0]


async def test_texts_may_share_a_request(setup: Setup) -> None:
    group, _ = setup.open()
    for engine in setup.engines:
        engine.answer = text_answer([1, 2], [3, 4])
    status, answer = await ask_together(setup, group, path="/completions", prompt="hello")
    assert (status, len(answer["choices"])) == (200, 3)
    assert [list(turn.completion_ids) for (turn,) in group.turns_by_rollout().values()] == [[0, 4], [1, 4], [2, 4]]


async def test_a_rollout_has_the_same_seed_alone_and_in_a_shared_request(setup: Setup) -> None:
    """vLLM samples choice i with the seed of the request plus i."""
    _, client = setup.open(ordinal=3)
    for rollout in "abc":
        await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: rollout})
    alone = [asked["seed"] for asked in setup.asked_in_order()]
    group, client = setup.open(ordinal=3)
    await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "a"})
    await ask_together(setup, group, "b,c")
    assert alone == [alone[0], alone[0] + 1, alone[0] + 2]
    assert setup.asked_in_order()[-1]["seed"] == alone[1]


async def test_the_next_turn_of_a_shared_request_continues_its_own_choice(setup: Setup) -> None:
    group, client = setup.open()
    await ask_together(setup, group)
    for engine in setup.engines:
        engine.answer = chat_answer(POLICY.name, [1, 2, 3, 1, 5, 9], [4, 5], "hi")
    said: Any = [*MESSAGES, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "go on"}]
    await client.chat.completions.create(model="m", messages=said, extra_headers={ROLLOUT_ID_HEADER: "b"})
    assert setup.router.stats.prefixes == {"exact": 1}
    assert [list(turn.completion_ids) for turn in group.turns_of("b")] == [[1, 5], [4, 5]]
    assert len(group.turns_of("a")) == 1


async def test_long_completions_do_not_share_a_request_to_the_engine(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling_rules, "MAX_SHARED_TOKENS", 50)
    group, _ = setup.open()
    status, answer = await ask_together(setup, group, max_tokens=51)
    assert (status, len(answer["choices"])) == (200, 3)
    assert [asked["n"] for asked in setup.asked] == [1, 1, 1]
    short, _ = setup.open()
    await ask_together(setup, short, max_tokens=50)
    assert setup.asked_in_order()[-1]["n"] == 3, "the engines take n"


async def test_engines_that_set_n_to_1_get_a_request_for_each_rollout(setup: Setup) -> None:
    for engine in setup.engines:
        engine.takes_n = False
    first, _ = setup.open(ordinal=0)
    second, _ = setup.open(ordinal=0)
    assert (await ask_together(setup, first))[0] == 200
    assert sorted(asked["n"] for asked in setup.asked) == [1, 1, 3]
    status, answer = await ask_together(setup, second)
    assert (status, len(answer["choices"])) == (200, 3)
    assert [asked["n"] for asked in setup.asked_in_order()[3:]] == [1, 1, 1], "the gateway remembers it"
    base = SamplingSeedKey(0, 0, 0).seed(7)
    assert sorted(asked["seed"] for asked in setup.asked_in_order()[3:]) == [base, base + 1, base + 2]
    for group in (first, second):
        assert [len(turns) for turns in group.turns_by_rollout().values()] == [1, 1, 1]


async def test_a_failed_request_of_one_rollout_costs_the_others_no_choice(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = setup.open()
    for engine in setup.engines:
        engine.takes_n = False
    send = Gateway._send_whole

    async def fail_last(self: Gateway, group: Any, served: Any, exchange: Any) -> dict[str, Any]:
        if [one.rollout for one in exchange.rollouts] == ["c"]:
            raise NoReplicaAvailable(Problem(reason="Busy", message="all engines are at their limit"))
        return await send(self, group, served, exchange)

    monkeypatch.setattr(Gateway, "_send_whole", fail_last)
    status, answer = await ask_together(setup, group)
    assert (status, len(answer["choices"])) == (200, 2)
    assert {rollout: len(turns) for rollout, turns in group.turns_by_rollout().items()} == {"a": 1, "b": 1, "c": 0}


async def test_a_shared_request_counts_as_all_of_its_completions_at_its_replica(setup: Setup) -> None:
    group, _ = setup.open()
    for engine in setup.engines:
        engine.hangs = True
    request = asyncio.create_task(ask_together(setup, group))
    arrivals = [asyncio.create_task(engine.arrived.wait()) for engine in setup.engines]
    await asyncio.wait(arrivals, return_when="FIRST_COMPLETED")
    assert sorted(replica.requests for replica in setup.pool.replicas.values()) == [0, 3]
    for engine in setup.engines:
        engine.released.set()
    await request
    assert [replica.requests for replica in setup.pool.replicas.values()] == [0, 0]


@pytest.mark.parametrize(
    ("rollouts", "body", "words"),
    [
        ("a,a", {}, "all different"),
        ("known,b", {}, "without earlier requests"),
        (",".join(map(str, range(65))), {}, "at most 64"),
        ("a,", {}, "printable ASCII"),
        ("a,b", {"n": 3}, "n must be 2"),
        ("a,b", {"n": None}, "n must be 2"),
        ("a,b", {"stream": True}, "stream is not available"),
    ],
)
async def test_a_shared_request_must_be_the_first_of_its_rollouts(
    setup: Setup, rollouts: str, body: dict[str, Any], words: str
) -> None:
    group, _ = setup.open()
    await ask(setup, group, "known")
    status, answer = await ask_together(setup, group, rollouts, **body)
    assert status == 400
    assert words in answer["error"]["message"]
    assert len(setup.asked) == 1


@pytest.mark.parametrize(("record", "missing"), [(True, "logprobs"), (True, "token_ids"), (False, "token_ids")])
async def test_if_one_choice_is_unusable_none_is_recorded(setup: Setup, record: bool, missing: str) -> None:
    group, _ = setup.open(record=record)
    for engine in setup.engines:
        engine.takes_n = False
        engine.answer = several_choices(engine.answer, 3)
        engine.answer["choices"][1] = engine.answer["choices"][1] | {missing: None}
    status, _ = await ask_together(setup, group)
    assert status == 502
    assert set(refusals(group).values()) == {"InferenceAnswerUnusable"}
    assert group.turns_by_rollout() == {"a": [], "b": [], "c": []}
    for engine in setup.engines:
        engine.answer = chat_answer(POLICY.name, [1, 2, 3], [4, 5], "hi")
    assert [(await ask(setup, group, rollout))[0] for rollout in "abc"] == [200] * 3
    assert refusals(group) == {}


async def test_a_refused_shared_request_is_a_refusal_of_each_rollout(setup: Setup) -> None:
    group, _ = setup.open()
    refuse(setup, "roles must alternate")
    assert (await ask_together(setup, group))[0] == 400
    assert refusals(group) == dict.fromkeys("abc", "RequestRefused")


async def test_rollouts_of_an_evaluation_may_share_a_request(setup: Setup) -> None:
    group, _ = setup.open(record=False)
    status, answer = await ask_together(setup, group)
    assert (status, len(answer["choices"])) == (200, 3)
    assert refusals(group) == {}
    assert all(session.answered for session in group.rollouts.values())


def refusals(group: LiveGroup) -> dict[str, str]:
    """Return the reason for which the last request of each rollout failed."""
    return {rollout: problem.reason for rollout, problem in group.final_refusals().items()}


async def test_a_refused_length_is_measured_and_the_turn_gets_the_rest(setup: Setup) -> None:
    group, _ = setup.open()
    for engine in setup.engines:
        engine.prompt_tokens, engine.seq_len = 70, SEQ_LEN
    tools = [{"type": "function", "function": {"name": "f", "strict": True}}]
    status, _ = await ask(setup, group, tools=tools, chat_template_kwargs={"thinking": False})
    assert status == 200
    assert [(asked["max_tokens"], asked["min_tokens"]) for asked in setup.asked] == [(64, 40), (30, 30)]
    assert len({asked["seed"] for asked in setup.asked}) == 1, "it is the same draw"
    (measured,) = [tokenized for engine in setup.engines for tokenized in engine.tokenized]
    plain = [{"type": "function", "function": {"name": "f"}}]
    assert (measured["messages"], measured["tools"]) == (MESSAGES, plain)
    assert (measured["add_generation_prompt"], measured["chat_template_kwargs"]) == (True, {"thinking": False})
    assert (len(group.turns_of("r1")), refusals(group)) == (1, {})


async def test_a_prompt_that_does_not_fit_is_named_with_lengths_and_remembered(setup: Setup) -> None:
    group, _ = setup.open()
    refuse(setup, "This model's maximum context length is 100 tokens", prompt_tokens=120)
    status, body = await ask(setup, group)
    assert (status, body["error"]["type"]) == (400, "PromptTooLong")
    problem = group.final_refusals()["r1"]
    assert problem.reason == "PromptTooLong"
    assert "100 tokens" in problem.message
    assert "120 tokens" in problem.message
    assert len(setup.asked) == 1


async def test_a_prompt_that_cannot_be_measured_is_named_by_the_engines_words(setup: Setup) -> None:
    group, _ = setup.open()
    refuse(setup, "This model's maximum context length is 100 tokens. However, your prompt contains 140 input tokens")
    status, body = await ask(setup, group)
    assert (status, body["error"]["type"]) == (400, "BadRequestError")
    problem = group.final_refusals()["r1"]
    assert (problem.reason, "140 input tokens" in problem.message) == ("PromptTooLong", True)


async def test_other_refusals_are_remembered_with_their_cause_until_a_turn_succeeds(setup: Setup) -> None:
    group, _ = setup.open()
    answer = setup.engines[0].answer
    refuse(setup, "roles must alternate", prompt_tokens=20)
    await ask(setup, group, "engine")
    await ask(setup, group, "format", response_format={"type": "json_object"})
    await ask(setup, group, "image", messages=[{"role": "user", "content": [{"type": "image_url"}]}])
    for engine in setup.engines:
        engine.status, engine.answer = 200, answer | {"prompt_token_ids": None}
    await ask(setup, group, "unusable")
    found = group.final_refusals()
    assert {rollout: problem.reason for rollout, problem in found.items()} == {
        "engine": "RequestRefused", "format": "RequestRefused", "image": "RequestRefused",
        "unusable": "InferenceAnswerUnusable",
    }  # fmt: skip
    assert "roles must alternate" in found["engine"].message
    assert "response_format" in found["format"].message
    assert "image_url" in found["image"].message
    for engine in setup.engines:
        engine.answer = answer
    await ask(setup, group, "engine")
    assert "engine" not in refusals(group)


async def test_refusals_of_evaluations_are_known_although_no_turn_is_recorded(setup: Setup) -> None:
    group, _ = setup.open(record=False)
    answer = setup.engines[0].answer
    refuse(setup, "This model's maximum context length is 100 tokens", prompt_tokens=120)
    await ask(setup, group, "r1")
    await ask(setup, group, "r2")
    for engine in setup.engines:
        engine.status, engine.answer = 200, answer
    await ask(setup, group, "r2")
    assert {rollout: problem.reason for rollout, problem in group.final_refusals().items()} == {"r1": "PromptTooLong"}


async def test_a_refusal_that_a_later_request_overtook_is_forgotten() -> None:
    group = LiveGroups().open(POLICY)
    early, late = group.next_arrival(), group.next_arrival()
    group.record_turn("r", late, Turn.of([1], [2], [-0.5]))
    group.record_refusal("r", early, Problem(reason="RequestRefused", message="m"))
    assert refusals(group) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.5, None, "-0.5", True])
async def test_a_log_probability_that_is_none_costs_its_rollout_only(setup: Setup, bad: Any) -> None:
    group, _ = setup.open()
    for engine in setup.engines:
        engine.answer["choices"][0]["logprobs"]["content"][1]["logprob"] = bad
    status, body = await ask(setup, group)
    assert (status, body["error"]["type"]) == (502, "InferenceAnswerUnusable")
    assert "token 2 of 2" in body["error"]["message"]
    assert group.turns_of("r1") == []
    assert refusals(group) == {"r1": "InferenceAnswerUnusable"}


@pytest.mark.parametrize("field", ["prompt_token_ids", "token_ids"])
@pytest.mark.parametrize("bad", [[], [1, -1], [1, None], [1, 2.5], [True, 1], "ab"])
def test_tokens_that_no_trainer_could_read_are_unusable(field: str, bad: Any) -> None:
    answer = chat_answer("m", [1, 2], [3, 4], "x")
    (answer if field == "prompt_token_ids" else answer["choices"][0])[field] = bad
    with pytest.raises(InvalidEngineResponse):
        parse_turn(CompletionKind.chat, answer)


async def test_an_engine_cannot_lead_a_request_elsewhere(setup: Setup) -> None:
    group, _ = setup.open()
    inside = CannedEngine()
    server = await serve(inside.application())
    for engine in setup.engines:
        engine.status, engine.headers = 307, {"Location": str(server.make_url("/v1/chat/completions"))}
    url = f"{setup.url}groups/{group.id}/v1/chat/completions"
    async with setup.http.post(url, json={"model": "m", "messages": MESSAGES}, allow_redirects=False) as answer:
        assert (answer.status, "Location" in answer.headers) == (307, False)
    await server.close()
    assert len(setup.asked) == 1
    assert inside.asked == []


async def test_a_client_that_hangs_up_is_not_recorded_and_frees_the_engine(setup: Setup) -> None:
    group, client = setup.open()
    group.home, _ = setup.pool.replicas.values()
    setup.engines[0].hangs = True
    request = asyncio.create_task(
        client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "r"})
    )
    await setup.engines[0].arrived.wait()
    request.cancel()
    await asyncio.wait_for(setup.engines[0].gone.wait(), 5)
    assert group.turns_of("r") == []
    assert all(replica.requests == 0 for replica in setup.pool.replicas.values())


async def test_the_base_model_answers_where_an_evaluation_asks_for_it(setup: Setup) -> None:
    group, client = setup.open(record=False, base=True)
    for replica in setup.pool.replicas.values():
        replica.adapters.clear()
    answer = await client.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "hi"
    assert setup.newest()["model"] == BASE_MODEL
    assert [model.id async for model in client.models.list()] == [BASE_MODEL]
    assert setup.groups.policies() == {}, "it holds no adapter in the engines"
    assert group.turns_of("r") == []


# --- floods and odd clients -------------------------------------------------------------------------------------------


async def test_requests_at_a_time_are_bounded_and_counted(setup: Setup) -> None:
    group, client = setup.open()
    for engine in setup.engines:
        engine.hangs = True
    waiting = [asyncio.create_task(client.chat.completions.create(model="m", messages=MESSAGES)) for _ in range(3)]
    await until(lambda: group.in_flight == 3)
    with pytest.raises(openai.RateLimitError, match="3 requests in progress") as raised:
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert raised.value.response.headers["Retry-After"] == "1"
    _, other = setup.open()
    for engine in setup.engines:
        engine.hangs = False
    await other.chat.completions.create(model="m", messages=MESSAGES)
    for task in waiting:
        task.cancel()
    await until(lambda: group.in_flight == 0)
    assert setup.router.stats.refusals == {"TooManyRequests": 1}


async def test_turns_of_a_rollout_and_rollouts_of_a_group_are_bounded(setup: Setup) -> None:
    group, client = setup.open()
    for _ in range(4):
        await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "r"})
    with pytest.raises(openai.BadRequestError, match="Rollout r has made 4 requests"):
        await client.chat.completions.create(model="m", messages=MESSAGES, extra_headers={ROLLOUT_ID_HEADER: "r"})
    for _ in range(4):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="This group has 5 rollouts"):
        await client.chat.completions.create(model="m", messages=MESSAGES)
    assert len(group.turns_of("r")) == 4
    assert setup.router.stats.refusals == {"TooManyTurns": 1, "TooManyRollouts": 1}


async def test_a_body_that_is_too_large_is_refused_in_the_clients_language(setup: Setup) -> None:
    _, client = setup.open()
    with pytest.raises(openai.APIStatusError, match="larger than 10000 bytes") as raised:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 20_000}])
    assert raised.value.status_code == 413
    assert setup.router.stats.refusals == {"BodyTooLarge": 1}


async def test_a_client_that_never_sends_its_body_gets_a_timeout(setup: Setup) -> None:
    group, _ = setup.open()
    address = URL(setup.url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(
        f"POST /groups/{group.id}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode()
    )
    assert (await asyncio.wait_for(reader.readline(), 5)).split()[1] == b"408"
    writer.close()
    assert group.in_flight == 0
    assert setup.router.stats.refusals == {"BodyTooSlow": 1}


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"' + b"\xff", b"[" * 9000])
async def test_a_body_that_is_no_request_is_refused(setup: Setup, body: bytes) -> None:
    group, _ = setup.open()
    async with setup.http.post(f"{setup.url}groups/{group.id}/v1/chat/completions", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    assert group.in_flight == 0
    assert not setup.asked


async def test_invalid_rollout_ids_in_the_path_are_refused(setup: Setup) -> None:
    group, _ = setup.open()
    for rollout in ("r%0d%0aX-Evil:1", "%00", "x" * 201):
        url = URL(f"{setup.url}groups/{group.id}/rollouts/{rollout}/v1/chat/completions", encoded=True)
        async with setup.http.post(url, json={"messages": MESSAGES}) as response:
            assert response.status == 400
            assert "X-Evil" not in response.headers
    assert group.rollouts == {}


async def test_a_plain_client_with_tools_and_a_stream_and_the_id_in_the_path_is_recorded(setup: Setup) -> None:
    group, _ = setup.open()
    url = f"{setup.url}groups/{group.id}/rollouts/r7/v1"
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    stream = await client.chat.completions.create(
        model="m", messages=MESSAGES, tools=[tool], tool_choice="auto", stream=True
    )
    assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "hi"
    assert setup.newest()["tools"] == [tool]
    setup.engines[0].answer = setup.engines[1].answer = text_answer([5, 6], [7, 8])
    text = await client.completions.create(model="m", prompt=[5, 6], stream=True)
    assert "".join([c.choices[0].text async for c in text]) == "ab"
    assert [list(turn.prompt_ids) for turn in group.turns_of("r7")] == [[1, 2, 3], [5, 6]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n": 2}, "n must be 1"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages is missing"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop": 5}, "stop must be"),
        ({"stop": ["x", 5]}, "stop must be"),
        ({"messages": "hello"}, "messages must be a list"),
        ({"stream_options": "usage"}, "stream_options"),
    ],
)
def test_requests_that_cannot_be_trained_on_are_refused(changes: dict[str, Any], words: str) -> None:
    rules = SamplingRules(Sampling(max_tokens=8))
    with pytest.raises(BadRequest, match=words):
        rules.to_engine_request(CompletionKind.chat, {"messages": MESSAGES, **changes}, "m", SamplingSeedKey(0, 0, 0))


async def test_strict_tools_reach_no_engine_and_are_warned_of_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    _, client = setup.open()
    strict: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
    for _ in range(2):
        await client.chat.completions.create(model="m", messages=MESSAGES, tools=[strict])
        assert "strict" not in setup.newest()["tools"][0]["function"]
    (warning,) = [record.getMessage() for record in caplog.records if "strict" in record.getMessage()]
    assert warning.startswith("tools[].function.strict is ignored")


async def test_a_client_reads_why_a_forced_call_is_refused(setup: Setup) -> None:
    _, client = setup.open()
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    with pytest.raises(openai.BadRequestError, match="tool_choice 'required' is not available in a training run"):
        await client.chat.completions.create(model="m", messages=MESSAGES, tools=[tool], tool_choice="required")
    assert not setup.asked
    assert setup.router.stats.refusals == {"invalid_request_error": 1}


def test_neutral_and_unknown_request_fields_are_accepted() -> None:
    rules = SamplingRules(Sampling(max_tokens=64, seed=5, min_tokens=20))
    body = {"messages": MESSAGES, "response_format": {"type": "text"}, "n": 1, "top_k": 3, "presence_penalty": 1.5, "echo": True, "max_tokens": 8}  # fmt: skip  # noqa: E501
    one, two = (rules.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, turn)) for turn in (1, 2))
    assert one["seed"] != two["seed"]
    assert one["top_k"] == 0
    assert one["min_tokens"] == 8
    assert one["presence_penalty"] == 0.0
    assert not {"echo", "response_format"} & one.keys()


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_no_two_draws_of_a_run_share_a_seed_and_every_draw_keeps_its_own() -> None:
    draws = [
        SamplingSeedKey(g, r, t, training)
        for g in range(9)
        for r in range(9)
        for t in range(9)
        for training in (True, False)
    ]
    seeds = [draw.seed(3) for draw in draws]
    assert len(set(seeds)) == len(draws)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert SamplingSeedKey(1, 2, 3).seed(3) == SamplingSeedKey(1, 2, 3).seed(3)
    assert SamplingSeedKey(1, 2, 3).seed(4) != SamplingSeedKey(1, 2, 3).seed(3)


@pytest.mark.proves("sampling.seed")
async def test_seeds_depend_on_the_order_of_rollouts_and_turns_and_not_on_the_clock(setup: Setup) -> None:
    """Two groups of one ordinal, whose second turns are asked in another order: the same seeds."""
    found = []
    for second_turns in (("a", "b"), ("b", "a")):
        _, client = setup.open(ordinal=4)
        seeds = {}
        for turn, rollouts in enumerate((("a", "b"), second_turns)):
            for rollout in rollouts:
                before = len(setup.asked)
                await client.chat.completions.create(
                    model="m", messages=MESSAGES, seed=99, extra_headers={ROLLOUT_ID_HEADER: f"{rollout}-{len(found)}"}
                )
                assert len(setup.asked) == before + 1
                seeds[rollout, turn] = setup.newest()["seed"]
        found.append(seeds)
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 4


def test_groups_are_numbered_and_evaluations_apart() -> None:
    groups = LiveGroups()
    assert [groups.open(POLICY).ordinal for _ in range(2)] == [0, 1]
    assert groups.open(POLICY, record=False).ordinal == 0
    assert groups.open(POLICY, ordinal=40).ordinal == 40


def test_rollouts_are_ordered_by_their_first_request() -> None:
    group = LiveGroups().open(POLICY)
    for rollout in ("b", "a", "b"):
        group.rollout_session(rollout)
    assert list(group.turns_by_rollout()) == ["b", "a"]


@pytest.mark.parametrize("missing", ["prompt_token_ids", "token_ids", "logprobs"])
def test_an_answer_without_tokens_is_unusable(missing: str) -> None:
    answer = chat_answer("m", [1], [2], "x")
    (answer if missing == "prompt_token_ids" else answer["choices"][0])[missing] = None
    with pytest.raises(InvalidEngineResponse):
        parse_turn(CompletionKind.chat, answer)


def test_turns_are_ordered_by_arrival_not_by_answer() -> None:
    group = LiveGroups().open(POLICY)
    first, second = group.next_arrival(), group.next_arrival()
    turns = [parse_turn(CompletionKind.chat, chat_answer("m", [n], [n], "x")) for n in (1, 2)]
    group.record_turn("r", second, turns[1])
    group.record_turn("r", first, turns[0])
    assert [list(turn.prompt_ids) for turn in group.turns_of("r")] == [[1], [2]]


# --- routing ----------------------------------------------------------------------------------------------------------


def replicas(*loads: int) -> list[Replica]:
    found = []
    for number, load in enumerate(loads):
        endpoint = ReplicaAddresses(f"http://e{number}", f"http://s{number}")
        found.append(Replica(endpoint, NOBODY, {"p"}, is_answering=True, requests=load))
    return found


def test_a_group_stays_on_its_replica_until_that_is_much_busier() -> None:
    home, other = replicas(5, 2)
    assert choose([home, other], "p", home) is home
    home.requests = 9
    assert choose([home, other], "p", home) is other


def test_a_new_group_goes_to_the_idlest_that_has_the_policy() -> None:
    one, two, three = replicas(5, 2, 0)
    three.adapters = {"q"}
    assert choose([one, two, three], "p", None) is two
    assert choose([one, two, three], "x", None) is None


# --- replicas ---------------------------------------------------------------------------------------------------------


async def test_publishing_waits_for_confirmation_and_not_for_the_failing_one() -> None:
    engines = [FakeReplica(), FakeReplica(refuses_loads=True)]
    servers = [await serve(engine.application()) for engine in engines]
    endpoints = [ReplicaAddresses(*[str(s.make_url("")).rstrip("/")] * 2) for s in servers]

    async def resolve() -> list[ReplicaAddresses]:
        return endpoints

    async with aiohttp.ClientSession() as http:
        pool = ReplicaPool(http, resolve, dict, poll_interval=0.05)
        pool.start()
        try:
            await pool.publish(POLICY, deadline=5, grace=0.2)
            assert engines[0].adapters == {POLICY.name}
            assert pool.serving(POLICY.name) == 1
            engines[1].refuses_loads = False
            async with asyncio.timeout(5):
                while pool.serving(POLICY.name) < 2:
                    await pool.wait_for_change(0.5)
        finally:
            await pool.close()
    for server in servers:
        await server.close()


# --- environment packages ---------------------------------------------------------------------------------------------


async def test_packages_come_as_a_tar_of_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    for version in ("0.9.0", "0.10.0"):
        store.put_bytes(root / f"me/words/{version}/words-{version}-py3-none-any.whl", version.encode())
    store.put_bytes(root / "me/words/0.10.0/README.md", b"no wheel")
    store.put_bytes(root / "me/empty/1.0/README.md", b"no wheel")
    store.put_bytes(root / "other/secret/1.0/secret-1.0-py3-none-any.whl", b"of another tenant")
    used = [("me/words", None), ("me/words", "0.9.0"), ("me/words", "9"), ("me/other", None), ("me/empty", None)]
    packages = PackageReader(store, str(root), [PackageRef.of(*entry) for entry in used])
    router = RequestRouter(NOBODY, NOBODY, LiveGroups(), wait=1, deadline=1)
    server = await serve(Gateway(LiveGroups(), SamplingRules(Sampling(max_tokens=1)), router, packages).application())
    async with aiohttp.ClientSession() as http:
        for query, version in (("", "0.10.0"), ("?version=0.9.0", "0.9.0")):
            async with http.get(server.make_url(f"/environments/me/words{query}")) as response:
                assert response.status == 200
                with tarfile.open(fileobj=io.BytesIO(await response.read())) as archive:
                    assert archive.getnames() == [f"words-{version}-py3-none-any.whl"]
        for path in ("me/words?version=9", "me/other", "me/empty", "me/..%2F..%2Fsecret"):
            async with http.get(server.make_url(f"/environments/{path}")) as response:
                assert response.status == 404, path
                if "secret" not in path:
                    problem = await response.json()
                    assert problem["reason"] == "EnvironmentPackageMissing"
                    assert "rlrun env push" in problem["message"]
        for path in ("other/secret", "other/secret?version=1.0", "me/words?version=0.10.0"):
            async with http.get(server.make_url(f"/environments/{path}")) as response:
                assert response.status == 404, path
                assert "is not used by this run" in (await response.json())["message"]
        monkeypatch.setattr(environment_packages, "MAX_PACKAGE_BYTES", 5)
        store.get_bytes = _denied
        async with http.get(server.make_url("/environments/me/words")) as response:
            assert (response.status, (await response.json())["reason"]) == (404, "EnvironmentInstallFailed")
        store.list_folders = _denied
        async with http.get(server.make_url("/environments/me/words")) as response:
            assert response.status == 503
            assert (await response.json())["reason"] == "S3AccessDenied"
    await server.close()


@pytest.mark.parametrize(
    ("used", "version", "asked", "wheel"),
    [
        ("me/Pi.Agent_Env", None, "me/Pi.Agent_Env", "2.0.0"),
        ("me/pi-agent-env", "1.0", "me/pi_agent_env?version=1.0", "1.0.0"),
        ("me/pi_agent_env", "v2", "me/pi-agent-env?version=v2", "2.0.0"),
    ],
)
async def test_a_package_is_found_in_any_spelling_of_name_and_version(
    used: str, version: str | None, asked: str, wheel: str
) -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    for each in ("1.0.0", "2.0.0"):
        store.put_bytes(root / f"me/pi-agent-env/{each}/pi_agent_env-{each}-py3-none-any.whl", b"wheel")
    packages = PackageReader(store, str(root), [PackageRef.of(used, version)])
    found, _ = await packages.tar("me", asked.partition("?")[0].partition("/")[2], version)
    assert found == wheel


async def test_pods_that_ask_together_share_one_copy_of_a_package() -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    store.put_bytes(root / WHEEL, b"wheel")
    packages = PackageReader(store, str(root), [WORDS])
    leaves = asyncio.create_task(packages.tar(*WORDS))
    stay = [asyncio.create_task(packages.tar(*WORDS)) for _ in range(3)]
    await asyncio.sleep(0)
    leaves.cancel()
    (_, first), *others = await asyncio.gather(*stay)
    assert all(tar is first for _, tar in others)
    assert (await packages.tar(*WORDS))[1] == first
    store.list_folders = _denied
    for _ in range(2):
        with pytest.raises(AccessDenied):
            await packages.tar(*WORDS)


async def test_a_missing_package_names_its_neighbours() -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    for name in ("reverse-text", "reverse-texts", "wordle"):
        store.put_bytes(root / f"me/{name}/1.0/{name}-1.0-py3-none-any.whl", b"wheel")
    packages = PackageReader(store, str(root), [PackageRef.of("me/revers-text", None), PackageRef.of("me/chess", None)])
    with pytest.raises(PackageMissing, match="similar packages: me/reverse-text, me/reverse-texts; upload it"):
        await packages.tar("me", "revers-text", None)
    with pytest.raises(PackageMissing, match="is not in s3://bucket/environments; upload it"):
        await packages.tar("me", "chess", None)


def test_the_digest_is_that_of_the_lines_of_sha256sum() -> None:
    wheels = {"words-1.0-py3-none-any.whl": "b" * 64, "base-2-py3-none-any.whl": "a" * 64}
    lines = f"{'a' * 64}  base-2-py3-none-any.whl\n{'b' * 64}  words-1.0-py3-none-any.whl\n"
    assert package_digest(wheels) == f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"
    # One wheel whose name looks like the line of another.
    assert package_digest({"a.whl": "a" * 64, "b.whl": "b" * 64}) != package_digest(
        {f"a.whl\n{'b' * 64}  b.whl": "a" * 64}
    )


WORDS = PackageRef("me", "words", None)
WHEEL = "me/words/1.0/words-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({}, 200, ""),
        ({"me/words/2.0/words-2.0-py3-none-any.whl": b"newer"}, 200, ""),
        ({WHEEL: b"other"}, 409, "has different files"),
        ({"me/words/1.0/more-1.0-py3-none-any.whl": b"more"}, 409, "has different files"),
        ({WHEEL: None}, 409, "is no longer in s3://bucket/environments/me/words"),
        (
            {WHEEL: None, "me/words/1.0/README.md": b"no wheel"},
            409,
            "is no longer in s3://bucket/environments/me/words",
        ),
        ({WHEEL: None, "me/words/2.0/words-2.0-py3-none-any.whl": b"newer"}, 409, "no longer in"),
    ],
)
async def test_a_run_gets_the_package_that_it_began_with_or_none(
    change: dict[str, bytes | None], status: int, message: str
) -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    store.put_bytes(root / WHEEL, b"wheel")
    first = PackageReader(store, str(root), [WORDS])
    await first.tar(*WORDS)
    first.pins.confirm({WORDS: 1})
    later = PackageReader(store, str(root), [WORDS], PackagePins(first.pins.packages))
    for key, data in change.items():
        if data is None:
            del store.objects[str(root / key)]
        else:
            store.put_bytes(root / key, data)
    router = RequestRouter(NOBODY, NOBODY, LiveGroups(), wait=1, deadline=1)
    # The process that has recorded the package, and a later one that got the record.
    for packages in (first, later):
        server = await serve(
            Gateway(LiveGroups(), SamplingRules(Sampling(max_tokens=1)), router, packages).application()
        )
        async with aiohttp.ClientSession() as http, http.get(server.make_url("/environments/me/words")) as response:
            assert response.status == status
            if status == 200:
                assert response.headers["X-Environment-Version"] == "1.0"
                with tarfile.open(fileobj=io.BytesIO(await response.read())) as archive:
                    assert archive.getnames() == ["words-1.0-py3-none-any.whl"]
            else:
                problem = await response.json()
                assert problem["reason"] == "EnvironmentChanged"
                assert message in problem["message"]
                assert first.pins.packages[0].digest in problem["message"]
                with pytest.raises(FatalError) as error:
                    await asyncio.wait_for(packages.watch(), 60)
                assert (error.value.problem.reason, error.value.exit_code) == ("EnvironmentChanged", 64)
        await server.close()


async def test_the_record_costs_no_request_beyond_those_of_a_delivery() -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    store.put_bytes(root / WHEEL, b"wheel")
    packages = PackageReader(store, str(root), [WORDS])
    await packages.tar(*WORDS)
    store.list_folders = store.list_files = store.get_bytes = _denied
    packages.pins.confirm({WORDS: 1})
    assert [p.version for p in packages.pins.packages] == ["1.0"]


async def test_packages_need_the_token_of_environments() -> None:
    store: Any = RunStore()
    root = S3Uri.parse("s3://bucket/environments")
    store.put_bytes(root / "me/words/1.0/words-1.0-py3-none-any.whl", b"wheel")
    packages = PackageReader(store, str(root), [PackageRef("me", "words", None)])
    router = RequestRouter(NOBODY, NOBODY, LiveGroups(), wait=1, deadline=1)
    gateway = Gateway(LiveGroups(), SamplingRules(Sampling(max_tokens=1)), router, packages, package_token="secret")
    server = await serve(gateway.application())
    async with aiohttp.ClientSession() as http:
        for headers, status in (({}, 401), (bearer("other"), 401), (bearer("secret"), 200)):
            async with http.get(server.make_url("/environments/me/words"), headers=headers) as response:
                assert response.status == status
    await server.close()


def _denied(uri: S3Uri) -> list[str]:
    raise AccessDenied("no")


@pytest.mark.parametrize("path", ["responses", "messages"])
async def test_an_api_without_exact_tokens_is_refused_with_what_works(setup: Setup, path: str) -> None:
    group, _ = setup.open()
    url = f"{setup.url}groups/{group.id}/rollouts/r1/v1/{path}"
    async with setup.http.post(url, json={"model": "m", "input": "hello"}) as response:
        assert response.status == 404
        message = (await response.json())["error"]["message"]
    assert message.startswith(f"/{path} is not available in a training run")
    assert "/v1/chat/completions" in message
    assert {rollout: problem.message for rollout, problem in group.final_refusals().items()} == {"r1": message}


async def test_a_replaced_field_is_warned_of_once(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    _, client = setup.open()
    for _ in range(2):
        body = {"top_k": -1, "min_p": 0.5}
        await client.chat.completions.create(model="m", messages=MESSAGES, top_p=1.0, extra_body=body)
    said = [record.getMessage() for record in caplog.records if "is replaced" in record.getMessage()]
    assert said == ["min_p in the environment's requests is replaced by the value in the run's sampling section"]
