"""Rules for requests to the engine: the conversation comes from the environment, the distribution from the run.

The trainer computes the policy's probabilities under the run's own sampling section. Any other change of the
distribution would silently make its importance ratios wrong. Each field of a request is therefore forwarded, rejected
with an explanation, replaced by the run's value, or dropped.

Several fields make the engine restrict tokens to a grammar, which renormalizes its distribution and its
log-probabilities. docs/design/010 lists them all, with the decision on each.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from rlrun.api.run_sections.rollouts import Sampling, SamplingOverrides
from rlrun.constants import Reason
from rlrun.protocol.environment import MAX_SHARED_TOKENS
from rlrun.protocol.problem import Problem
from rlrun.service.errors import ProblemError
from rlrun.service.message_content import refused_content


class CompletionKind(StrEnum):
    """Sampling route of the OpenAI API. The value is the engine's path."""

    chat = "/v1/chat/completions"
    text = "/v1/completions"


FORWARDED_FIELDS: dict[CompletionKind, frozenset[str]] = {
    CompletionKind.chat: frozenset(
        {
            "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "reasoning_effort",
            "add_generation_prompt", "continue_final_message", "documents", "mm_processor_kwargs", "stop",
            "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "top_logprobs", "include_reasoning",
        }
    ),
    CompletionKind.text: frozenset(
        {"prompt", "add_special_tokens", "stop", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"}
    ),
}  # fmt: skip
REJECTED_FIELDS = frozenset(
    {
        "logit_bias", "response_format", "structured_outputs", "structural_tag", "guided_json", "guided_json_object",
        "guided_regex", "guided_choice", "guided_grammar", "allowed_token_ids", "bad_words", "use_beam_search",
        "prompt_embeds",
    }
)  # fmt: skip
IGNORED_FIELDS: dict[str, Any] = {"response_format": {"type": "text"}, "use_beam_search": False}
"""Values of rejected fields that have no effect and are therefore accepted."""
NEUTRAL_DISTRIBUTION: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}  # fmt: skip
"""Fields that change the distribution, with the values that leave it unchanged. All are sent, because the engine's
defaults come from the model's generation_config.json.
"""
REPLACED_FIELDS = (*NEUTRAL_DISTRIBUTION, "min_tokens", "seed")
"""Fields of a request that are replaced by the run's values."""
NO_TOP_K = -1
"""Alternative spelling of 0 for `top_k`."""
REASONING_EFFORT = "reasoning_effort"
"""Chat template variable that is also a field of chat requests."""
FREE_TOOL_CHOICES = (None, "none", "auto")
"""Values of `tool_choice` that do not force any tokens."""


class BadRequest(ValueError):
    """Error for an invalid request. The message addresses the environment's author."""

    @property
    def problem(self) -> Problem:
        """Problem to report in the rollout that sent the request."""
        return Problem(reason=Reason.REQUEST_REFUSED, message=str(self)[:1000])


class PromptTooLong(ProblemError):
    """Error for a prompt that leaves no tokens for an answer within seqLen."""

    def __init__(self, prompt_tokens: int, seq_len: int) -> None:
        # Clients such as verifiers recognize the first words and end the rollout as truncated.
        message = (
            f"This model's maximum context length is {seq_len} tokens (seqLen of the RLModel). However, your prompt "
            f"has {prompt_tokens} tokens, which leaves none for an answer. Shorten the prompt, end conversations "
            "earlier, or choose a model with a higher seqLen."
        )
        super().__init__(400, Problem(reason=Reason.PROMPT_TOO_LONG, message=message))


@dataclass(frozen=True)
class SamplingSeedKey:
    """Position of a request in the run. It consists only of counters, so the seed does not depend on timing.

    For a given turn, the rollouts of a group have consecutive seeds. For choice i of a request, vLLM uses the request's
    seed plus i, so a rollout gets the same seed in a request of its own and in one for several rollouts.
    """

    group: int
    """Ordinal of the group in the run."""
    rollout: int
    """Position of the rollout in its group, by first request."""
    turn: int
    """Number of earlier requests of the rollout."""
    training: bool = True
    """False for evaluations, which are counted separately."""

    def seed(self, run_seed: int) -> int:
        """Return a number below 2**63 that is unique in the run and the same in every repetition of the run."""
        text = f"{run_seed}/{self.training:d}/{self.group}/{self.turn}"
        return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 2) + self.rollout


@dataclass(frozen=True)
class SamplingRules:
    """Run's `sampling` section as fields of an OpenAI request."""

    sampling: Sampling
    """The run's section, completed with the model's defaults, so that max_tokens is set."""
    seq_len: int | None = None
    """Maximum number of tokens of prompt and answer. None means no limit besides the engine's."""

    def with_overrides(self, *given: SamplingOverrides | None) -> "SamplingRules":
        """Return rules with the given overrides applied in order. Later overrides take precedence over earlier ones."""
        sampling = self.sampling
        for overrides in given:
            sampling = overrides.apply_to(sampling) if overrides is not None else sampling
        return replace(self, sampling=sampling)

    @property
    def max_tokens(self) -> int:
        """Maximum number of completion tokens per turn."""
        assert self.sampling.max_tokens is not None
        return self.sampling.max_tokens

    @property
    def client_fields(self) -> dict[str, object]:
        """Sampling parameters that environments request. The gateway adds the other parameters."""
        return {"temperature": self.sampling.temperature, "max_tokens": self.max_tokens}

    def with_template(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return a chat request with the run's chat template variables added; they override the client's.

        Call this before the request is rendered. Raises BadRequest.
        """
        variables = self.sampling.template_variables
        if not variables:
            return body
        theirs = body.get("chat_template_kwargs") or {}
        if not isinstance(theirs, dict):
            raise BadRequest(f"chat_template_kwargs must be an object, not {theirs!r}"[:300])
        rendered = {**body, "chat_template_kwargs": {**theirs, **variables}}
        if REASONING_EFFORT in variables:
            # The engine renders gpt-oss without a template, and reads this field instead.
            rendered[REASONING_EFFORT] = variables[REASONING_EFFORT]
        return rendered

    def to_engine_request(
        self,
        kind: CompletionKind,
        body: dict[str, Any],
        model: str,
        seed_key: SamplingSeedKey,
        *,
        rollouts: int = 1,
        prompt_tokens: int | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> dict[str, Any]:
        """Return the request for the engine, with one choice for each of the `rollouts`. `seed_key` belongs to the
        first rollout. `prompt_tokens` is the prompt's length, or None if it is unknown; it is ignored for a prompt of
        token ids, whose length is known. `prompt_ids` are tokens that the engine uses instead of rendering the messages
        of a chat. Raises BadRequest and PromptTooLong.
        """
        check(kind, body, rollouts)
        given = body.get("prompt") if prompt_ids is None else prompt_ids
        if given is not None and not isinstance(given, str):
            prompt_tokens = len(given)
        forwarded = FORWARDED_FIELDS[kind]
        requested = {name: value for name, value in body.items() if name in forwarded and value is not None}
        if requested.get("parallel_tool_calls") is not True:
            requested.pop("parallel_tool_calls", None)
        if isinstance(requested.get("tools"), list):
            requested["tools"] = [without_strict(tool) for tool in requested["tools"]]
        limit = self._limit(body, prompt_tokens)
        sampling = self.sampling
        distribution = sampling.model_dump(include=set(NEUTRAL_DISTRIBUTION), exclude_none=True)
        request = requested | {
            "model": model,
            "max_tokens": limit,
            **(NEUTRAL_DISTRIBUTION | distribution),
            "n": rollouts,
            "stream": False,
            "logprobs": True if kind is CompletionKind.chat else 0,
            "return_token_ids": True,
        }
        if sampling.stop:
            theirs = requested.get("stop") or []
            request["stop"] = list(dict.fromkeys([*sampling.stop, *([theirs] if isinstance(theirs, str) else theirs)]))
        if sampling.min_tokens:
            if requested.get("stop_token_ids"):
                # The engine would also ban these ids among the first min_tokens tokens, and the trainer would not.
                raise BadRequest(
                    "stop_token_ids cannot be combined with the run's sampling.minTokens; use stop instead"
                )
            request["min_tokens"] = min(sampling.min_tokens, limit)
        if prompt_ids is not None:
            # In a disaggregated vLLM, the prefill stage passes its tokens to the decode stage in this field.
            request["kv_transfer_params"] = {"prompt_token_ids": list(prompt_ids)}
        if sampling.seed is not None:
            # With the same seed, all rollouts of a group would be equal.
            request["seed"] = seed_key.seed(sampling.seed)
        return request

    def cuts(self, body: dict[str, Any], prompt_tokens: int) -> bool:
        """Return True if a prompt of this length leaves fewer completion tokens than the request's limit. Raises
        BadRequest.
        """
        return self.seq_len is not None and prompt_tokens + self._limit(body, None) > self.seq_len

    def is_short(self, body: dict[str, Any]) -> bool:
        """Return True if several rollouts may share a request with this body. Raises BadRequest."""
        return self._limit(body, None) <= MAX_SHARED_TOKENS

    def _limit(self, body: dict[str, Any], prompt_tokens: int | None) -> int:
        requested = body.get("max_completion_tokens") or body.get("max_tokens") or self.max_tokens
        if isinstance(requested, bool) or not isinstance(requested, int) or requested < 1:
            raise BadRequest(f"max_tokens must be a whole number above 0, not {requested!r}")
        limit = min(requested, self.max_tokens)
        if prompt_tokens is None or self.seq_len is None:
            return limit
        if prompt_tokens >= self.seq_len:
            raise PromptTooLong(prompt_tokens, self.seq_len)
        return min(limit, self.seq_len - prompt_tokens)


def check(kind: CompletionKind, body: dict[str, Any], rollouts: int = 1) -> None:
    """Check that the response to a request with this body, with one choice for each of the `rollouts`, can be trained
    on. Raises BadRequest.
    """
    for name in REJECTED_FIELDS & body.keys():
        value = body[name]
        if value is not None and value != IGNORED_FIELDS.get(name) and value != [] and value != {}:
            raise BadRequest(
                f"{name} is not available in a training run, because it changes the distribution from which tokens "
                "are sampled and the trainer cannot reproduce it; remove it and check the answer in the environment"
            )
    if kind is CompletionKind.chat:
        _check_tools(body)
    stop = body.get("stop")
    if stop is not None and not isinstance(stop, str) and not (isinstance(stop, list) and all(map(_is_text, stop))):
        raise BadRequest(f"stop must be a string or a list of strings, not {stop!r}"[:300])
    if not isinstance(body.get("stream_options") or {}, dict):
        raise BadRequest("stream_options must be an object")
    if (body.get("n") or 1) != rollouts:
        raise BadRequest(
            f"n must be {rollouts}, the number of the request's rollouts, because a rollout is one conversation; "
            "increase rollouts_per_example instead"
        )
    if rollouts > 1 and body.get("stream"):
        raise BadRequest("stream is not available for several rollouts; send a request for each")
    needed = "messages" if kind is CompletionKind.chat else "prompt"
    if not body.get(needed):
        raise BadRequest(f"{needed} is missing")
    if kind is CompletionKind.chat:
        if not isinstance(body["messages"], list):
            raise BadRequest("messages must be a list of objects with role and content")
        other = refused_content(body["messages"], media=False)
        if other is not None:
            raise BadRequest(
                f"{other}, but a training run accepts only text, because the trainer sees no other content. Describe "
                "the content in text, or remove it"
            )
    prompt = body.get("prompt")
    if kind is CompletionKind.text and isinstance(prompt, list) and not all(isinstance(token, int) for token in prompt):
        raise BadRequest("prompt must be a single string or a single list of token ids")


def ignored_constraints(body: dict[str, Any]) -> list[str]:
    """Return the fields on which a client may rely but which are not sent to the engine. Used for a warning."""
    tools = body.get("tools")
    strict = isinstance(tools, list) and any(_is_strict(tool) for tool in tools)
    return ["tools[].function.strict"] if strict else []


def replaced_fields(body: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """Return the fields of a client's request whose values differ in the request to the engine."""
    asked = {name: body[name] for name in REPLACED_FIELDS if body.get(name) is not None}
    if asked.get("top_k") == NO_TOP_K:
        asked["top_k"] = 0
    return [name for name, value in asked.items() if value != request.get(name)]


def _check_tools(body: dict[str, Any]) -> None:
    """Reject options that make the engine force tokens of tool calls. Raises BadRequest."""
    choice = body.get("tool_choice")
    if not any(choice is free or choice == free for free in FREE_TOOL_CHOICES):
        raise BadRequest(
            f"tool_choice {repr(choice)[:100]} is not available in a training run, because the engine would force the "
            'tokens of a call, which the trainer cannot reproduce; remove it or send "auto", and reward desired calls'
        )
    parallel = body.get("parallel_tool_calls")
    if body.get("tools") and choice != "none" and parallel not in (None, True):
        raise BadRequest(
            f"parallel_tool_calls {repr(parallel)[:100]} is not available in a training run, because the engine would "
            "forbid the tokens of a second call and the trainer cannot reproduce this; remove it, and answer or "
            "penalize further calls in the environment"
        )


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    # The engine reads 1 and "yes" as true.
    return isinstance(function, dict) and function.get("strict") not in (None, False)


def without_strict(tool: Any) -> Any:
    """Return the tool without `strict`, which would make the engine force arguments to follow their schema."""
    if not _is_strict(tool):
        return tool
    return tool | {"function": {name: value for name, value in tool["function"].items() if name != "strict"}}


def _is_text(value: object) -> bool:
    return isinstance(value, str)
