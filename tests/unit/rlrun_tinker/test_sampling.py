"""Samples between a client and engines of a pool: vLLM's stub behind the middleware of the project."""

import asyncio
import math
import struct
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rlrun.api.base.phases import Phase
from rlrun.constants import Reason
from rlrun.protocol.client_command import SaveState
from rlrun.protocol.client_run import ClientModel, ModelId, SamplerId, SaveKind
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun_tinker.engine_client import EngineAddress
from rlrun_tinker.engine_registry import LOADED_POLICIES, MAX_ERRORS
from rlrun_tinker.sample_requests import MAX_SAMPLE_BODY
from rlrun_tinker.sampling import TOUCH_SECONDS, policy_of
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from tests.support.tinker_backend import HOST, MODEL, TinkerBackend, serving_tinker, uri_of
from tests.support.tinker_engines import TOKENIZER, FakePool, full, prompt, refusal
from tests.support.tinker_messages import message
from tests.support.waiting import until

END = TOKENIZER.end
SESSION = "ts-0123456789ab.team"


class CutOff(Response):
    """Response that ends before its body does, as that of an engine that dies."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        raise ConnectionError


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[FakePool]:
    async with FakePool().serving(tmp_path) as found:
        yield found


@pytest.fixture
async def two_engines(tmp_path: Path) -> AsyncIterator[FakePool]:
    async with FakePool().serving(tmp_path, 2) as found:
        yield found


@pytest.fixture
async def backend(pool: FakePool) -> AsyncIterator[TinkerBackend]:
    async with serving_tinker(poll_seconds=5.0, pool=pool) as found:
        yield found


async def sampler_of(backend: TinkerBackend, model: str, seq: int = 1, name: str | None = None) -> str:
    """Save weights for sampling and return the sampler of them."""
    body = {"model_id": model, "seq_id": seq, "sampling_session_seq_id": 0, "kind": "snapshot", "path": name}
    saved = (await backend.retrieve(await backend.post("save_weights_for_sampler", body))).json()
    if name is None:
        assert saved["path"] is None
        return str(saved["sampling_session_id"])
    return await session(backend, model_path=saved["path"])


async def session(backend: TinkerBackend, number: int = 0, **source: str) -> str:
    body = {"session_id": SESSION, "sampling_session_seq_id": number, "type": "create_sampling_session", **source}
    answer = await backend.post("create_sampling_session", body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["sampling_session_id"])


def body(sampler: str, text: str = "abc", **others: Any) -> dict[str, Any]:
    params = {"max_tokens": 8, "temperature": 1.0, "top_k": -1, "top_p": 1.0} | others.pop("sampling_params", {})
    return {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": prompt(text)}]},
        "sampling_params": params,
        "topk_prompt_logprobs": 0,
        "topk_sample_logprobs": 0,
        "prompt_alt_tokens_k": 0,
        "record_stability_info": False,
        "type": "sample",
        **others,
    }


async def sampled(backend: TinkerBackend, sampler: str, text: str = "abc", **others: Any) -> Any:
    """Return a SampleResponse."""
    asked = await backend.post("asample", body(sampler, text, **others))
    answer = await backend.retrieve(asked)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-protobuf", answer.text
    found = message("SampleResponse")
    found.ParseFromString(answer.content)
    assert len(found.sequences) == len(asked.json()["sample_sequence_ids"]) == others.get("num_samples", 1)
    return found


async def failed(backend: TinkerBackend, sampler: str, **others: Any) -> dict[str, Any]:
    """Return the error of samples."""
    answer = await backend.retrieve(await backend.post("asample", body(sampler, **others)))
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def ints(data: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(data) // 4}i", data))


def floats(data: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(data) // 4}f", data))


async def test_weights_without_a_name_are_sampled_from(backend: TinkerBackend) -> None:
    model = await backend.model()
    sampler = await sampler_of(backend, model)
    command = backend.trainer.header(backend.server.one().uid, 1)
    assert command == SaveState(saved_as=SaveKind.sampler_weights)
    found = await sampled(backend, sampler)
    (sequence,) = found.sequences
    tokens = ints(sequence.tokens)
    assert sequence.stop_reason == 0
    assert tokens[-1] == END, "the end of the sequence is one of the tokens"
    assert len(floats(sequence.logprobs)) == len(tokens)
    assert all(-20 < logprob < 0 for logprob in floats(sequence.logprobs))
    assert (found.prompt_logprobs, found.HasField("topk_prompt_logprobs")) == (b"", False)
    (engine,) = backend.pool.engines
    assert engine.loads == [f"policy-v000001-{sampler[-8:]}"]
    assert backend.pool.hosts == [HOST]
    (request,) = engine.requests
    assert request["prompt"] == prompt("abc")
    assert (request["top_k"], request["n"], request["min_p"], request["logprobs"]) == (0, 1, 0.0, 0)
    assert backend.trainer.heartbeats.total() >= 1, "sampling from a model shows that its client is alive"


async def test_named_weights_are_sampled_from_and_shown(backend: TinkerBackend) -> None:
    model = await backend.model()
    sampler = await sampler_of(backend, model, 1, "final")
    assert SamplerId.parse(sampler).is_named
    shown = await backend.client.get(f"/api/v1/samplers/{sampler}", headers={"X-API-Key": "tml-ann"})
    path = f"tinker://{model}/sampler_weights/final"
    assert shown.json() == {"sampler_id": sampler, "base_model": MODEL, "model_path": path}
    await sampled(backend, sampler)
    assert backend.pool.engines[0].loads == [f"policy-v000001-{sampler[-8:]}"]


async def test_a_base_model_is_sampled_from_by_a_run_of_its_own(backend: TinkerBackend) -> None:
    sampler = await session(backend, 3, base_model=MODEL)
    assert sampler == f"{SESSION}:train:900003:base"
    assert await session(backend, 3, base_model=MODEL) == sampler, "the request may be repeated"
    shown = await backend.client.get(f"/api/v1/samplers/{sampler}", headers={"X-API-Key": "tml-ann"})
    assert shown.json() == {"sampler_id": sampler, "base_model": MODEL}
    await sampled(backend, sampler)
    assert (backend.pool.engines[0].loads, backend.server.one().rank) == ([], 1)
    assert backend.pool.engines[0].requests[0]["model"] == MODEL
    beats = backend.trainer.heartbeats.total()
    await backend.post("session_heartbeat", {"session_id": SESSION})
    assert backend.trainer.heartbeats.total() == beats + 1


async def test_samples_of_one_request_differ_and_repeat_with_their_seed(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    params = {"seed": 7, "max_tokens": 20, "stop": []}
    first, again = [await sampled(backend, sampler, num_samples=4, sampling_params=params) for _ in range(2)]
    tokens = [sequence.tokens for sequence in first.sequences]
    assert tokens == [sequence.tokens for sequence in again.sequences]
    assert len(set(tokens)) == 4
    seeds = {request["seed"] for request in backend.pool.engines[0].requests}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**63 for seed in seeds)
    await sampled(backend, sampler, num_samples=2)
    assert "seed" not in backend.pool.engines[0].requests[-1]


@pytest.mark.parametrize(
    ("stop", "fields", "reason"),
    [
        (None, {}, 0),
        ([], {"ignore_eos": True}, 1),
        ([END], {"stop_token_ids": [END]}, 0),
        ("c", {"stop": "c"}, 0),
        (["zz", "a"], {"stop": ["zz", "a"]}, 0),
    ],
)
async def test_a_sample_ends_where_the_client_says(
    backend: TinkerBackend, stop: Any, fields: dict[str, Any], reason: int
) -> None:
    sampler = await session(backend, base_model=MODEL)
    params = {"max_tokens": 40, "seed": 1} | ({} if stop is None else {"stop": stop})
    (sequence,) = (await sampled(backend, sampler, sampling_params=params)).sequences
    request = backend.pool.engines[0].requests[0]
    names = ("ignore_eos", "stop", "stop_token_ids")
    assert {name: request[name] for name in names if name in request} == fields
    assert request["include_stop_str_in_output"]
    tokens = ints(sequence.tokens)
    assert sequence.stop_reason == reason
    if stop == []:
        assert len(tokens) == 40
    elif stop not in (None, [END]):
        assert TOKENIZER.decode(tokens)[-1] in "ca", "the stop is one of the tokens"


async def test_log_probabilities_of_prompts(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    asked: dict[str, Any] = {"prompt_logprobs": True, "sampling_params": {"max_tokens": 1}}
    logprobs = floats((await sampled(backend, sampler, **asked)).prompt_logprobs)
    assert len(logprobs) == len(prompt("abc"))
    assert math.isnan(logprobs[0])
    assert all(logprob < 0 for logprob in logprobs[1:])
    last = floats((await sampled(backend, sampler, **asked, prompt_logprobs_last_n=2)).prompt_logprobs)
    assert [math.isnan(logprob) for logprob in last] == [True] * (len(last) - 2) + [False] * 2
    assert last[-2:] == logprobs[-2:]
    several = await sampled(backend, sampler, num_samples=3, **asked)
    assert floats(several.prompt_logprobs)[1:] == logprobs[1:]
    assert ["prompt_logprobs" in request for request in backend.pool.engines[0].requests[-3:]].count(True) == 1


async def test_the_likeliest_tokens(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    found = await sampled(backend, sampler, topk_prompt_logprobs=2, topk_sample_logprobs=3, prompt_logprobs=True)
    top, (sequence,) = found.topk_prompt_logprobs, found.sequences
    length = len(prompt("abc"))
    assert (top.k, top.length, len(ints(top.token_ids))) == (2, length, 2 * length)
    assert ints(top.token_ids)[:2] == [0, 0], "the first token has no context"
    assert floats(top.logprobs)[:2] == [-99999.0] * 2
    assert floats(top.logprobs)[2] >= floats(top.logprobs)[3]
    tokens, drawn = ints(sequence.tokens), floats(sequence.logprobs)
    best = sequence.topk_sampled_logprobs
    assert (best.k, best.length) == (3, len(tokens))
    rows = list(zip(ints(best.token_ids), floats(best.logprobs), strict=True))
    for at, token in enumerate(tokens):
        row = rows[3 * at : 3 * at + 3]
        assert [logprob for _, logprob in row] == sorted((logprob for _, logprob in row), reverse=True)
        assert dict(row).get(token, drawn[at]) == drawn[at]
        assert len({number for number, _ in row}) == 3


async def test_results_can_be_read_again_by_their_caller_only(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    asked = await backend.post("asample", body(sampler))
    first, second = [await backend.retrieve(asked) for _ in range(2)]
    assert first.content == second.content
    assert (await backend.retrieve(asked, "tml-bob")).status_code == 410
    assert (await backend.post("asample", body(sampler), "tml-bob")).status_code == 403
    assert (await backend.post("asample", body(sampler), "tml-unknown")).status_code == 401


async def test_a_sample_waits_for_the_pool_and_says_why(pool: FakePool) -> None:
    async with serving_tinker(pool=pool) as backend:
        sampler = await session(backend, base_model=MODEL)
        backend.server.is_full = True
        asked = await backend.post("asample", body(sampler))
        waiting = (await backend.retrieve(asked)).json()
        assert (waiting["queue_state"], waiting["queue_state_reason"]) == ("paused_capacity", "3 runs ahead")
        backend.server.is_full, pool.is_late, pool.addresses = False, True, []
        backend.now[0] += 2
        await _state(backend, asked, "paused_capacity", "the pool's engines are starting")
        pool.addresses = [EngineAddress("http://127.0.0.1:1", "http://127.0.0.1:1")]
        await _state(backend, asked, "paused_capacity", "an engine of the pool is starting")
        pool.addresses = None
        await _state(backend, asked, "paused_capacity", "token of a run")
        pool.is_late = False
        backend.now[0] += 60
        async with asyncio.timeout(30):
            while (answer := await backend.retrieve(asked)).status_code == 408:
                backend.now[0] += 2
        assert answer.status_code == 200, answer.text


async def _state(backend: TinkerBackend, asked: httpx.Response, state: str, reason: str) -> None:
    async with asyncio.timeout(30):
        while True:
            backend.now[0] += 2
            answer = await backend.retrieve(asked)
            assert answer.status_code == 408, answer.text
            found = answer.json()
            if found["queue_state"] == state and reason in found.get("queue_state_reason", ""):
                return


async def test_engines_at_their_limit_are_asked_again(pool: FakePool) -> None:
    async with serving_tinker(pool=pool) as backend:
        sampler = await session(backend, base_model=MODEL)
        pool.engines[0].answer = refusal(429, "too many", **{"Retry-After": "0"})
        asked = await backend.post("asample", body(sampler))
        await _state(backend, asked, "paused_rate_limit", "no more samples")
        pool.engines[0].answer = None
        async with asyncio.timeout(30):
            while (answer := await backend.retrieve(asked)).status_code == 408:
                pass
        assert answer.status_code == 200


async def test_connections_to_engines_are_limited_and_weights_are_loaded_meanwhile(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each sample in an engine takes a file descriptor of rlrun-tinker."""
    monkeypatch.setattr("rlrun_tinker.engine_client.ENGINE_CONNECTIONS", 3)
    async with serving_tinker(poll_seconds=5.0, pool=pool) as backend:
        (engine,) = pool.engines
        engine.gate.clear()
        base = await session(backend, base_model=MODEL)
        asked = [await backend.post("asample", body(base, num_samples=4)) for _ in range(2)]
        await until(lambda: engine.running.total() >= 3)
        asked.append(await backend.post("asample", body(await sampler_of(backend, await backend.model()))))
        await until(lambda: bool(engine.loads))
        assert engine.running.total() == 3
        engine.gate.set()
        assert {(await backend.retrieve(one)).status_code for one in asked} == {200}


async def test_a_failing_engine_is_replaced_by_another(two_engines: FakePool) -> None:
    async with serving_tinker(poll_seconds=5.0, pool=two_engines) as backend:
        sampler = await sampler_of(backend, await backend.model())
        two_engines.engines[0].answer = refusal(500, "CUDA error")
        for _ in range(3):
            await sampled(backend, sampler)
        assert len(two_engines.engines[1].requests) == 3


async def test_samples_that_all_engines_lose_are_sent_again_by_the_client(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    backend.pool.engines[0].answer = CutOff()
    asked = await backend.post("asample", body(sampler))
    assert (await backend.retrieve(asked)).status_code == 410


async def test_a_request_that_engines_always_fail_is_a_failure_of_the_server(
    backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK sends a request again after each 410, without an end while its other requests succeed."""
    monkeypatch.setattr("rlrun_tinker.engine_registry.PAUSE", (0.01, 0.02))
    sampler = await session(backend, base_model=MODEL)
    (engine,) = backend.pool.engines
    engine.refusals = [refusal(500, "not JSON compliant") for _ in range(MAX_ERRORS - 1)]
    await sampled(backend, sampler)
    engine.answer = refusal(500, "not JSON compliant")
    error = await failed(backend, sampler)
    assert error["category"] == "server"
    assert f"{MAX_ERRORS} times" in error["error"]
    assert "status 500" in error["error"]


async def test_an_invalid_response_is_no_sample(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    aborted = {"choices": [{"finish_reason": "abort", "token_ids": []}]}
    backend.pool.engines[0].refusals = [JSONResponse(aborted)]
    await sampled(backend, sampler)
    assert len(backend.pool.engines[0].requests) == 2


async def test_an_engine_that_lost_its_policies_loads_them_again(backend: TinkerBackend) -> None:
    sampler = await sampler_of(backend, await backend.model())
    await sampled(backend, sampler)
    await backend.pool.engines[0].restart()
    await sampled(backend, sampler)
    assert len(backend.pool.engines[0].loads) == 2


async def test_samples_that_wait_for_weights_load_them_once(backend: TinkerBackend) -> None:
    sampler = await sampler_of(backend, await backend.model())
    backend.pool.engines[0].gate.clear()
    asked = [await backend.post("asample", body(sampler)) for _ in range(8)]
    await until(lambda: bool(backend.pool.engines[0].loads))
    backend.pool.engines[0].gate.set()
    assert {(await backend.retrieve(one)).status_code for one in asked} == {200}
    assert len(backend.pool.engines[0].loads) == 1


async def test_the_oldest_policies_are_unloaded(backend: TinkerBackend) -> None:
    model = await backend.model()
    count = LOADED_POLICIES + 2
    for seq in range(1, count + 1):
        await sampled(backend, await sampler_of(backend, model, seq))
    (engine,) = backend.pool.engines
    assert [name[:14] for name in engine.unloads] == ["policy-v000001", "policy-v000002"]
    assert len(engine.adapters) == LOADED_POLICIES


async def test_weights_that_are_gone_are_a_failure_of_the_user(backend: TinkerBackend) -> None:
    sampler = await sampler_of(backend, await backend.model())
    backend.pool.engines[0].load_problem = ProblemError.of(424, Reason.ADAPTER_DOWNLOAD_FAILED, "has no manifest.json")
    error = await failed(backend, sampler)
    assert (error["category"], "save the weights with a name" in error["error"]) == ("user", True)


async def test_a_full_engine_and_one_without_s3_are_waited_for(pool: FakePool) -> None:
    async with serving_tinker(pool=pool) as backend:
        sampler = await sampler_of(backend, await backend.model())
        for problem in (full(), ProblemError.of(503, Reason.ADAPTER_DOWNLOAD_FAILED, "S3Unreachable")):
            pool.engines[0].load_problem = problem
            asked = await backend.post("asample", body(sampler))
            await _state(backend, asked, "paused_capacity", problem.problem.message)
        pool.engines[0].load_problem = None
        async with asyncio.timeout(30):
            while (await backend.retrieve(asked)).status_code == 408:
                pass


async def test_a_request_that_engines_refuse_is_a_failure_of_the_user(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    error = await failed(backend, sampler, prompt={"chunks": [{"type": "encoded_text", "tokens": [5] * 300}]})
    assert (error["category"], "maximum context length" in error["error"]) == ("user", True)


async def test_a_run_that_ended_says_what_to_do(backend: TinkerBackend) -> None:
    model = await backend.model()
    sampler = await sampler_of(backend, model, 1, "final")
    backend.server.change(has_ended=True, phase=Phase.stopped)
    backend.now[0] += 60
    answer = await backend.post("asample", body(sampler))
    assert (answer.status_code, "rlrun adapters deploy" in answer.json()["detail"]) == (400, True)
    path = f"tinker://{model}/sampler_weights/final"
    created = {"session_id": SESSION, "sampling_session_seq_id": 0, "model_path": path}
    answer = await backend.post("create_sampling_session", created)
    assert (answer.status_code, "rlrun adapters deploy" in answer.json()["detail"]) == (400, True)


async def test_a_right_that_ends_ends_the_samples(pool: FakePool) -> None:
    async with serving_tinker(poll_seconds=5.0, pool=pool) as backend:
        sampler = await session(backend, base_model=MODEL)
        backend.server.is_full = True
        asked = await backend.post("asample", body(sampler))
        backend.server.failure = (403, Problem(reason="AccessForbidden", message="no longer"))
        backend.now[0] += 60
        answer = await backend.retrieve(asked)
        assert (answer.status_code, answer.json()["error"]) == (200, "no longer")


async def test_a_long_sample_keeps_its_run_from_being_silent(
    backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats of another session do not reach the run."""
    monkeypatch.setattr("rlrun_tinker.engine_registry.WATCH_SECONDS", 0.05)
    (engine,) = backend.pool.engines
    sampler = await session(backend, base_model=MODEL)
    engine.gate.clear()
    asked = await backend.post("asample", body(sampler))
    await until(lambda: engine.running.total() == 1)
    for _ in range(3):
        beats = backend.trainer.heartbeats
        beats.clear()
        backend.now[0] += TOUCH_SECONDS
        await until(beats.total)
    engine.gate.set()
    assert (await backend.retrieve(asked)).status_code == 200


async def test_cancelled_samples_leave_the_engine(backend: TinkerBackend) -> None:
    sampler = await session(backend, base_model=MODEL)
    (engine,) = backend.pool.engines
    engine.gate.clear()
    asked = await backend.post("asample", body(sampler, num_samples=3))
    await until(lambda: len(engine.requests) == 3)
    request = {"request_id": asked.json()["request_id"]}
    assert (await backend.post("cancel_future", request, "tml-bob")).status_code == 204
    assert (await backend.post("cancel_future", request)).status_code == 204
    assert (await backend.retrieve(asked)).status_code == 410
    engine.gate.set()
    await sampled(backend, sampler)


@pytest.mark.parametrize(
    ("changes", "status", "text"),
    [
        ({"sampling_session_id": None}, 400, "tinker 0.38"),
        ({"sampling_session_id": "x"}, 404, "not a sampler id"),
        ({"prompt": {"chunks": []}}, 400, "no tokens"),
        ({"prompt": {"chunks": [{"type": "image", "data": "x"}]}}, 400, "text only"),
        ({"prompt": {"chunks": [{"type": "encoded_text", "tokens": [-1]}]}}, 400, "tokens"),
        ({"num_samples": 0}, 400, "num_samples"),
        ({"target_prompt_logprobs": {"data": [1]}}, 400, "topk_prompt_logprobs"),
        ({"prompt_alt_tokens_k": 1}, 400, "Set it to 0"),
        ({"record_stability_info": True}, 400, "importance_sampling"),
        ({"topk_sample_logprobs": 21}, 400, "topk_sample_logprobs"),
        ({"prompt_logprobs_last_n": 99, "prompt_logprobs": True}, 400, "larger than the prompt"),
        ({"sampling_params": {"temperature": -1}}, 400, "temperature"),
        ({"sampling_params": {"top_p": 0}}, 400, "top_p"),
        ({"sampling_params": {"stop": [1, "a"]}}, 400, "stop"),
        ({"sampling_params": {"max_tokens": 0}}, 400, "max_tokens"),
    ],
)
async def test_what_is_not_supported_says_what_to_use(
    backend: TinkerBackend, changes: dict[str, Any], status: int, text: str
) -> None:
    answer = await backend.post("asample", body(f"{SESSION}:train:0:base", **changes))
    assert (answer.status_code, text in answer.json()["detail"]) == (status, True), answer.text


@pytest.mark.parametrize(
    ("source", "status", "text"),
    [
        ({}, 400, "neither"),
        ({"model_path": "x"}, 404, "not the path"),
        ({"model_path": f"tinker://{SESSION}:train:0/weights/a"}, 400, "save_weights_for_sampler"),
        ({"model_path": f"tinker://{SESSION}:train:0/sampler_weights/a"}, 404, "does not exist"),
        ({"base_model": "x"}, 400, "x does not exist"),
    ],
)
async def test_a_sampler_of_nothing_is_refused(
    backend: TinkerBackend, source: dict[str, str], status: int, text: str
) -> None:
    sent = {"session_id": SESSION, "sampling_session_seq_id": 0, **source}
    answer = await backend.post("create_sampling_session", sent)
    assert (answer.status_code, text in answer.json()["detail"]) == (status, True), answer.text


async def test_long_prompts_are_limited(backend: TinkerBackend) -> None:
    answer = await backend.send("asample", b" " * (MAX_SAMPLE_BODY + 1))
    assert answer.status_code == 413
    sampler = await session(backend, base_model=MODEL)
    tokens = {"chunks": [{"type": "encoded_text", "tokens": [1] * 70_000}]}
    many = await backend.post("asample", body(sampler, prompt=tokens, topk_prompt_logprobs=1))
    assert (many.status_code, "too many log-probabilities" in many.json()["detail"]) == (400, True)


def test_folders_of_policies_are_those_of_the_trainer() -> None:
    root, digest = uri_of("uid"), "1a2b3c4d"
    layout = RunLayout(S3Uri.parse(root))
    sampler = SamplerId(ModelId.parse(f"{SESSION}:train:0"), 12, digest)
    model = ClientModel(
        namespace="team",
        run="r",
        uid="uid",
        base_model="m",
        rank=8,
        created_at=datetime.now(UTC),
        phase=Phase.running,
        run_uri=root,
    )
    policy = policy_of(sampler, model)
    assert policy is not None
    assert (policy.uri, policy.name) == (str(layout.policy(12, digest)), "policy-v000012-1a2b3c4d")
    named = policy_of(SamplerId(sampler.model, 12, digest, is_named=True), model)
    assert named is not None
    assert named.uri == str(layout.adapter(12))
