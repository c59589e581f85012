"""From a run's spec to what the gateway asks of the engine: seeds and exact prefixes."""

from typing import Any

import pytest
from rlrun.api.run_sections.rollouts import Sampling
from rlrun.protocol.resolved import ResolvedRun
from rlrun_orchestrator.config_mapping import exact_prefixes, sampling_rules
from rlrun_orchestrator.inference.gateway.sampling_rules import (
    BadRequest,
    CompletionKind,
    PromptTooLong,
    SamplingRules,
    SamplingSeedKey,
    ignored_constraints,
)


def resolved(inference: dict[str, Any] | None = None, **spec: Any) -> ResolvedRun:
    base = {"model": "a/b", "sampling": {"maxTokens": 8}, "env": [{"id": "o/e"}], "seed": 11}
    return ResolvedRun.model_validate(
        {
            "run": {"namespace": "ns", "name": "run", "uid": "uid-1", "attempt": 1},
            "spec": base | spec,
            "model": {"id": "a/b", "source": f"hf://a/b@{'0' * 40}", "inference": inference or {}},
            "endpoints": {"trainerUrl": "", "inferenceHost": "", "gatewayUrl": "", "environments": []},
            "artifacts": {"runUri": "s3://b/r", "environmentsUri": "s3://b/e"},
        }
    )


ON_POLICY = {"maxAsyncLevel": 0, "oversamplingFactor": 1.0}


@pytest.mark.proves("sampling.seed", "seed")
@pytest.mark.parametrize(
    ("spec", "seed"),
    [
        ({}, None),
        (ON_POLICY, 11),
        (ON_POLICY | {"sampling": {"maxTokens": 8, "seed": 5}}, 5),
        ({"sampling": {"maxTokens": 8, "seed": 0}}, 0),
    ],
)
def test_a_seed_is_sent_where_one_is_given_or_the_run_is_on_policy(spec: dict[str, Any], seed: int | None) -> None:
    draw = SamplingSeedKey(group=3, rollout=1, turn=0)
    asked = sampling_rules(resolved(**spec)).to_engine_request(CompletionKind.chat, {"messages": [{}]}, "m", draw)
    assert asked.get("seed") == (None if seed is None else draw.seed(seed))


@pytest.mark.proves(
    "sampling.maxTokens",
    "sampling.temperature",
    "sampling.topP",
    "sampling.minP",
    "sampling.stop",
    "sampling.minTokens",
    "sampling.repetitionPenalty",
)
def test_every_field_of_sampling_reaches_the_engine() -> None:
    sampling = {
        "maxTokens": 8, "temperature": 0.7, "topP": 0.9, "minP": 0.1, "stop": ["END"], "minTokens": 2,
        "repetitionPenalty": 1.1,
    }  # fmt: skip
    asked = sampling_rules(resolved(sampling=sampling)).to_engine_request(
        CompletionKind.chat, {"messages": [{}]}, "m", SamplingSeedKey(0, 0, 0)
    )
    names = ("max_tokens", "temperature", "top_p", "min_p", "stop", "min_tokens", "repetition_penalty")
    assert [asked[name] for name in names] == [8, 0.7, 0.9, 0.1, ["END"], 2, 1.1]
    assert asked["top_k"] == 0, "nothing else may bend the distribution"
    assert (asked["presence_penalty"], asked["frequency_penalty"]) == (0.0, 0.0), "nor the model's own defaults"


@pytest.mark.proves("sampling.enableThinking", "sampling.reasoningEffort")
@pytest.mark.parametrize(
    ("sampling", "asked", "sent"),
    [
        ({"enableThinking": False}, {}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"reasoningEffort": "low"},
            {},
            {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "low"},
        ),
        (
            {"enableThinking": False},
            {"chat_template_kwargs": {"enable_thinking": True, "tools_in_user_message": False}},
            {"chat_template_kwargs": {"enable_thinking": False, "tools_in_user_message": False}},
        ),
        ({"reasoningEffort": "high"}, {"reasoning_effort": "low"}, {"reasoning_effort": "high"}),
        ({}, {"chat_template_kwargs": {"enable_thinking": True}}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({}, {}, {}),
    ],
)
def test_the_runs_variables_of_the_chat_template_replace_those_of_a_request(
    sampling: dict[str, Any], asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    rules = sampling_rules(resolved(sampling={"maxTokens": 8} | sampling))
    body = rules.with_template({"messages": [{}], **asked})
    request = rules.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))
    assert request.items() >= sent.items()
    assert sent or not {"chat_template_kwargs", "reasoning_effort"} & request.keys()


def test_template_variables_that_are_no_object_are_refused() -> None:
    rules = sampling_rules(resolved(sampling={"enableThinking": True}))
    with pytest.raises(BadRequest, match="must be an object"):
        rules.with_template({"messages": [{}], "chat_template_kwargs": "text"})


def test_a_run_without_max_tokens_has_those_of_its_model() -> None:
    """The operator writes them into the configuration; one of an older operator may lack them."""
    assert sampling_rules(resolved(sampling={})).max_tokens == 2048
    assert sampling_rules(resolved(sampling={})).client_fields["max_tokens"] == 2048


def test_stop_tokens_of_a_client_that_the_engine_would_ban_unseen_are_refused() -> None:
    body = {"messages": [{}], "stop_token_ids": [5]}
    banning = sampling_rules(resolved(sampling={"maxTokens": 8, "minTokens": 2}))
    with pytest.raises(BadRequest, match="minTokens"):
        banning.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))
    plain = sampling_rules(resolved(sampling={"maxTokens": 8}))
    assert plain.to_engine_request(CompletionKind.chat, body, "m", SamplingSeedKey(0, 0, 0))["stop_token_ids"] == [5]


def test_turns_are_bridged_where_they_are_joined_also_if_the_engine_parses_reasoning() -> None:
    assert exact_prefixes(resolved())
    assert not exact_prefixes(resolved(trajectoryStrategy="branching"))
    assert exact_prefixes(resolved({"extraArgs": ["--reasoning-parser", "qwen3"]}))


def test_tokens_of_a_prompt_take_the_place_of_the_messages_and_leave_the_rest_of_seq_len() -> None:
    rules = SamplingRules(Sampling(max_tokens=8), seq_len=10)
    body = {"messages": [{"role": "user", "content": "q"}], "kv_transfer_params": {"do_remote_prefill": True}}
    key = SamplingSeedKey(0, 0, 0)
    made = rules.to_engine_request(CompletionKind.chat, body, "m", key, prompt_ids=[1, 2, 3, 4, 5])
    assert (made["kv_transfer_params"], made["max_tokens"]) == ({"prompt_token_ids": [1, 2, 3, 4, 5]}, 5)
    assert "kv_transfer_params" not in rules.to_engine_request(CompletionKind.chat, body, "m", key)
    with pytest.raises(PromptTooLong):
        rules.to_engine_request(CompletionKind.chat, body, "m", key, prompt_ids=[1] * 10)


# --- constrained decoding ---------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": SCHEMA, **function}}


NAMED = {"type": "function", "function": {"name": "f"}}
JSON = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
TOOLS = {"tools": [tool()]}

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("response_format", {"response_format": {"type": "json_object"}}),
    ("response_format", {"response_format": JSON}),
    ("response_format", {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}}),
    ("structured_outputs", {"structured_outputs": {"choice": ["a", "b"]}}),
    ("structural_tag", {"structural_tag": "{}"}),
    ("guided_json", {"guided_json": SCHEMA}),
    ("guided_regex", {"guided_regex": "[ab]"}),
    ("guided_choice", {"guided_choice": ["a", "b"]}),
    ("guided_grammar", {"guided_grammar": 'root ::= "a"'}),
    ("guided_json_object", {"guided_json_object": True}),
    ("tool_choice", {**TOOLS, "tool_choice": "required"}),
    ("tool_choice", {**TOOLS, "tool_choice": NAMED}),
    ("tool_choice", {**TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required"}}}),
    ("parallel_tool_calls", {**TOOLS, "parallel_tool_calls": False}),
    # The engine's parser reads these as false, too.
    ("parallel_tool_calls", {**TOOLS, "tool_choice": "auto", "parallel_tool_calls": "off"}),
    ("parallel_tool_calls", {**TOOLS, "parallel_tool_calls": 0}),
]
"""Requests that the engine answers with constrained tokens and that mean something else without the constraint."""

STRIPPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tools": [tool(strict=True)]}, TOOLS),
    ({"tools": [tool(strict="yes"), tool(strict=1)]}, {"tools": [tool(), tool()]}),
    ({"tools": [tool(strict=True)], "tool_choice": "auto"}, {**TOOLS, "tool_choice": "auto"}),
    ({"parallel_tool_calls": False}, {}),
    ({**TOOLS, "tool_choice": "none", "parallel_tool_calls": False}, {**TOOLS, "tool_choice": "none"}),
    ({"guided_decoding_backend": "xgrammar", "guided_whitespace_pattern": " "}, {}),
    ({"response_format": {"type": "text"}, "structured_outputs": None, "guided_choice": []}, {}),
]
"""Requests from which something is left out, and what remains of it for the engine."""

FORWARDED: list[dict[str, Any]] = [
    {"tools": [tool()]},
    {"tools": [tool(strict=False)], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [tool()], "tool_choice": "none"},
]

PLAIN = SamplingRules(Sampling(max_tokens=8))


def sent(changes: dict[str, Any], kind: CompletionKind = CompletionKind.chat) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hi"}]} if kind is CompletionKind.chat else {"prompt": "hi"}
    return PLAIN.to_engine_request(kind, body | changes, "m", SamplingSeedKey(0, 0, 0))


@pytest.mark.parametrize(("field", "changes"), REFUSED, ids=[f"{i}-{field}" for i, (field, _) in enumerate(REFUSED)])
def test_a_request_that_needs_constrained_decoding_is_refused_by_name(field: str, changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=f"^{field} .*is not available in a training run"):
        sent(changes)


@pytest.mark.parametrize(("changes", "remains"), STRIPPED)
def test_constraints_without_effect_are_removed_from_a_request(
    changes: dict[str, Any], remains: dict[str, Any]
) -> None:
    assert sent(changes) == sent({}) | remains


def test_the_request_of_the_client_keeps_its_strict_tools() -> None:
    changes = {"tools": [tool(strict=True)]}
    sent(changes)
    assert changes == {"tools": [tool(strict=True)]}


@pytest.mark.parametrize("changes", FORWARDED)
def test_a_request_with_tools_and_no_constraint_is_forwarded_unchanged(changes: dict[str, Any]) -> None:
    assert sent(changes) == sent({}) | changes


@pytest.mark.parametrize("changes", [changes for field, changes in REFUSED if "tool" not in field])
def test_text_completions_with_a_constraint_are_refused_too(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        sent(changes, CompletionKind.text)


def test_only_an_ignored_strict_flag_causes_a_warning() -> None:
    assert ignored_constraints({"tools": [tool(), tool(strict=True)]}) == ["tools[].function.strict"]
    for changes in (*FORWARDED, {"parallel_tool_calls": False}, {"tools": "x"}, {"tools": [5, {"function": 5}]}):
        assert ignored_constraints(changes) == []


def test_a_turn_gets_what_its_prompt_leaves_of_seq_len() -> None:
    rules = sampling_rules(resolved(sampling={"maxTokens": 1000, "minTokens": 500}))
    assert rules.seq_len == 4096
    key = SamplingSeedKey(0, 0, 0)
    for length, limit in ((1, 1000), (3096, 1000), (3097, 999), (4095, 1)):
        for kind, body, known in (
            (CompletionKind.text, {"prompt": [7] * length}, None),
            (CompletionKind.chat, {"messages": [{"role": "user", "content": "hi"}]}, length),
        ):
            asked = rules.to_engine_request(kind, body, "m", key, prompt_tokens=known)
            # The engine refuses a minimum above the limit.
            assert (asked["max_tokens"], asked["min_tokens"]) == (limit, min(500, limit))


@pytest.mark.parametrize("length", [4096, 5000])
def test_a_prompt_that_leaves_nothing_of_seq_len_is_refused_with_both_lengths(length: int) -> None:
    rules = sampling_rules(resolved())
    with pytest.raises(PromptTooLong, match=f"4096 tokens.* {length} tokens") as refused:
        rules.to_engine_request(CompletionKind.text, {"prompt": [7] * length}, "m", SamplingSeedKey(0, 0, 0))
    assert (refused.value.status, refused.value.problem.reason) == (400, "PromptTooLong")
    # verifiers ends a rollout as truncated only if it reads one of its phrases.
    assert "this model's maximum context length is" in refused.value.problem.message.lower()


PARTS: list[tuple[str, Any]] = [
    ("image_url", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
    ("image_url", {"image_url": "https://example.com/a.png"}),
    ("image_url", {"type": "text", "text": "see", "image_url": "https://example.com/a.png", "uuid": "1"}),
    ("input_image", {"type": "input_image", "image_url": "https://example.com/a.png"}),
    ("image_embeds", {"type": "image_embeds", "image_embeds": "AA"}),
    ("input_audio", {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
    ("audio_url", {"type": "audio_url", "audio_url": {"url": "https://example.com/a.wav"}}),
    ("video_url", {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
    ("file", {"type": "file", "file": {"file_id": "f"}}),
    ("prompt_embeds", {"type": "prompt_embeds", "data": "AA"}),
    ("5", {"type": 5}),
]
"""Content parts that are not text, in the forms that vLLM accepts, with the word that the refusal names."""


@pytest.mark.parametrize("role", ["user", "tool"])
@pytest.mark.parametrize(("word", "part"), PARTS)
def test_content_that_is_not_text_is_refused_by_its_type(word: str, part: Any, role: str) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": role, "content": [{"type": "text", "text": "a"}, part]}]
    with pytest.raises(BadRequest, match=rf"^messages\[1\]\.content\[1\] is of type '?{word}.*only text"):
        sent({"messages": messages})


def test_an_assistants_audio_is_refused() -> None:
    with pytest.raises(BadRequest, match=r"^messages\[0\]\.audio .*only text"):
        sent({"messages": [{"role": "assistant", "audio": {"id": "audio_1"}}]})


@pytest.mark.parametrize(
    "content",
    [
        "hi",
        None,
        ["hi"],
        [{"type": "text", "text": "image_url"}],
        [{"text": "hi"}],
        [{"type": "input_text", "text": "hi"}, {"type": "output_text", "text": "hi"}],
        [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm"}],
    ],
)
def test_text_is_accepted_in_every_form(content: Any) -> None:
    messages = [{"role": "user", "content": content}]
    assert sent({"messages": messages}) == sent({}) | {"messages": messages}
