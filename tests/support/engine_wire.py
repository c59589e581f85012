"""Wire of the inference engine: requests that the product sends, and what must be equal in the responses.

Real vLLM and the stub engine answer them with the same folder of a model, started as the operator starts an engine. The
file EXPECTED has the responses of vLLM. The image level compares vLLM with it, the unit level the stub: one that drifts
fails. Write the file again for another version of vLLM, and move it to its place:

    python -m local_cluster.images run inference-cpu -- python -m tests.support.engine_wire > build/engine-wire.yaml

Tokens differ between the two, because they have different weights. So most requests allow one token only, and texts,
token ids and numbers of tokens can be compared literally.
"""

import json
import math
import re
import shutil
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rlrun.api.model import RLModelSpec
from rlrun.constants import INFERENCE_PORT
from rlrun.protocol.policy import PolicyKind
from rlrun_operator.resources.access.engine_access import PROBE_PATHS
from rlrun_operator.resources.base.pod_templates import MODEL_DIR
from rlrun_operator.resources.inference import engine_env, lora_args, serve_args

from tests.support.engine_files import write_adapter, write_weights
from tests.support.engine_process import VLLM, engine_process
from tests.support.source_tree import ROOT

EXPECTED = ROOT / "tests" / "fixtures" / "engine-wire.yaml"
MODEL_FOLDER = ROOT / "tests" / "fixtures" / "character_model"
EXAMPLE = ROOT / "examples" / "models" / "reverse-text-tiny.yaml"
BASE, ADAPTER = "rlrun/reverse-text-tiny", "policy-v000001-1a2b3c4d"
TOKEN = "t" * 32
END, LETTER, OTHER = 1, 5, 6
"""Ids of tokens: of the end of a text, and of `b` and `c`."""
RANK = 16
PAUSED_SECONDS = 0.5

Json = Any
Observations = dict[str, Json]


@dataclass(frozen=True)
class WireRequest:
    """One request. `token` False: without the token of the run."""

    name: str
    path: str
    body: Json = None
    token: bool = True
    free: frozenset[str] = frozenset()
    """Fields whose values may differ, such as texts of errors that are those of a library."""


# --- the engine -------------------------------------------------------------------------------------------------------


def arguments(model_folder: Path, *, adapters: bool) -> list[str]:
    """Return the arguments that the operator gives to the engine of the example's model, for another folder."""
    model = RLModelSpec.model_validate(yaml.safe_load(EXAMPLE.read_text())["spec"])
    given = serve_args(model, lora_args(model, 4) if adapters else [])
    place, port = given.index(MODEL_DIR), given.index("--port")
    assert given[port + 1] == str(INFERENCE_PORT)
    return [*given[:place], str(model_folder), *given[place + 1 : port], *given[port + 2 :]]


def variables() -> dict[str, str]:
    """Return the variables that the operator gives to engines, for adapters and for whole weights."""
    access = {"RLRUN_TOKEN": TOKEN, "VLLM_API_KEY": TOKEN, "RLRUN_OPEN_PATHS": ",".join(PROBE_PATHS)}
    shared = {"OMP_NUM_THREADS": "1", "STUB_ENGINE_TOKEN_SECONDS": "0"}
    return engine_env(PolicyKind.adapter) | engine_env(PolicyKind.weights) | access | shared


@contextmanager
def engine(command: Sequence[str], folder: Path, *, adapters: bool = True) -> Iterator[str]:
    """Yield the URL of an engine with the example's tokenizer and random weights."""
    model = write_weights(folder / "model", model_config())
    for file in MODEL_FOLDER.iterdir():
        shutil.copyfile(file, model / file.name)
    with engine_process(command, arguments(model, adapters=adapters), variables(), folder) as url:
        yield url


def model_config() -> Json:
    """Return the model's `config.json`."""
    return json.loads((MODEL_FOLDER / "config.json").read_text())


# --- requests ---------------------------------------------------------------------------------------------------------

MESSAGE = frozenset({"message"})
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "abc"}]
TURNS = [*MESSAGES, {"role": "assistant", "content": "cba"}, {"role": "user", "content": "De f"}]
EMPTY_TURNS = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": None}, *MESSAGES]
SAMPLED = [4, 5, 6, 2, 6, 6, 1, 7, 2]
"""Tokens of a prompt that are not those of `MESSAGES`."""
FORCED: dict[str, Json] = {"model": BASE, "allowed_token_ids": [LETTER], "max_tokens": 3, "seed": 7}
CHATTED: dict[str, Json] = {**FORCED, "messages": MESSAGES}
WRITTEN: dict[str, Json] = {**FORCED, "prompt": "abc<sep>"}
RECORDED: dict[str, Json] = {"logprobs": True, "return_token_ids": True}
"""Fields that the gateway adds to chats."""
RECORDED_TEXT: dict[str, Json] = {"logprobs": 0, "return_token_ids": True}
SAMPLED_BY_CLIENT: dict[str, Json] = {
    "prompt": [3, 4, 2], "n": 1, "stream": False, "temperature": 0.5, "top_p": 0.9, "top_k": 0, "min_p": 0.0,
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "skip_special_tokens": False,
    "include_stop_str_in_output": True, "stop": "bb", "stop_token_ids": [OTHER],
}  # fmt: skip
"""Fields that rlrun-tinker adds to completions."""
LONG: dict[str, Json] = {"stream": True, "max_tokens": 16}
"""So many tokens that they arrive in several events, also on a busy machine."""
STREAMED: dict[str, Json] = {**LONG, "stream_options": {"include_usage": True}}


def wire_requests(folder: Path) -> list[WireRequest]:
    """Return all requests for an engine with adapters, in their order. Write the files that they name into `folder`."""
    config = model_config()
    adapter = write_adapter(folder / "adapter", config, RANK)
    large = write_adapter(folder / "large", config, 4 * RANK)
    weights = write_weights(folder / "weights", config, seed=1)
    load, unload, named = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", {"lora_name": ADAPTER}
    return [
        WireRequest("health", "/health", token=False),
        WireRequest("without the token", "/v1/models", token=False),
        WireRequest("unknown path", "/nowhere", {}),
        WireRequest("wrong method", CHAT),
        WireRequest("models", "/v1/models"),
        # Completions of chats.
        WireRequest("chat", CHAT, CHATTED),
        WireRequest("chat of the gateway", CHAT, {**CHATTED, **RECORDED, "top_k": 0, "min_p": 0.0, "n": 1}),
        WireRequest("chat with likely tokens", CHAT, {**CHATTED, **RECORDED, "top_logprobs": 2}),
        WireRequest("chat with choices", CHAT, {**CHATTED, **RECORDED, "n": 2}),
        WireRequest("chat that ends", CHAT, {**CHATTED, **RECORDED, "allowed_token_ids": [END]}),
        WireRequest("chat with a stop", CHAT, {**CHATTED, **RECORDED, "stop": ["bb"]}),
        WireRequest("chat with its stop", CHAT, {**CHATTED, "stop": "bb", "include_stop_str_in_output": True}),
        WireRequest("chat with a stop token", CHAT, {**CHATTED, **RECORDED, "stop_token_ids": [LETTER]}),
        WireRequest(
            "chat of a length",
            CHAT,
            {**CHATTED, **RECORDED, "allowed_token_ids": [END, LETTER], "min_tokens": 3},
        ),
        WireRequest("chat without a limit", CHAT, {**CHATTED, "max_tokens": None}),
        WireRequest("chat in turns", CHAT, {**CHATTED, **RECORDED, "messages": TURNS}),
        WireRequest(
            "chat as tokens", CHAT, {**CHATTED, **RECORDED, "kv_transfer_params": {"prompt_token_ids": SAMPLED}}
        ),
        WireRequest("chat in parts", CHAT, {**CHATTED, "messages": [_in_parts("ab", "c")], "return_token_ids": True}),
        WireRequest("streamed chat", CHAT, {**CHATTED, **STREAMED}),
        WireRequest("streamed chat of the gateway", CHAT, {**CHATTED, **RECORDED, **LONG}),
        WireRequest("streamed chat that ends", CHAT, {**CHATTED, "stream": True, "allowed_token_ids": [END]}),
        # Completions of texts.
        WireRequest("text", TEXT, WRITTEN),
        WireRequest("text of the gateway", TEXT, {**WRITTEN, **RECORDED_TEXT, "prompt": [3, 4, 2]}),
        WireRequest("text with likely tokens", TEXT, {**WRITTEN, **RECORDED_TEXT, "logprobs": 2}),
        WireRequest("text of a sampling client", TEXT, {**WRITTEN, **RECORDED_TEXT, **SAMPLED_BY_CLIENT}),
        WireRequest(
            "text of a sampling client with likely tokens",
            TEXT,
            {
                **WRITTEN,
                **RECORDED_TEXT,
                **SAMPLED_BY_CLIENT,
                "logprobs": 2,
                "return_tokens_as_token_ids": True,
                "ignore_eos": True,
                "allowed_token_ids": [END],
            },
        ),
        WireRequest("texts", TEXT, {**WRITTEN, **RECORDED_TEXT, "prompt": ["a<sep>", "b<sep>"], "n": 2}),
        WireRequest("text that ends", TEXT, {**WRITTEN, **RECORDED_TEXT, "allowed_token_ids": [END]}),
        WireRequest("streamed text", TEXT, {**WRITTEN, **STREAMED}),
        WireRequest("streamed text with tokens", TEXT, {**WRITTEN, **RECORDED_TEXT, **LONG}),
        # Tokens.
        WireRequest("tokens of a chat", "/tokenize", {"messages": MESSAGES, "add_generation_prompt": True}),
        WireRequest("tokens of turns", "/tokenize", {"model": BASE, "messages": TURNS, "add_generation_prompt": False}),
        WireRequest(
            "tokens of turns with names", "/tokenize", {"model": BASE, "messages": TURNS, "return_token_strs": True}
        ),
        WireRequest("tokens of a text", "/tokenize", {"model": BASE, "prompt": "A-bß\n<sep> <eos>"}),
        # Refused requests.
        WireRequest("chat with an unknown model", CHAT, {**CHATTED, "model": "no/such"}),
        WireRequest("text with an unknown model", TEXT, {**WRITTEN, "model": "no/such"}),
        WireRequest("tokens of an unknown model", "/tokenize", {"model": "no/such", "prompt": "a"}),
        WireRequest("chat without messages", CHAT, {"model": BASE}, free=MESSAGE),
        WireRequest(
            "chat with an answer of null", CHAT, {**CHATTED, "messages": EMPTY_TURNS}, free=MESSAGE | {"param"}
        ),
        WireRequest("tokens of an answer of null", "/tokenize", {"messages": EMPTY_TURNS}, free=MESSAGE | {"param"}),
        WireRequest("body that is no object", CHAT, [], free=MESSAGE),
        WireRequest("chat that is too long", CHAT, {**CHATTED, "messages": [_in_parts("a" * 200)]}),
        WireRequest("tokens that are too many", TEXT, {**WRITTEN, "prompt": [LETTER] * 140}),
        WireRequest("text without room for an answer", TEXT, {**WRITTEN, "prompt": [LETTER] * 128}),
        WireRequest("text with less room than requested", TEXT, {**WRITTEN, "prompt": [LETTER] * 126}),
        WireRequest(
            "text with less room than its minimum", TEXT, {**WRITTEN, "prompt": [LETTER] * 126, "min_tokens": 3}
        ),
        WireRequest("answer without tokens", CHAT, {**CHATTED, "max_tokens": 0}),
        WireRequest("negative temperature", CHAT, {**CHATTED, "temperature": -1}),
        # Adapters.
        WireRequest("load", load, {**named, "lora_path": str(adapter)}),
        WireRequest("load again", load, {**named, "lora_path": str(adapter)}),
        WireRequest("models with the adapter", "/v1/models"),
        WireRequest("chat with the adapter", CHAT, {**CHATTED, **RECORDED, "model": ADAPTER}),
        WireRequest("load without files", load, {"lora_name": "policy-v000002-0", "lora_path": str(folder / "none")}),
        WireRequest("load of a large rank", load, {"lora_name": "policy-v000003-0", "lora_path": str(large)}),
        WireRequest("load without a name", load, {"lora_path": str(adapter)}, free=MESSAGE),
        WireRequest("unload", unload, named),
        WireRequest("unload again", unload, named),
        WireRequest("models without the adapter", "/v1/models"),
        WireRequest("chat after the unload", CHAT, {**CHATTED, "model": ADAPTER}),
        # Whole weights, in the order of the sidecar.
        WireRequest("version at the start", "/weight_info"),
        WireRequest("pause", "/pause?mode=keep", {}),
        WireRequest("version", "/update_weight_version", {"new_version": "policy-v000004-0"}),
        WireRequest(
            "weights", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(weights)}}
        ),
        WireRequest("cache", "/reset_prefix_cache?reset_running_requests=true", {}),
        WireRequest("resume", "/resume", {}),
        WireRequest("version in the end", "/weight_info"),
        WireRequest("chat with the weights", CHAT, CHATTED),
    ]


TEACHER = WireRequest(
    "text of a teacher",
    TEXT,
    {"model": BASE, "prompt": [3, 4, 2], "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0},
    free=frozenset({"text", "finish_reason"}),
)
"""For an engine without adapters: vLLM 0.32 on CPUs ends at this request if they are enabled."""
SCORES = WireRequest(
    "text of a sampling client with its prompt",
    TEXT,
    {"model": BASE, **SAMPLED_BY_CLIENT, **RECORDED_TEXT, "max_tokens": 1, "prompt_logprobs": 2},
    free=frozenset({"text", "finish_reason", "stop_reason", "token_ids", "tokens"}),
)
"""For an engine without adapters, too."""
METRICS = frozenset({"vllm:num_requests_running", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"})
"""Names of the stub, which users of vLLM's metrics know."""
ENGINE_GAUGES = frozenset({"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"})
ENGINE_COUNTERS = frozenset(
    {
        "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:prefix_cache_hits", "vllm:prefix_cache_queries",
        "vllm:num_preemptions", "vllm:request_success",
    }
)  # fmt: skip
ENGINE_HISTOGRAMS = frozenset(
    {"vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds", "vllm:request_queue_time_seconds"}
)
DASHBOARD_METRICS = frozenset(
    {*ENGINE_GAUGES, *(f"{n}_total" for n in ENGINE_COUNTERS), *(f"{n}_bucket" for n in ENGINE_HISTOGRAMS)}
)
"""Names of the samples that the dashboards of the chart show."""


def _in_parts(*texts: str) -> Json:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


# --- what is compared -------------------------------------------------------------------------------------------------

LITERAL = frozenset(
    {
        "object", "role", "content", "text", "finish_reason", "stop_reason", "code", "type", "param", "message",
        "index", "owned_by", "parent", "root", "max_model_len", "count", "tokens", "token", "bytes", "token_ids",
        "text_offset", "prompt_token_ids", "token_strs", "prompt_tokens", "completion_tokens", "total_tokens",
        "weight_version", "new_version", "success", "status", "results", "model",
    }
)  # fmt: skip
"""Fields whose values are compared. Of others the type is."""
LITERAL_IN_STREAM = frozenset({"object", "role", "finish_reason", "prompt_tokens", "completion_tokens", "total_tokens"})
"""Fewer in a stream: one event may have several tokens."""
BY_TOKEN = frozenset({"top_logprobs", "prompt_logprobs"})
"""Fields with tokens that the engine finds likely."""


def observe(url: str, requests: Sequence[WireRequest], folder: Path) -> Observations:
    """Send the requests and return what must be equal, by the name of the request."""
    return {request.name: _observation(url, request, folder) for request in requests}


def _observation(url: str, request: WireRequest, folder: Path) -> Json:
    status, media_type, content = send(url, request)
    text = re.sub(rf"{re.escape(str(folder))}[\w./-]*", "<path>", content.decode()).replace(
        str(MODEL_FOLDER), "<model>"
    )
    found: dict[str, Json] = {"status": status}
    if text:
        found["type"] = media_type
    if media_type == "text/event-stream":
        found |= _stream(text)
    elif media_type == "application/json":
        found["body"] = shape(json.loads(text), LITERAL - request.free)
    elif text:
        found["text"] = text
    return found


def send(url: str, request: WireRequest) -> tuple[int, str, bytes]:
    """Return status, media type and body of the response."""
    headers = {"Authorization": f"Bearer {TOKEN}"} if request.token else {}
    data = None if request.body is None else json.dumps(request.body).encode()
    asked = urllib.request.Request(url + request.path, data, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(asked, timeout=120) as response:
            return response.status, response.headers.get_content_type(), response.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers.get_content_type(), error.read()


def shape(value: Json, literal: frozenset[str], key: str = "", *, by_token: bool = False) -> Json:
    """Return the value with types in place of what may differ."""
    if by_token and isinstance(value, dict):
        # Entries of chats name their token; others have it as their key.
        found = value if "token" in value else {"<token>": next(iter(value.values()))}
        return {name: shape(entry, frozenset()) for name, entry in found.items()}
    if isinstance(value, dict):
        return {name: shape(value[name], literal, name, by_token=name in BY_TOKEN) for name in sorted(value)}
    has_objects = isinstance(value, list) and any(isinstance(entry, dict) for entry in value)
    if value is None or (key in literal and not has_objects):
        return value
    if isinstance(value, list):
        shapes = [shape(entry, literal, by_token=by_token) for entry in value]
        return [found for number, found in enumerate(shapes) if found not in shapes[:number]]
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "string"


def _stream(text: str) -> dict[str, Json]:
    """Return the kinds of events in their order, and what all have together."""
    events = [event.removeprefix("data: ") for event in text.strip().split("\n\n")]
    bodies = [json.loads(event) for event in events[:-1]]
    shapes = [shape(body, LITERAL_IN_STREAM) for body in bodies]
    choices = [choice for body in bodies for choice in body["choices"]]
    return {
        "events": [found for number, found in enumerate(shapes) if number == 0 or found != shapes[number - 1]],
        "text": "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices),
        "token_ids": [token for choice in choices for token in choice.get("token_ids") or []],
        "end": events[-1],
    }


# --- what holds for all tokens ----------------------------------------------------------------------------------------


def violations(url: str) -> list[str]:
    """Return which rules of the engine's responses do not hold, where its weights decide on the tokens."""
    messages = [{"role": "user", "content": "mira tolu"}]
    free = {"model": BASE, "messages": messages, "max_tokens": 12, **RECORDED}

    def ask(path: str = CHAT, **fields: Json) -> Json:
        status, _, content = send(url, WireRequest("", path, free | fields))
        assert status == 200, content
        return json.loads(content)

    def tokens(answer: Json) -> list[int]:
        found: list[int] = answer["choices"][0]["token_ids"]
        return found

    def finite(answer: Json) -> bool:
        return all(
            len(choice["token_ids"]) == len(choice["logprobs"]["content"])
            and all(
                math.isfinite(entry["logprob"]) and entry["logprob"] <= 0 for entry in choice["logprobs"]["content"]
            )
            for choice in answer["choices"]
        )

    def ends(answer: Json) -> bool:
        reason, ids = answer["choices"][0]["finish_reason"], tokens(answer)
        return bool(reason == "stop" if ids[-1] == END else reason == "length" and len(ids) == 12)

    def streamed_text(**fields: Json) -> str:
        _, _, content = send(url, WireRequest("", CHAT, free | fields | {"stream": True}))
        return str(_stream(content.decode())["text"])

    def waits() -> bool:
        """Return whether a request waits while generation is paused, and is answered afterwards."""
        answers: list[Json] = []
        send(url, WireRequest("", "/pause?mode=keep", {}))
        waiting = threading.Thread(target=lambda: answers.append(ask()))
        waiting.start()
        waiting.join(PAUSED_SECONDS)
        held = not answers
        send(url, WireRequest("", "/resume", {}))
        waiting.join(60)
        return held and len(answers) == 1

    seeds = [ask(seed=seed) for seed in range(8)]
    greedy = ask(temperature=0)
    several = ask(n=3, seed=1)
    rendered = json.loads(send(url, WireRequest("", "/tokenize", {"messages": messages}))[2])["tokens"]
    long = ask(seed=1, min_tokens=12, max_tokens=12)
    rules = {
        "the same seed draws the same tokens": tokens(ask(seed=3)) == tokens(seeds[3]),
        "choice i draws what seed + i draws": [choice["token_ids"] for choice in several["choices"]]
        == [tokens(answer) for answer in seeds[1:4]],
        "seeds draw different tokens": len({tuple(tokens(answer)) for answer in seeds}) > 4,
        "greedy answers are equal": tokens(ask(temperature=0)) == tokens(greedy),
        "each token has a log-probability": all(map(finite, [*seeds, greedy, several, long])),
        "a text ends with its end or at its limit": all(map(ends, seeds)),
        "minTokens holds": len(tokens(long)) == 12,
        "choices are numbered": [choice["index"] for choice in several["choices"]] == [0, 1, 2],
        "usage counts all choices": several["usage"]["completion_tokens"]
        == sum(len(choice["token_ids"]) for choice in several["choices"]),
        "the prompt is that of /tokenize": greedy["prompt_token_ids"] == rendered,
        "a pause holds requests": waits(),
        "the stream has the same text": streamed_text(seed=5) == seeds[5]["choices"][0]["message"]["content"],
    }
    return [rule for rule, holds in rules.items() if not holds]


def metric_names(url: str) -> set[str]:
    """Return the names of the engine's metrics."""
    _, _, content = send(url, WireRequest("", "/metrics", token=False))
    return {line.split("{")[0].split(" ")[0] for line in content.decode().splitlines() if not line.startswith("#")}


def main() -> None:
    """Print what vLLM answers, as the file EXPECTED has it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with engine(VLLM, folder) as url:
            found = observe(url, wire_requests(folder), folder)
        with engine(VLLM, folder / "teacher", adapters=False) as url:
            found |= observe(url, [TEACHER, SCORES], folder)
    yaml.safe_dump(found, sys.stdout, sort_keys=False, allow_unicode=True, width=120)


if __name__ == "__main__":
    main()
