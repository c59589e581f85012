"""Routes of the stub engine: those of vLLM that processes of the platform and users of a serving pool call."""

import asyncio
import importlib
import json
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

from fastapi import Body, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from tests.support.images.stub_engine.arguments import ENV_ADAPTERS, ENV_WEIGHTS, EngineArguments
from tests.support.images.stub_engine.completion import complete
from tests.support.images.stub_engine.errors import EngineError
from tests.support.images.stub_engine.language_model import LanguageModel
from tests.support.images.stub_engine.requests import (
    ChatRequest,
    LoadAdapterRequest,
    Prompt,
    SamplingRequest,
    TextRequest,
    TokenizeRequest,
    UnloadAdapterRequest,
)
from tests.support.images.stub_engine.responses import (
    Answer,
    Object,
    chat_events,
    chat_response,
    model_card,
    text_events,
    text_response,
)
from tests.support.images.stub_engine.served_models import ServedModel, ServedModels
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

ENV_TOKEN_SECONDS = "STUB_ENGINE_TOKEN_SECONDS"
TOKEN_SECONDS = 0.01
"""Seconds per token of a completion, so that a run lasts long enough to be observed."""


class StubEngine:
    """State behind the routes."""

    def __init__(self, arguments: EngineArguments, token_seconds: float) -> None:
        """Read the model's files. Raises OSError, and TokenizerUnsupported for another model than the example's."""
        self.tokenizer = CharacterTokenizer(arguments.model)
        self.models = ServedModels(arguments.served_model_name, arguments.model, arguments.max_lora_rank)
        self.max_model_len = arguments.max_model_len
        self.metrics = CollectorRegistry()
        self._language_model = LanguageModel(self.tokenizer)
        self._token_seconds = token_seconds
        names, values = ("engine", "model_name"), ("0", arguments.served_model_name)
        running = Gauge("vllm:num_requests_running", "Requests in progress.", names, registry=self.metrics)
        prompt = Counter("vllm:prompt_tokens", "Tokens of prompts.", names, registry=self.metrics)
        generated = Counter("vllm:generation_tokens", "Tokens generated.", names, registry=self.metrics)
        self._running = running.labels(*values)
        self._prompt, self._generated = prompt.labels(*values), generated.labels(*values)

    async def answer(self, request: SamplingRequest, prompts: Sequence[Sequence[int]]) -> tuple[ServedModel, Answer]:
        """Return the completions of a request, after the time that they take. Raises EngineError."""
        self.models.find(request.model)
        parameters = [request.parameters(prompt, self.max_model_len) for prompt in prompts]
        with self._running.track_inprogress():
            # Paused requests continue with the weights that are loaded meanwhile.
            await self.models.running.wait()
            model = self.models.find(request.model)
            completions = [
                complete(self._language_model, self.tokenizer, model.weights, prompt, chosen, index)
                for prompt, chosen in zip(prompts, parameters, strict=True)
                for index in range(request.n or 1)
            ]
            if not request.stream:
                await asyncio.sleep(self._token_seconds * max(len(made.token_ids) for made in completions))
        self._prompt.inc(sum(map(len, prompts)))
        self._generated.inc(sum(len(made.token_ids) for made in completions))
        top = request.prompt_logprobs
        scores = [None if top is None else self._prompt_logprobs(model, prompt, top) for prompt in prompts]
        return model, Answer(request, self.tokenizer, prompts, scores, completions)

    async def events(self, events: Iterator[Object]) -> AsyncIterator[bytes]:
        """Yield server-sent events at the pace of the tokens."""
        for event in events:
            yield b"data: " + json.dumps(event).encode() + b"\n\n"
            await asyncio.sleep(self._token_seconds)
            await self.models.running.wait()
        yield b"data: [DONE]\n\n"

    def prompts(self, prompt: Prompt) -> list[list[int]]:
        """Return the token ids of each prompt of a text completion."""
        is_one = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], int))
        every: list[Any] = [prompt] if is_one else list(prompt)
        return [self.cut(self.tokenizer.encode(one)) if isinstance(one, str) else list(one) for one in every]

    def cut(self, tokens: list[int]) -> list[int]:
        """Return the tokens of a text up to one behind the limit, where vLLM's tokenizer stops."""
        return tokens[: self.max_model_len + 1]

    def _prompt_logprobs(self, model: ServedModel, prompt: Sequence[int], top: int) -> list[Object | None]:
        """Return the log-probabilities of each token of a prompt and of the `top` likeliest, None for the first."""
        found: list[Object | None] = [None]
        for at in range(1, len(prompt)):
            probabilities = self._language_model.next_token(model.weights, prompt[:at])
            ranked = sorted(probabilities, key=lambda other: -probabilities[other])
            entries = {}
            for token in dict.fromkeys([prompt[at], *ranked[:top]]):
                rank = 1 + sum(value > probabilities[token] for value in probabilities.values())
                entry = {"logprob": math.log(probabilities[token]), "rank": rank}
                entries[str(token)] = entry | {"decoded_token": self.tokenizer.decode([token])}
            found.append(entries)
        return found


def create_app(arguments: EngineArguments, variables: Mapping[str, str]) -> FastAPI:
    """Return the application with the routes that `variables` enable, behind the middleware of the arguments."""
    engine = StubEngine(arguments, float(variables.get(ENV_TOKEN_SECONDS, TOKEN_SECONDS)))
    app = FastAPI(openapi_url=None)
    _add_routes(app, engine)
    if variables.get(ENV_ADAPTERS, "").lower() in ("1", "true"):
        _add_adapter_routes(app, engine.models)
    if variables.get(ENV_WEIGHTS) == "1":
        _add_weight_routes(app, engine.models)
    _add_error_handlers(app)
    for name in arguments.middleware:
        module, _, attribute = name.rpartition(".")
        app.add_middleware(getattr(importlib.import_module(module), attribute))
    return app


def _add_routes(app: FastAPI, engine: StubEngine) -> None:
    async def health() -> Response:
        return Response(status_code=200)

    async def metrics() -> Response:
        return Response(generate_latest(engine.metrics), media_type=CONTENT_TYPE_LATEST)

    async def models() -> Object:
        cards = [model_card(model, engine.max_model_len) for model in engine.models.all()]
        return {"object": "list", "data": cards}

    async def chat(request: ChatRequest) -> Response:
        prompt = request.prompt_token_ids or engine.cut(engine.tokenizer.render(request.messages))
        model, answer = await engine.answer(request, [prompt])
        if request.stream:
            events = chat_events(answer, request, model)
            return StreamingResponse(engine.events(events), media_type="text/event-stream")
        return JSONResponse(chat_response(answer, request, model))

    async def text(request: TextRequest) -> Response:
        model, answer = await engine.answer(request, engine.prompts(request.prompt))
        if request.stream:
            events = text_events(answer, request, model)
            return StreamingResponse(engine.events(events), media_type="text/event-stream")
        return JSONResponse(text_response(answer, request, model))

    async def tokenize(request: TokenizeRequest) -> Object:
        engine.models.find(request.model)
        if request.messages is not None:
            tokens = engine.tokenizer.render(request.messages)
        else:
            tokens = engine.tokenizer.encode(request.prompt or "")
        names = [engine.tokenizer.decode([token]) for token in tokens] if request.return_token_strs else None
        return {"count": len(tokens), "max_model_len": engine.max_model_len, "tokens": tokens, "token_strs": names}

    app.get("/health")(health)
    app.get("/metrics")(metrics)
    app.get("/v1/models")(models)
    app.post("/v1/chat/completions")(chat)
    app.post("/v1/completions")(text)
    app.post("/tokenize")(tokenize)


def _add_adapter_routes(app: FastAPI, models: ServedModels) -> None:
    async def load(request: LoadAdapterRequest) -> Response:
        models.load_adapter(request.lora_name, request.lora_path)
        return PlainTextResponse(f"Success: LoRA adapter '{request.lora_name}' added successfully.")

    async def unload(request: UnloadAdapterRequest) -> Response:
        models.unload_adapter(request.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")

    app.post("/v1/load_lora_adapter")(load)
    app.post("/v1/unload_lora_adapter")(unload)


def _add_weight_routes(app: FastAPI, models: ServedModels) -> None:
    async def weight_info() -> Object:
        return {"weight_version": models.version}

    async def update_weight_version(new_version: Annotated[str, Body(embed=True)]) -> Object:
        models.version = new_version
        return {"success": True, "new_version": new_version}

    async def pause() -> Object:
        models.running.clear()
        return {"status": "paused"}

    async def resume() -> Object:
        models.running.set()
        return {"status": "resumed"}

    async def collective_rpc(method: Annotated[str, Body()], kwargs: Annotated[dict[str, Any], Body()]) -> Object:
        if method != "reload_weights":
            raise EngineError(500, "InternalServerError", f"the stub has no method {method}")
        models.reload_weights(kwargs["weights_path"])
        return {"results": [None]}

    async def reset_prefix_cache() -> Object:
        return {"success": True}

    app.get("/weight_info")(weight_info)
    app.post("/update_weight_version")(update_weight_version)
    app.post("/pause")(pause)
    app.post("/resume")(resume)
    app.post("/collective_rpc")(collective_rpc)
    app.post("/reset_prefix_cache")(reset_prefix_cache)


def _add_error_handlers(app: FastAPI) -> None:
    def handle(kind: type[Exception], as_engine_error: Callable[[Any], EngineError]) -> None:
        async def handler(_: Request, error: Exception) -> Response:
            found = as_engine_error(error)
            return JSONResponse(found.body(), found.status)

        app.add_exception_handler(kind, handler)

    handle(EngineError, lambda error: error)
    handle(RequestValidationError, _validation_error)
    handle(Exception, lambda error: EngineError(500, "InternalServerError", str(error)))


def _validation_error(error: RequestValidationError) -> EngineError:
    place = ".".join(map(str, error.errors()[0]["loc"]))
    return EngineError(400, "Bad Request", str(error), place)
