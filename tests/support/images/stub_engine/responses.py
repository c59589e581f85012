"""Bodies of responses, field by field those of vLLM. tests/support/engine_wire.py compares them."""

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.images.stub_engine.completion import Completion
from tests.support.images.stub_engine.requests import ChatRequest, SamplingRequest, TextRequest
from tests.support.images.stub_engine.served_models import ServedModel
from tests.support.images.stub_engine.tokenizer import CharacterTokenizer

Object = dict[str, Any]
FINGERPRINT = "stub-engine"


@dataclass(frozen=True)
class Answer:
    """All completions of a request. `completions` has `n` choices of each prompt, one prompt after the other."""

    request: SamplingRequest
    tokenizer: CharacterTokenizer
    prompts: Sequence[Sequence[int]]
    prompt_logprobs: Sequence[list[Object | None] | None]
    completions: Sequence[Completion]

    def usage(self) -> Object:
        """Return the numbers of tokens."""
        prompt = sum(map(len, self.prompts))
        completion = sum(len(made.token_ids) for made in self.completions)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + completion,
            "completion_tokens": completion,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }

    def prompt_of(self, index: int) -> int:
        """Return the number of the prompt of a choice."""
        return index // (self.request.n or 1)

    def token_ids(self, made: Completion, start: int, end: int) -> list[int] | None:
        """Return a part of the choice's token ids, if the client asked for them."""
        return made.token_ids[start:end] if self.request.return_token_ids else None

    def prompt_ids(self, index: int) -> list[int] | None:
        """Return the token ids of a choice's prompt, if the client asked for them."""
        return list(self.prompts[self.prompt_of(index)]) if self.request.return_token_ids else None

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with the numbers of tokens."""
        return self.request.stream_options is not None and self.request.stream_options.include_usage

    @staticmethod
    def ends(made: Completion, at: int) -> bool:
        """Return whether a choice ends with its token at this position."""
        return at + 1 == len(made.token_ids)

    def fingerprint(self, made: Completion, at: int) -> Object:
        """Return the field of a stream's last event, if that is the event of this token."""
        return {"system_fingerprint": FINGERPRINT} if self.ends(made, at) and not self.wants_usage else {}

    def pieces(self, made: Completion) -> list[str]:
        """Return the part of the text that each token adds."""
        ends = [0]
        for count in range(1, len(made.token_ids) + 1):
            text = self.tokenizer.decode(made.token_ids[:count], skip_special=self.request.skip_special_tokens)
            ends.append(min(len(text), len(made.text)))
        return [made.text[a:b] for a, b in itertools.pairwise(ends)]


def model_card(model: ServedModel, max_model_len: int) -> Object:
    """Return an entry of `/v1/models`."""
    permission = {
        "id": f"modelperm-{secrets.token_hex(8)}", "object": "model_permission", "created": _now(),
        "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True, "allow_search_indices": False,
        "allow_view": True, "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
    }  # fmt: skip
    return {
        "id": model.name,
        "object": "model",
        "created": _now(),
        "owned_by": "vllm",
        "root": model.path,
        "parent": model.parent,
        "max_model_len": None if model.parent else max_model_len,
        "permission": [permission],
    }


def chat_response(answer: Answer, request: ChatRequest, model: ServedModel) -> Object:
    """Return the response to a chat."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant", "content": made.text, "refusal": None, "annotations": None, "audio": None,
                "function_call": None, "reasoning": None,
            },
            "logprobs": _chat_logprobs(answer, made, request, 0, len(made.token_ids)),
            "finish_reason": made.finish_reason,
            "stop_reason": made.stop_reason,
            "token_ids": answer.token_ids(made, 0, len(made.token_ids)),
            "routed_experts": None,
        }
        for index, made in enumerate(answer.completions)
    ]  # fmt: skip
    return _head("chatcmpl", "chat.completion", model) | {
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": answer.usage(),
        "prompt_logprobs": answer.prompt_logprobs[0],
        "prompt_token_ids": answer.prompt_ids(0),
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def chat_events(answer: Answer, request: ChatRequest, model: ServedModel) -> Iterator[Object]:
    """Yield the events of a streamed chat."""
    head = _head("chatcmpl", "chat.completion.chunk", model)
    for index in range(len(answer.completions)):
        first = {"role": "assistant", "content": ""}
        choice = {"index": index, "delta": first, "logprobs": None, "finish_reason": None}
        yield head | {"choices": [choice], "prompt_token_ids": answer.prompt_ids(index), "prompt_text": None}
    for index, made in enumerate(answer.completions):
        for at, piece in enumerate(answer.pieces(made)):
            choice = {
                "index": index,
                "delta": {"content": piece},
                "logprobs": _chat_logprobs(answer, made, request, at, at + 1),
                "finish_reason": made.finish_reason if answer.ends(made, at) else None,
                "token_ids": answer.token_ids(made, at, at + 1),
            }
            if answer.ends(made, at):
                choice["stop_reason"] = made.stop_reason
            yield head | {"choices": [choice]} | answer.fingerprint(made, at)
    yield from _usage_event(answer, head)


def text_response(answer: Answer, request: TextRequest, model: ServedModel) -> Object:
    """Return the response to a text completion."""
    choices = [
        {
            "index": index,
            "text": made.text,
            "logprobs": _text_logprobs(answer, made, request, 0, len(made.token_ids)),
            "finish_reason": made.finish_reason,
            "stop_reason": made.stop_reason,
            "token_ids": answer.token_ids(made, 0, len(made.token_ids)),
            "prompt_logprobs": answer.prompt_logprobs[answer.prompt_of(index)],
            "prompt_token_ids": answer.prompt_ids(index),
            "routed_experts": None,
        }
        for index, made in enumerate(answer.completions)
    ]
    return _head("cmpl", "text_completion", model) | {
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": FINGERPRINT,
        "usage": answer.usage(),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def text_events(answer: Answer, request: TextRequest, model: ServedModel) -> Iterator[Object]:
    """Yield the events of a streamed text completion."""
    head = _head("cmpl", "text_completion", model)
    for index, made in enumerate(answer.completions):
        for at, piece in enumerate(answer.pieces(made)):
            choice = {
                "index": index,
                "text": piece,
                "logprobs": _text_logprobs(answer, made, request, at, at + 1),
                "finish_reason": made.finish_reason if answer.ends(made, at) else None,
                "stop_reason": made.stop_reason if answer.ends(made, at) else None,
                "prompt_token_ids": answer.prompt_ids(index) if at == 0 else None,
                "token_ids": answer.token_ids(made, at, at + 1),
            }
            yield head | {"choices": [choice]} | answer.fingerprint(made, at)
    yield from _usage_event(answer, head)


def _now() -> int:
    return int(time.time())


def _head(prefix: str, kind: str, model: ServedModel) -> Object:
    return {"id": f"{prefix}-{secrets.token_hex(16)}", "object": kind, "created": _now(), "model": model.name}


def _usage_event(answer: Answer, head: Object) -> Iterator[Object]:
    if answer.wants_usage:
        usage = {name: value for name, value in answer.usage().items() if value is not None}
        yield head | {"choices": [], "usage": usage, "system_fingerprint": FINGERPRINT}


def _top(logprobs: dict[int, float], token: int, count: int) -> list[int]:
    """Return the ids of the `count` most likely tokens, after the one that was drawn."""
    return [token, *sorted(logprobs, key=lambda other: -logprobs[other])[:count]]


def _chat_logprobs(answer: Answer, made: Completion, request: ChatRequest, start: int, end: int) -> Object | None:
    if not request.logprobs:
        return None

    def entry(token: int, logprobs: dict[int, float]) -> Object:
        text = answer.tokenizer.decode([token])
        return {"token": text, "logprob": logprobs[token], "bytes": list(text.encode())}

    content = [
        entry(token, logprobs)
        | {"top_logprobs": [entry(o, logprobs) for o in _top(logprobs, token, request.top_logprobs or 0)[1:]]}
        for token, logprobs in zip(made.token_ids[start:end], made.logprobs[start:end], strict=True)
    ]
    return {"content": content}


def _text_logprobs(answer: Answer, made: Completion, request: TextRequest, start: int, end: int) -> Object | None:
    if request.logprobs is None:
        return None

    def name(token: int) -> str:
        return f"token_id:{token}" if request.return_tokens_as_token_ids else answer.tokenizer.decode([token])

    tokens = [name(token) for token in made.token_ids]
    offsets = [sum(map(len, tokens[:position])) for position in range(start, end)]
    chosen = list(zip(made.token_ids, made.logprobs, strict=True))[start:end]
    return {
        "text_offset": offsets,
        "token_logprobs": [logprobs[token] for token, logprobs in chosen],
        "tokens": tokens[start:end],
        "top_logprobs": [
            {name(o): logprobs[o] for o in _top(logprobs, token, request.logprobs)} for token, logprobs in chosen
        ],
    }
