"""Tokens of vLLM's responses, as they are or in parts."""

import json
from typing import Any

import pytest
from rlrun_engine_access import response_usage
from rlrun_engine_access.response_usage import MAX_OBJECT, MAX_SEARCHED, ResponseUsage

USAGE = {
    "prompt_tokens": 12, "total_tokens": 15, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": None,
}  # fmt: skip
COUNTED = {"prompt": 12, "cached": 8, "sampled": 3}
COMPACT = (",", ":")


def response(usage: Any, **after: Any) -> bytes:
    """Response with `usage` after the choices and before the other fields, as vLLM's."""
    return json.dumps({"id": "x", "choices": [{"text": "hi"}], "usage": usage, **after}, separators=COMPACT).encode()


def tokens_of(*parts: bytes) -> dict[str, int]:
    reader = ResponseUsage()
    for part in parts:
        reader.feed(part)
    return dict(reader.tokens)


def test_tokens_are_those_of_the_object_usage() -> None:
    assert tokens_of(response(USAGE)) == COUNTED
    assert tokens_of(json.dumps({"usage": USAGE}, indent=2).encode()) == COUNTED
    assert tokens_of(response({**USAGE, "prompt_tokens_details": None})) == {**COUNTED, "cached": 0}


def test_a_response_in_parts_has_the_same_tokens() -> None:
    whole = response(USAGE, prompt_token_ids=[*range(2000)])
    for size in (1, 7, 64, 1000):
        assert tokens_of(*(whole[start : start + size] for start in range(0, len(whole), size))) == COUNTED, size
    for end in range(len(whole)):
        assert tokens_of(whole[:end], whole[end:]) == COUNTED, end


def test_a_stream_has_the_tokens_of_its_last_event_with_usage() -> None:
    events = [b'data: {"choices":[{"text":"a"}],"usage":null}\n\n'] * 5
    early, last = ({**USAGE, "completion_tokens": count} for count in (1, 3))
    parts = [*events, b"data: " + response(early) + b"\n\n", b"data: " + response(last) + b"\n\n"]
    assert tokens_of(*parts, b"data: [DONE]\n\n") == COUNTED


@pytest.mark.parametrize(
    "part",
    [
        b"", b"{}", b'{"usage":', b'{"usage":null}', b'{"usage":{', b'{"usage":' + b"[" * 2000, b'{"usage":[1]}',
        b'{"usage":-0.5}', b'{"usage":\xff\xfe}', b'{"usage":{"prompt_tokens":' + b" " * MAX_OBJECT + b"1}}",
        response({"error": "x"})[:20], b"data: [DONE]\n\n",
    ],
)  # fmt: skip
def test_a_response_without_usage_has_no_tokens(part: bytes) -> None:
    assert tokens_of(part) == {}
    assert tokens_of(response(USAGE), part) == COUNTED, "a later part does not remove them"


@pytest.mark.parametrize("value", [None, -1, 1.5, "3", True, [3]])
def test_a_value_that_is_no_number_of_tokens_counts_as_none(value: Any) -> None:
    details = {"cached_tokens": value}
    found = tokens_of(response({"prompt_tokens": value, "completion_tokens": 3, "prompt_tokens_details": details}))
    assert found == {"prompt": 0, "cached": 0, "sampled": 3}


def test_texts_of_a_response_are_not_its_usage() -> None:
    false = response({**USAGE, "prompt_tokens": 1_000_000}).decode()
    assert tokens_of(response(USAGE, prompt_text=false, prompt_logprobs=[{"1": {"decoded_token": false}}])) == COUNTED
    assert tokens_of(json.dumps({"text": false}, separators=COMPACT).encode()) == {}
    assert tokens_of(json.dumps({"text": 'say "usage":{', "top": {"usage": -0.5}}, separators=COMPACT).encode()) == {}


def test_a_huge_response_is_searched_at_its_end_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = b',"prompt_token_ids":[' + b"151643," * 100_000 + b"1]}"
    assert tokens_of(response(USAGE)[:-1] + ids) == COUNTED, "a chat of 100,000 tokens"
    parsed = list[int]()
    monkeypatch.setattr(response_usage, "_tokens", lambda text: parsed.append(len(text)))
    reader = ResponseUsage()
    for _ in range(4):
        reader.feed(response(USAGE) + b" " * MAX_SEARCHED)
        assert len(reader._end) < 2 * MAX_OBJECT
    assert parsed == []
    reader.feed(response(USAGE, prompt_token_ids=[1] * 100_000))
    assert parsed == [MAX_OBJECT]
