"""API keys as values."""

import base64
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from rlrun_server.authentication.api_key import mint, parse, read_entries, to_entries

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_a_key_is_stored_without_its_secret() -> None:
    key, text = mint("team", "uid-1", "ann", "für CI ✓", timedelta(days=3), NOW)
    assert re.fullmatch(r"rlk_[a-z2-7]{12}_[A-Za-z0-9_-]{43}", text)
    stored = {"data": to_entries({key.id: key})}
    assert text[17:] not in base64.b64decode(stored["data"][key.id]).decode()
    assert read_entries(stored) == {key.id: key}
    assert parse(text) == (key.id, text[17:])
    assert key.opens_with(text[17:], NOW)
    assert not key.opens_with(text[17:], NOW + timedelta(days=3))
    assert not key.opens_with("A" * 43, NOW)


def test_a_stored_digest_of_another_form_opens_nothing() -> None:
    key, text = mint("team", "uid-1", "ann", "", timedelta(days=3), NOW)
    assert not replace(key, digest="ü").opens_with(text[17:], NOW)


@pytest.mark.parametrize("text", ["", "rlk_", "rlk_abc_def", "rlk_ABCDEFGHIJKL_" + "a" * 43, "rlk_../../x_" + "a" * 43])
def test_other_texts_are_no_keys(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize("change", [{"expires": "never"}, {"digest": None}, {"created": 5}, None])
def test_entries_of_another_form_are_no_keys(change: dict[str, object] | None) -> None:
    key, _ = mint("team", "uid-1", "ann", "", timedelta(days=3), NOW)
    other, _ = mint("team", "uid-1", "ben", "", timedelta(days=3), NOW)
    data = to_entries({key.id: key, other.id: other})
    fields = json.loads(base64.b64decode(data[key.id]))
    if change is None:
        data[key.id] = "*"
    else:
        fields = {name: value for name, value in {**fields, **change}.items() if value is not None}
        data[key.id] = base64.b64encode(json.dumps(fields).encode()).decode()
    assert read_entries({"data": data}) == {other.id: other}


def test_a_secret_without_data_has_no_keys() -> None:
    assert read_entries({}) == {}
