"""Log-probabilities of prompts beside samples of several adapters, with vLLM's own LoRA kernels and the plugin."""

import json
import random
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rlrun.protocol.access import bearer

from tests.support.engine_files import write_adapter, write_weights
from tests.support.engine_process import VLLM, engine_process
from tests.support.engine_wire import BASE, END, LETTER, MODEL_FOLDER, RANK, TOKEN, arguments, model_config, variables

PROMPT = [3, 4, 5, 6, 2]


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of an engine with two adapters. Of the plugins it has the one that is installed into all engines."""
    folder = tmp_path_factory.mktemp("vllm")
    model = write_weights(folder / "model", model_config())
    for file in MODEL_FOLDER.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    given = variables() | {"VLLM_PLUGINS": "rlrun_engine_access"}
    with engine_process(VLLM, arguments(model, adapters=True), given, folder) as url:
        for seed, name in enumerate("ab"):
            place = write_adapter(folder / name, model_config(), RANK, seed)
            ask(url, "/v1/load_lora_adapter", {"lora_name": f"{name}_1", "lora_path": str(place)})
        yield url


def ask(url: str, path: str, body: Any) -> bytes:
    headers = {"Content-Type": "application/json", **bearer(TOKEN)}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        return bytes(response.read())


def complete(url: str, prompt: list[int], model: str = "a_1", **settings: Any) -> Any:
    """The only choice."""
    body = {"model": model, "prompt": prompt, "return_token_ids": True, "logprobs": 0, **settings}
    return json.loads(ask(url, "/v1/completions", body))["choices"][0]


def scores(url: str, prompt: list[int], model: str = "a_1") -> list[float]:
    """Log-probabilities of the tokens of a prompt, but the first."""
    first, *others = complete(url, prompt, model, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
    assert first is None
    return [each[str(token)]["logprob"] for each, token in zip(others, prompt[1:], strict=True)]


def test_scores_of_a_prompt_are_those_of_its_sampling(engine_url: str) -> None:
    for model in ("a_1", "b_1", BASE):
        sampled = complete(engine_url, PROMPT, model, max_tokens=12, seed=1, ignore_eos=True)
        found = scores(engine_url, [*PROMPT, *sampled["token_ids"]], model)[-12:]
        assert found == pytest.approx(sampled["logprobs"]["token_logprobs"], abs=1e-4)


def test_prompts_are_scored_while_more_requests_sample_than_they_have_tokens(engine_url: str) -> None:
    expected = {model: scores(engine_url, PROMPT, model) for model in ("a_1", "b_1")}

    def request(number: int) -> None:
        model = "ab"[number % 2] + "_1"
        if number % 3 == 0:
            assert scores(engine_url, PROMPT, model) == pytest.approx(expected[model], abs=1e-4)
        else:
            prompt = random.Random(number).choices(range(3, 29), k=1 + number % 40)
            complete(engine_url, prompt, model, max_tokens=20, ignore_eos=True)

    with ThreadPoolExecutor(16) as threads:
        assert list(threads.map(request, range(48))) == [None] * 48


def test_an_adapter_of_the_head_acts_until_it_is_unloaded(engine_url: str, tmp_path: Path) -> None:
    def sampled(model: str) -> Any:
        return complete(engine_url, PROMPT, model, max_tokens=1, temperature=0, logprobs=5)["logprobs"]["top_logprobs"][
            0
        ]

    before = sampled("a_1"), sampled(BASE)
    assert before[0] == pytest.approx(before[1], abs=1e-4), "query projections alone change little"
    place = write_adapter(tmp_path / "head", model_config(), RANK, has_head=True)
    ask(engine_url, "/v1/load_lora_adapter", {"lora_name": "head_1", "lora_path": str(place)})
    assert sampled("head_1") != pytest.approx(before[0], abs=1e-4)
    assert (sampled("a_1"), sampled(BASE)) == before
    ask(engine_url, "/v1/unload_lora_adapter", {"lora_name": "head_1"})
    assert (sampled("a_1"), sampled(BASE)) == before


def test_returned_tokens_include_the_stop(engine_url: str) -> None:
    letter, end = ({"allowed_token_ids": [token], "max_tokens": 4} for token in (LETTER, END))
    for settings, tokens, reason in (
        ({**letter, "stop_token_ids": [LETTER]}, [LETTER], "stop"),
        ({**letter, "stop": ["bb"], "include_stop_str_in_output": True}, [LETTER] * 2, "stop"),
        (end, [END], "stop"),
        ({**end, "ignore_eos": True, "top_k": 5, "seed": 3}, [END] * 4, "length"),
    ):
        choice = complete(engine_url, PROMPT, **settings)
        assert (choice["token_ids"], choice["finish_reason"]) == (tokens, reason)
        assert len(choice["logprobs"]["token_logprobs"]) == len(tokens)
