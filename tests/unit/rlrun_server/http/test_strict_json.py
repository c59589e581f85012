"""What is refused in JSON, YAML and TOML."""

import pytest
from rlrun_server.http.strict_json import MAX_DEPTH, TextInvalid, check_toml, read_json, read_yaml

DEEP = "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ('{"a": NaN}', "NaN"),
        ("[Infinity]", "Infinity"),
        ("[-Infinity]", "-Infinity"),
        ("[1e999]", "inf"),
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' twice"),
        (f"[{DEEP}]", "nested deeper"),
        ("[" * 100_000, "nested deeper|not JSON"),
        (r'"\ud800"', "surrogate"),
        (r'{"\udfff": 1}', "surrogate"),
    ],
)
def test_json(text: str, message: str) -> None:
    with pytest.raises(TextInvalid, match=message):
        read_json(text.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("a: &x 1\nb: *x", "alias"),
        ("a: 1\na: 2", "'a' twice"),
        ("1: 2", "no text"),
        ("a: .nan", "nan"),
        ("a: 2026-01-01", "date"),
        ("a: !!python/object:os.system x", "not YAML"),
        ("a: 1\n---\nb: 1", "not YAML"),
        (f"[{DEEP}]", "nested deeper"),
        ("[" * 5000, "nested|not YAML"),
    ],
)
def test_yaml(text: str, message: str) -> None:
    with pytest.raises(TextInvalid, match=message):
        read_yaml(text.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [("a =", "not TOML"), ("a = nan", "nan"), (f"a = [{DEEP}]", "nested"), ("a = 1979-05-27", "date")],
)
def test_toml(text: str, message: str) -> None:
    with pytest.raises(TextInvalid, match=message):
        check_toml(text.encode())


def test_bytes_that_are_no_text() -> None:
    for read in (read_json, read_yaml, check_toml):
        with pytest.raises(TextInvalid, match="UTF-8"):
            read(b'"\xff"')


def test_what_is_allowed() -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": {}}}
    assert read_json(b'{"a": [1, 2.5, null, true, "\xc3\xbc"], "b": {"c": {}}}') == value
    assert read_yaml("a: [1, 2.5, null, true, ü]\nb: {c: {}}".encode()) == value
    assert read_json(f"{DEEP}".encode())
    assert check_toml(b"a = 1") == "a = 1"
