"""Converts the engine's response to a turn for training, and to the response that the client expects."""

import json
from collections.abc import Sequence
from typing import Any

from rlrun.api.base.received import read_fast
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import are_logprobs

from rlrun_orchestrator.data.trajectories import Turn
from rlrun_orchestrator.inference.gateway.sampling_rules import CompletionKind

LARGEST_TOKEN = 2**31 - 1


class InvalidEngineResponse(ValueError):
    """Error for an engine response that lacks the valid tokens or logprobs that training needs."""

    @property
    def problem(self) -> Problem:
        """Problem to report to the client and in the rollout."""
        return Problem(reason=Reason.INFERENCE_ANSWER_UNUSABLE, message=str(self))


def parse_turn(kind: CompletionKind, answer: dict[str, Any]) -> Turn:
    """Parse the token ids and logprobs of the only choice.

    A chat response of vLLM has the prompt's ids at the top level and logprobs in `content[].logprob`; a text completion
    has the prompt's ids in the choice and logprobs in `token_logprobs[]`. Raises InvalidEngineResponse.
    """
    try:
        choice = answer["choices"][0]
        completion_ids: list[int] = choice["token_ids"]
        if kind is CompletionKind.chat:
            prompt_ids: list[int] = answer["prompt_token_ids"]
            logprobs: list[float] = [token["logprob"] for token in (choice["logprobs"] or {}).get("content") or []]
        else:
            prompt_ids = choice["prompt_token_ids"]
            logprobs = (choice["logprobs"] or {}).get("token_logprobs") or []
    except (KeyError, IndexError, TypeError) as error:
        raise InvalidEngineResponse(
            f"the inference engine's response has no token ids or logprobs ({error!r}); the engine must support "
            "return_token_ids and logprobs (vLLM 0.10.2 or newer)"
        ) from error
    if completion_ids is None or prompt_ids is None or len(logprobs) != len(completion_ids):
        raise InvalidEngineResponse(
            f"the inference engine returned {len(logprobs)} logprobs for {len(completion_ids or [])} tokens; check "
            "whether the engine limits logprobs, or whether a proxy in front of it changes responses"
        )
    _check_tokens(prompt_ids, completion_ids, logprobs)
    return Turn.of(prompt_ids, completion_ids, logprobs, choice.get("finish_reason"))


def split_choices(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Split the engine's response into one response per choice, each with the usage of its choice.

    Raises InvalidEngineResponse.
    """
    try:
        prompt_tokens = int(answer["usage"]["prompt_tokens"])
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        lengths = [len(choice["token_ids"]) for choice in choices]
    except (KeyError, TypeError, ValueError) as error:
        message = f"the inference engine's response has no valid choices, token ids or usage ({error!r})"
        raise InvalidEngineResponse(message[:300]) from error
    return [
        answer
        | {"choices": [choice | {"index": 0}]}
        | {"usage": {"prompt_tokens": prompt_tokens, "completion_tokens": n, "total_tokens": prompt_tokens + n}}
        for choice, n in zip(choices, lengths, strict=True)
    ]


def join_choices(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one response with the choices of all responses. Each choice has its response's usage."""
    choices = [
        answer["choices"][0] | {"index": number, "usage": answer.get("usage")} for number, answer in enumerate(answers)
    ]
    return answers[0] | {"choices": choices}


def _check_tokens(prompt_ids: list[Any], completion_ids: list[Any], logprobs: list[Any]) -> None:
    """Raise InvalidEngineResponse for values for which the trainer would reject the whole batch."""
    if not prompt_ids or not (_are_token_ids(prompt_ids) and _are_token_ids(completion_ids)):
        raise InvalidEngineResponse("the inference engine returned no token ids, or invalid ones")
    if not are_logprobs(logprobs):
        wrong = next(number for number, logprob in enumerate(logprobs) if not are_logprobs([logprob]))
        raise InvalidEngineResponse(
            f"the inference engine returned {str(logprobs[wrong])[:50]} as the log-probability of token {wrong + 1} of "
            f"{len(logprobs)}, which is invalid, so this response is not used. If this happens often, check the dtype "
            "and quantization of the model and the engine's log"
        )


def _are_token_ids(values: list[Any]) -> bool:
    # Avoid a loop in Python, because a prompt has all tokens of the previous turns.
    return set(map(type, values)) <= {int} and min(values, default=0) >= 0 and max(values, default=0) <= LARGEST_TOKEN


def refusal_problem(status: int, data: bytes) -> Problem:
    """Return the problem of a request that the engine refused, for the rollout that sent it."""
    try:
        body = read_fast(data)
        said = str((body.get("error") or body)["message"])
    except (ValueError, TypeError, KeyError, AttributeError):
        said = data[:300].decode("utf-8", "replace")
    # If the tokenizer gave no length, vLLM's own message has the lengths.
    reason = Reason.PROMPT_TOO_LONG if "maximum context length" in said else Reason.REQUEST_REFUSED
    return Problem(reason=reason, message=f"the inference engine returned {status}: {said}"[:1000])


def strip_internal_fields(answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Return the response without fields that only the gateway requested."""
    keep_logprobs = bool(request.get("logprobs"))
    keep_ids = bool(request.get("return_token_ids"))
    answer = {k: v for k, v in answer.items() if keep_ids or k != "prompt_token_ids"}
    dropped = set() if keep_logprobs else {"logprobs"}
    dropped |= set() if keep_ids else {"token_ids", "prompt_token_ids"}
    answer["choices"] = [{k: v for k, v in choice.items() if k not in dropped} for choice in answer["choices"]]
    return answer


def to_event_stream(kind: CompletionKind, answer: dict[str, Any], *, include_usage: bool) -> bytes:
    """Encode a complete response as server-sent events.

    One chunk has all content, the next one the finish reason and, if `include_usage` is True, a third one the usage.
    The last event is `[DONE]`.
    """
    head: dict[str, Any] = {k: answer[k] for k in ("id", "created", "model") if k in answer}
    head["object"] = "chat.completion.chunk" if kind is CompletionKind.chat else "text_completion"
    choice = answer["choices"][0]
    rest = {k: v for k, v in choice.items() if k not in ("message", "text", "finish_reason", "stop_reason")}
    if kind is CompletionKind.chat:
        message = dict(choice["message"])
        if message.get("tool_calls"):
            message["tool_calls"] = [{"index": i, **call} for i, call in enumerate(message["tool_calls"])]
        first, last = rest | {"delta": message}, {"index": 0, "delta": {}}
    else:
        first, last = rest | {"text": choice["text"]}, {"index": 0, "text": ""}
    chunks: list[dict[str, Any]] = [
        head | {"choices": [first | {"finish_reason": None}]},
        head | {"choices": [last | {"finish_reason": choice.get("finish_reason")}]},
    ]
    if include_usage:
        chunks.append(head | {"choices": [], "usage": answer.get("usage")})
    events = [f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n" for chunk in chunks]
    return "".join([*events, "data: [DONE]\n\n"]).encode()
