"""A whole `vllm serve` as the engine of a shared pool: two runs, each with an adapter, behind the middleware."""

import hashlib
import json
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.access import OPEN_PATHS_VARIABLE, TOKEN_VARIABLE, bearer
from rlrun.protocol.pool_usage import USAGE_PATH, PoolUsage
from rlrun.protocol.shared_pool import MODEL_HEADER, ORDER_FILE, SEQUENCES_HEADER, PooledRun, PoolOrder, engine_name
from rlrun_engine_access.middleware import (
    MAX_BODY_VARIABLE,
    MAX_LORAS_VARIABLE,
    MAX_SEQUENCES_VARIABLE,
    ORDER_FILE_VARIABLE,
)
from rlrun_operator.resources.shared_pool import USAGE_FLAG

from tests.support.engine_files import write_adapter, write_weights
from tests.support.engine_process import VLLM, engine_process
from tests.support.engine_wire import BASE, MODEL_FOLDER, RANK, TOKEN, arguments, model_config, variables

RUNS = {"run-a": "a" * 64, "run-b": "b" * 64}
"""Tokens by uid."""
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
CHATTED: dict[str, Any] = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 4, "ignore_eos": True}
PROMPT: dict[str, Any] = {"prompt": "abc", "max_tokens": 8, "ignore_eos": True}


def policy(uid: str) -> str:
    """Return the name of the run's only policy."""
    return f"policy-v000001-{uid[-1] * 8}"


@dataclass(frozen=True)
class Engine:
    """Running engine of the pool."""

    url: str
    order: Path
    started: tuple[float, float]
    """Times between which the process started."""

    def write_order(self, *uids: str) -> None:
        """Replace the order, as the sidecar does."""
        runs = [pooled_run(uid) for uid in uids]
        new = self.order.with_name("new-order")
        new.write_text(PoolOrder(base=BASE, runs=runs).model_dump_json(by_alias=True, exclude={"grant"}))
        new.rename(self.order)

    def ask(
        self, token: str | None, path: str, body: Any = None, model: str | None = None, sequences: int = 1
    ) -> tuple[int, bytes]:
        """Return status and body of the response."""
        headers = {"Content-Type": "application/json", **bearer(token), SEQUENCES_HEADER: str(sequences)}
        headers |= {MODEL_HEADER: model} if model else {}
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data, headers), timeout=120
            ) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    @property
    def usage(self) -> PoolUsage:
        """Usage of the runs, as the sidecar receives it."""
        status, text = self.ask(TOKEN, USAGE_PATH)
        assert status == 200
        return PoolUsage.model_validate_json(text)


def pooled_run(uid: str) -> PooledRun:
    """Return the run's entry in the order."""
    digest = hashlib.sha256(RUNS[uid].encode()).hexdigest()
    return PooledRun(uid=uid, token_digest=digest, policies=f"s3://bucket/{uid}", max_requests=4)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """Engine with an adapter of each run, which batches one adapter."""
    folder = tmp_path_factory.mktemp("vllm-of-a-pool")
    model = write_weights(folder / "model", model_config())
    for file in MODEL_FOLDER.iterdir():
        shutil.copyfile(file, model / file.name)
    shared = {
        TOKEN_VARIABLE: TOKEN,
        OPEN_PATHS_VARIABLE: "/health",
        ORDER_FILE_VARIABLE: str(folder / ORDER_FILE),
        MAX_LORAS_VARIABLE: "1",
        MAX_SEQUENCES_VARIABLE: "8",
        MAX_BODY_VARIABLE: str(1024**2),
    }
    # vLLM's own key would refuse the tokens of the runs.
    given = {name: value for name, value in variables().items() if name != "VLLM_API_KEY"} | shared
    args = [*arguments(model, adapters=True), "--max-loras", "1", "--block-size", "32", USAGE_FLAG]
    begin = time.monotonic()
    with engine_process(VLLM, args, given, folder) as url:
        engine = Engine(url, folder / ORDER_FILE, (begin, time.monotonic()))
        for seed, uid in enumerate(RUNS):
            adapter = {"lora_name": engine_name(uid, policy(uid)), "lora_path": str(folder / uid)}
            write_adapter(folder / uid, model_config(), RANK, seed)
            assert engine.ask(TOKEN, "/v1/load_lora_adapter", adapter)[0] == 200
        yield engine


@pytest.fixture(autouse=True)
def both_runs(pool: Engine) -> None:
    pool.write_order(*RUNS)


def test_a_run_samples_from_its_own_adapter_and_the_base_model(pool: Engine) -> None:
    for uid, token in RUNS.items():
        for name, expected in ((policy(uid), engine_name(uid, policy(uid))), (BASE, BASE)):
            for path, body in ((TEXT, PROMPT), (CHAT, {**CHATTED, "priority": 9})):
                status, text = pool.ask(token, path, {"model": "other", **body}, name)
                assert status == 200, text
                assert json.loads(text)["model"] == expected
            assert pool.ask(token, "/tokenize", {"prompt": "abc"}, name)[0] == 200


def test_sequences_of_one_request_are_those_of_several_requests(pool: Engine) -> None:
    asked = {**PROMPT, "temperature": 1.0, "n": 3, "return_token_ids": True}

    def sample(seed: int, sequences: int) -> list[Any]:
        answer = pool.ask(RUNS["run-a"], TEXT, {**asked, "seed": seed}, policy("run-a"), sequences)
        assert answer[0] == 200, answer
        return [choice["token_ids"] for choice in json.loads(answer[1])["choices"]]

    together = sample(7, sequences=3)
    assert together == [tokens for number in range(3) for tokens in sample(7 + number, sequences=1)]
    assert len(sample(7, sequences=64)) == pooled_run("run-a").max_requests


def test_a_run_reaches_no_adapter_of_another_run(pool: Engine) -> None:
    other = engine_name("run-b", policy("run-b"))
    for name in (policy("run-b"), other):
        status, text = pool.ask(RUNS["run-a"], TEXT, {**PROMPT, "model": other}, name)
        assert (status, b"does not exist" in text) == (404, True)


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/v1/load_lora_adapter", "/collective_rpc", "/version"])
def test_other_paths_need_the_token_of_the_pool(path: str, pool: Engine) -> None:
    assert pool.ask(None, "/health")[0] == 200
    for token in (None, RUNS["run-a"]):
        assert pool.ask(token, path)[0] == 401
    assert pool.ask(TOKEN, path)[0] != 401


def test_both_runs_are_served_although_one_adapter_fits_into_a_batch(pool: Engine) -> None:
    def sample(uid: str) -> int:
        return pool.ask(RUNS[uid], TEXT, PROMPT, policy(uid))[0]

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(sample, [*RUNS] * 16)) == {200}


def test_greedy_tokens_are_those_without_a_neighbour_that_keeps_loading(pool: Engine, tmp_path: Path) -> None:
    prompts = [{**PROMPT, "prompt": text, "max_tokens": 24, "temperature": 0} for text in ("a", "cab", "bacab" * 4)]

    def greedy() -> list[str]:
        answers = [json.loads(pool.ask(RUNS["run-a"], TEXT, prompt, policy("run-a"))[1]) for prompt in prompts]
        return [answer["choices"][0]["text"] for answer in answers]

    alone, ended, loaded = greedy(), threading.Event(), 0

    def disturb() -> None:
        nonlocal loaded
        write_adapter(tmp_path / "adapter", model_config(), RANK, seed=2)
        while not ended.is_set():
            name = f"policy-v{loaded:06d}-00000000"
            adapter = {"lora_name": engine_name("run-b", name), "lora_path": str(tmp_path / "adapter")}
            assert pool.ask(TOKEN, "/v1/load_lora_adapter", adapter)[0] == 200
            assert pool.ask(RUNS["run-b"], TEXT, PROMPT, name)[0] == 200
            assert pool.ask(TOKEN, "/v1/unload_lora_adapter", {"lora_name": adapter["lora_name"]})[0] == 200
            loaded += 1

    with ThreadPoolExecutor(1) as threads:
        neighbour = threads.submit(disturb)
        try:
            beside = [greedy() for _ in range(12)]
        finally:
            ended.set()
        neighbour.result()
    assert loaded >= 3
    assert beside == [alone] * 12


def test_a_stream_passes_in_parts(pool: Engine) -> None:
    _, text = pool.ask(RUNS["run-a"], TEXT, {**PROMPT, "stream": True}, policy("run-a"))
    lines = [line for line in text.split(b"\n") if line.startswith(b"data: ")]
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) > 2, "an event has several tokens if the machine is busy"


def test_a_request_of_a_run_is_one_sequence(pool: Engine) -> None:
    tokens = {"prompt_token_ids": [[1, 2], [3]]}
    for path, body in ((TEXT, {**PROMPT, "prompt": ["a", "b"]}), (CHAT, {**CHATTED, "kv_transfer_params": tokens})):
        assert pool.ask(RUNS["run-a"], path, body, policy("run-a"))[0] == 400
    assert pool.ask(TOKEN, TEXT, {**PROMPT, "prompt": [[1], [2]], "model": BASE})[0] == 200, "the sidecar's probe"


def test_a_run_that_leaves_the_pool_is_refused(pool: Engine) -> None:
    pool.write_order("run-b")
    assert pool.ask(RUNS["run-a"], TEXT, PROMPT, policy("run-a"))[0] == 401
    assert pool.ask(RUNS["run-b"], TEXT, PROMPT, policy("run-b"))[0] == 200
    pool.order.unlink()
    assert pool.ask(RUNS["run-b"], TEXT, PROMPT, policy("run-b"))[0] == 503


def test_a_gigabyte_is_refused_early(pool: Engine) -> None:
    headers = {"Content-Length": str(2**30), MODEL_HEADER: BASE, **bearer(RUNS["run-a"])}
    request = urllib.request.Request(pool.url + TEXT, b"{", headers, method="POST")
    with pytest.raises(urllib.error.HTTPError, match="413"):
        urllib.request.urlopen(request, timeout=60)


LONG_CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "abcde" * 20}], "max_tokens": 5, "ignore_eos": True,
    "return_token_ids": True, "logprobs": True,
}  # fmt: skip


def test_counted_tokens_are_those_of_the_responses(pool: Engine) -> None:
    before = pool.usage.runs
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    samples: list[tuple[str, dict[str, Any]]] = [(TEXT, PROMPT), (CHAT, CHATTED), *[(CHAT, LONG_CHAT)] * 2]
    for uid, bodies in {
        "run-a": [*samples, (TEXT, {**PROMPT, "logprobs": 1, "return_token_ids": True})],
        "run-b": [(path, body | stream) for path, body in samples],
    }.items():
        expected = dict(before[uid].tokens)
        for path, body in bodies:
            status, text = pool.ask(RUNS[uid], path, body, policy(uid))
            assert status == 200, text
            events = [line.removeprefix(b"data: ") for line in text.splitlines() if line and b"[DONE]" not in line]
            usage = json.loads(events[-1])["usage"]
            cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            for kind, count in zip(expected, (usage["prompt_tokens"], cached, usage["completion_tokens"]), strict=True):
                expected[kind] += count
        assert pool.usage.runs[uid].tokens == expected
        assert [*expected] == ["prompt", "cached", "sampled"]
        assert expected["cached"] > before[uid].tokens["cached"], "long prompts were repeated"


def test_device_seconds_and_idle_seconds_sum_to_the_time_since_the_start(pool: Engine) -> None:
    before = pool.usage
    with ThreadPoolExecutor(8) as threads:
        answers = threads.map(lambda uid: pool.ask(RUNS[uid], TEXT, PROMPT, policy(uid))[0], [*RUNS] * 20)
        assert set(answers) == {200}
    begin = time.monotonic()
    usage = pool.usage
    end = time.monotonic()
    total = usage.idle_seconds + sum(run.device_seconds for run in usage.runs.values())
    earliest, latest = pool.started
    assert 0.99 * (begin - latest) <= total <= 1.01 * (end - earliest)
    for uid in RUNS:
        assert usage.runs[uid].device_seconds > before.runs[uid].device_seconds


def test_an_aborted_request_counts_its_time_until_vllm_ended_it(pool: Engine) -> None:
    body = json.dumps({**PROMPT, "max_tokens": 100, "stream": True}).encode()
    headers = {"Content-Type": "application/json", MODEL_HEADER: policy("run-a"), **bearer(RUNS["run-a"])}
    before = pool.usage.runs["run-a"]
    with urllib.request.urlopen(urllib.request.Request(pool.url + TEXT, body, headers), timeout=120) as response:
        assert response.readline().startswith(b"data: ")
    deadline = time.monotonic() + 60
    while (first := pool.usage).runs != (second := pool.usage).runs:
        assert time.monotonic() < deadline, "the request has not ended"
    assert second.idle_seconds > first.idle_seconds
    assert second.runs["run-a"].device_seconds > before.device_seconds
    assert second.runs["run-a"].tokens == before.tokens, "its stream has no usage"
