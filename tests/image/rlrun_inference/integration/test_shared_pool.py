"""A whole `vllm serve` as the engine of a shared pool: two runs, each with an adapter, behind the middleware."""

import hashlib
import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.access import OPEN_PATHS_VARIABLE, TOKEN_VARIABLE, bearer
from rlrun.protocol.shared_pool import MODEL_HEADER, ORDER_FILE, PooledRun, PoolOrder, engine_name
from rlrun_engine_access.middleware import (
    MAX_BODY_VARIABLE,
    MAX_LORAS_VARIABLE,
    MAX_SEQUENCES_VARIABLE,
    ORDER_FILE_VARIABLE,
)

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

    def write_order(self, *uids: str) -> None:
        """Replace the order, as the sidecar does."""
        runs = [pooled_run(uid) for uid in uids]
        new = self.order.with_name("new-order")
        new.write_text(PoolOrder(base=BASE, runs=runs).model_dump_json(by_alias=True, exclude={"grant"}))
        new.rename(self.order)

    def ask(self, token: str | None, path: str, body: Any = None, model: str | None = None) -> tuple[int, bytes]:
        """Return status and body of the response."""
        headers = {"Content-Type": "application/json", **bearer(token)} | ({MODEL_HEADER: model} if model else {})
        data = json.dumps(body).encode() if body is not None else None
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data, headers), timeout=120
            ) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


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
    args = [*arguments(model, adapters=True), "--max-loras", "1"]
    with engine_process(VLLM, args, given, folder) as url:
        engine = Engine(url, folder / ORDER_FILE)
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
    assert len(lines) >= PROMPT["max_tokens"]


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
