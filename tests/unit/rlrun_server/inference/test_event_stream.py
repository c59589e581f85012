"""Events of an engine, in chunks of any size."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_server.inference.event_stream import MAX_EVENT, EventSplitter, EventTooLarge
from rlrun_server.inference.usage import TokenUsage

from tests.support.completion_engine import USAGE, event, piece

WORDS = [event(piece("one")), event(piece('"usage"')), event(piece("é\n\n"))]
LAST = event({"choices": [], "usage": USAGE})
DONE = event(b"[DONE]")


def chunks(text: bytes, sizes: list[int]) -> list[bytes]:
    found = []
    for size in sizes:
        found.append(text[:size])
        text = text[size:]
    return [*found, text]


@given(st.lists(st.integers(0, 40)), st.booleans(), st.booleans())
def test_events_in_chunks(sizes: list[int], wants_usage: bool, carriage_return: bool) -> None:
    text = b"".join([*WORDS, LAST, DONE])
    sent = text.replace(b"\n\n", b"\r\n\r\n") if carriage_return else text
    stream = EventSplitter(wants_usage=wants_usage)
    passed = b"".join(stream.feed(chunk) for chunk in chunks(sent, sizes))
    assert passed == (text if wants_usage else text.replace(LAST, b""))
    assert stream.is_done
    assert stream.usage == TokenUsage(3, 2)
    assert stream.count == len(WORDS) + wants_usage


def test_usage_in_an_event_with_text() -> None:
    stream = EventSplitter(wants_usage=False)
    last = event({**piece("end"), "usage": USAGE})
    assert stream.feed(last + DONE) == last + DONE
    assert stream.usage == TokenUsage(3, 2)


@pytest.mark.parametrize(
    "usage", [None, [], {"prompt_tokens": -1}, {"completion_tokens": 10**30}, {"prompt_tokens": "x"}]
)
def test_hostile_usage(usage: object) -> None:
    stream = EventSplitter(wants_usage=True)
    stream.feed(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
    found = stream.usage or TokenUsage()
    assert 0 <= found.prompt <= found.completion <= 10_000_000


def test_what_follows_the_last_event_is_dropped() -> None:
    stream = EventSplitter(wants_usage=False)
    assert stream.feed(DONE + event(piece("more"))) == DONE
    assert stream.feed(event(piece("more"))) == b""


def test_an_event_without_end_is_refused() -> None:
    stream = EventSplitter(wants_usage=False)
    for _ in range(MAX_EVENT // 1024):
        assert stream.feed(b"x" * 1024) == b""
    with pytest.raises(EventTooLarge):
        stream.feed(b"x")


def test_many_small_chunks_cost_no_more_than_their_bytes() -> None:
    stream = EventSplitter(wants_usage=False)
    for _ in range(200_000):
        stream.feed(b"x")
    assert stream.feed(b"\n\n").startswith(b"xxx")
