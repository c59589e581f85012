"""What vLLM itself makes of a run's requests: its parser, its request models, its choice of adapters."""

import inspect
import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from pydantic import BaseModel
from rlrun.protocol.shared_pool import engine_name
from rlrun_engine_access.body import with_fields
from rlrun_engine_access.order import RunEntry
from rlrun_engine_access.shared_pool import FORWARDED_HEADERS, _own_fields
from starlette.testclient import TestClient
from vllm.entrypoints.generate.base import serving as generate_serving
from vllm.entrypoints.generate.base.serving import PRIORITY_HEADER, SESSION_ID_HEADER, GenerateBaseServing
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.serve.engine import serving as base_serving
from vllm.entrypoints.serve.engine.serving import BaseServing
from vllm.entrypoints.serve.tokenize.protocol import TokenizeRequest

RUN = RunEntry(uid="0e5f", token_digest="", max_requests=1)
MODEL = engine_name(RUN.uid, "policy-v000001-0123abcd")
OTHER = engine_name("77aa", "policy-v000001-0123abcd")
MESSAGES = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {
    "priority": -5, "cache_salt": "other", "session_id": "other", "n": 100, "use_beam_search": True,
    "ec_transfer_params": {"x": 1}, "vllm_xargs": {"session_id": "other"},
    "structured_outputs": {"regex": "a*"}, "response_format": {"type": "json_object"}, "echo": True,
}  # fmt: skip
"""Fields with which a request acts beyond its own sampling."""
REQUESTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/completions": (CompletionRequest, {"prompt": "hi"}),
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": MESSAGES}),
    "/tokenize": (TokenizeRequest, {"prompt": "hi"}),
}


def app_of(kind: Any, found: list[Any]) -> FastAPI:
    """Application that parses bodies as vLLM's routes do."""
    app = FastAPI()

    async def route(request: kind, raw_request: Request) -> None:
        found.append((request, GenerateBaseServing._get_priority(request, raw_request)))

    app.post("/")(route)
    return app


@pytest.mark.parametrize("path", REQUESTS)
def test_vllm_takes_the_fields_of_the_middleware(path: str) -> None:
    kind, given = REQUESTS[path]
    found: list[Any] = []
    client = TestClient(app_of(kind, found))
    text = json.dumps({"model": OTHER, **GREEDY, **given})
    twice = f'{{"model": {json.dumps(OTHER)}, {text[1:-1]}}}'
    headers = {"Content-Type": "application/json"}
    for body in (text, twice):
        response = client.post("/", content=with_fields(body.encode(), _own_fields(RUN, MODEL, 2)), headers=headers)
        assert response.status_code == 200, response.text
    assert len(found) == 2
    assert GREEDY.keys() <= _own_fields(RUN, MODEL, 2).keys()
    for request, priority in found:
        assert request.model == MODEL
        assert priority == 0
        for name, value in _own_fields(RUN, MODEL, 2).items():
            assert getattr(request, name) == value, name


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest])
def test_the_fields_of_the_middleware_are_fields_of_vllm(kind: type[BaseModel]) -> None:
    assert _own_fields(RUN, MODEL, 2).keys() <= kind.model_fields.keys()


def test_headers_that_vllm_reads_are_not_forwarded() -> None:
    source = inspect.getsource(generate_serving) + inspect.getsource(base_serving)
    read = {*re.findall(r'headers\.get\(\s*"([^"]+)"', source), PRIORITY_HEADER, SESSION_ID_HEADER}
    assert read >= {"X-data-parallel-rank", "X-Request-Id"}, "vLLM has other sources than this test was written for"
    assert not {name.lower().encode() for name in read} & FORWARDED_HEADERS


class Lora:
    """An adapter that is loaded."""

    def __init__(self, name: str) -> None:
        self.lora_name = name


def adapter_of(request: ChatCompletionRequest, loaded: str) -> str | None:
    """Return the adapter that vLLM uses for a chat with the base model."""
    models = SimpleNamespace(lora_requests={loaded: Lora(loaded)}, is_base_model=lambda name: name == "base")
    found = BaseServing(models, None)._maybe_get_adapters(request, supports_default_mm_loras=True)  # type: ignore[arg-type]
    return found.lora_name if found is not None else None


@pytest.mark.parametrize("suffix", ["", "_", "_text", "__"])
def test_no_content_part_of_a_chat_chooses_an_adapter(suffix: str) -> None:
    """vLLM would use the adapter if its name had no underscore. If this fails, names may have any form."""
    for name, expected in ((OTHER.replace("_", "."), OTHER.replace("_", ".")), (OTHER, None)):
        part = {"type": f"{name}{suffix}", "uuid": "1", "tool_reference": "x", "name": "hi"}
        chat = {"model": "base", "messages": [{"role": "user", "content": [part]}]}
        assert adapter_of(ChatCompletionRequest.model_validate(chat), name) == expected
