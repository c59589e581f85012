"""Records beyond the limits: bounded, with head and tail and a list of what is missing."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.protocol.problem import Problem
from rlrun.storage.samples.bounds import MAX_ANSWER, MAX_INFO, MAX_MESSAGES, MAX_TEXT, bounded_line, cut_text
from rlrun.storage.samples.record import MAX_RECORD_BYTES, SampleRecord

from tests.support.sample_records import record


def test_a_record_within_the_limits_stays_as_it_is() -> None:
    assert bounded_line(record()) == record().to_line()


def test_a_long_text_keeps_head_and_tail() -> None:
    text = "H" * MAX_TEXT + "T" * 1000
    found = SampleRecord.from_line(bounded_line(record(completion=[{"role": "assistant", "content": text}])))
    content = found.completion[0]["content"]
    assert content.startswith("H" * 100)
    assert content.endswith("T" * 1000)
    assert "1,000 characters are not stored" in content
    assert [(c.field, c.removed) for c in found.cut] == [("completion.0.content", 1000)]


def test_of_too_many_messages_the_first_and_last_stay() -> None:
    messages = [{"role": "user", "content": str(n)} for n in range(MAX_MESSAGES + 10)]
    found = SampleRecord.from_line(bounded_line(record(completion=messages)))
    assert len(found.completion) == MAX_MESSAGES
    assert (found.completion[0], found.completion[-1]) == (messages[0], messages[-1])
    assert [(c.field, c.removed) for c in found.cut] == [("completion", 10)]


def test_answer_info_and_error_have_limits_of_their_own() -> None:
    long = record(
        answer="a" * (MAX_ANSWER + 1),
        info={"text": "i" * MAX_INFO},
        error=Problem(reason="RolloutFailed", message="e" * 5000),
    )
    found = SampleRecord.from_line(bounded_line(long))
    assert {c.field for c in found.cut} == {"answer", "info", "error.message"}
    assert isinstance(found.info, str)
    assert len(found.answer) < MAX_ANSWER + 100


@pytest.mark.parametrize(
    "completion",
    [
        pytest.param([{"role": "assistant", "content": "\x00" * MAX_TEXT}] * MAX_MESSAGES, id="escaped"),
        pytest.param([{"role": "assistant", "content": "é" * MAX_TEXT}] * 8, id="two bytes"),
        pytest.param([{"role": "assistant", "parts": [{"a": 1}] * 50_000}], id="many parts"),
        pytest.param([{f"key {n}": n for n in range(50_000)}], id="many keys"),
    ],
)
def test_no_record_exceeds_its_limit(completion: list[dict[str, Any]]) -> None:
    line = bounded_line(record(prompt=completion, completion=completion))
    assert len(line) <= MAX_RECORD_BYTES
    assert SampleRecord.from_line(line).cut


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    found = SampleRecord.from_line(bounded_line(record(info={"a\ud800": ["\udc00 text"]})))
    assert found.info == {"a?": ["? text"]}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=8), JSON, max_size=4), max_size=5), JSON, st.integers(1, 400))
def test_any_record_is_one_line_that_reads_back(messages: list[dict[str, Any]], info: Any, repeated: int) -> None:
    line = bounded_line(record(completion=messages * repeated, info=info))
    assert len(line) <= MAX_RECORD_BYTES
    assert line.count(b"\n") == 1
    found = SampleRecord.from_line(line)
    if not found.cut:
        assert (found.completion, found.info) == (messages * repeated, info)
    json.loads(line)


def test_cut_text_has_the_wanted_number_of_characters() -> None:
    assert cut_text("abcdef", 6) == "abcdef"
    assert cut_text("abcdefg", 6) == "abcd\n[... 1 characters are not stored ...]\nfg"
