"""Sealed texts: who opens them, and for what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun_server.authentication.sealed import MAX_TEXT, Sealer

KEY, NEXT_KEY = b"a key of at least sixteen bytes", b"the key that follows the other one"


def sealer(*keys: bytes) -> Sealer:
    return Sealer(lambda: keys)


@given(st.binary(max_size=300))
def test_a_text_opens_for_its_purpose_alone(text: bytes) -> None:
    one, other = sealer(KEY), sealer(KEY)
    sealed = one.seal(text, "session")
    assert other.open(sealed, "session") == text, "another replica"
    assert other.open(sealed, "login code") is None
    assert sealer(NEXT_KEY).open(sealed, "session") is None


def test_a_key_follows_another() -> None:
    old = sealer(KEY).seal(b"text", "session")
    both = sealer(NEXT_KEY, KEY)
    assert both.open(old, "session") == b"text"
    assert sealer(NEXT_KEY).open(both.seal(b"text", "session"), "session") == b"text"


@pytest.mark.parametrize("at", [0, 5, 12, 20, -2])
def test_a_changed_text_does_not_open(at: int) -> None:
    sealed = sealer(KEY).seal(b"a token", "session")
    changed = list(sealed)
    changed[at] = "A" if changed[at] != "A" else "B"
    assert sealer(KEY).open("".join(changed), "session") is None


@pytest.mark.parametrize("text", ["", "x", "é", "a" * 15, "a" * 16, "not base64!", "=" * 40, "a" * 100])
def test_other_texts_do_not_open(text: str) -> None:
    assert sealer(KEY).open(text, "session") is None


def test_nothing_of_the_text_is_seen_and_no_two_are_equal() -> None:
    found = sealer(KEY)
    first, second = found.seal(b"a" * 40, "session"), found.seal(b"a" * 40, "session")
    assert first != second
    assert set(first) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_what_it_opens_is_bounded() -> None:
    found = sealer(KEY)
    opened = found.open(found.seal(b"a" * (10 * MAX_TEXT), "session"), "session")
    assert opened is not None
    assert len(opened) <= MAX_TEXT
