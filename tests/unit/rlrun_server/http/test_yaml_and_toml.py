"""Refused YAML and TOML."""

import tomllib
from typing import Any

import pytest
import yaml
from rlrun.api.base.received import MAX_DEPTH, InputInvalid
from rlrun_server.http import yaml_and_toml
from rlrun_server.http.yaml_and_toml import MAX_PARTS, check_toml, read_yaml

DEEP = "[" * MAX_DEPTH + "]" * MAX_DEPTH


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "not YAML"),
        ("a: &x 1\nb: *x", "alias"),
        ("a: 1\na: 2", "'a' twice"),
        ("1: 2", "not a string"),
        ("a: .nan", "nan"),
        ("a: 2026-01-01", "date"),
        ("a: !!python/object:os.system x", "not YAML"),
        ("a: 1\n---\nb: 1", "not YAML"),
        (f"[{DEEP}]", "nested deeper"),
        ("[" * 5000, "nest|not YAML"),
        ("9" * 4301, "out of range"),
        ("0x" + "f" * 4301, "too many digits"),
    ],
)
def test_yaml(text: str, message: str) -> None:
    with pytest.raises(InputInvalid, match=message):
        read_yaml(text.encode())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a =", "not TOML"),
        ("a = nan", "nan"),
        (f"a = {'9' * 4301}", "too many digits"),
        (f"a = [{DEEP}]", "nested"),
        ("a = 1979-05-27", "date"),
        ("a = [" + "0," * MAX_PARTS + "]", "more than 50000 values"),
    ],
)
def test_toml(text: str, message: str) -> None:
    with pytest.raises(InputInvalid, match=message):
        check_toml(text.encode())


LONG = ".".join("a" * (MAX_DEPTH + 2))


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG} = 1",
        f"[{LONG}]",
        f"[[ {LONG} ]]",
        f"x = {{b = 1, {LONG} = 1}}",
        f'x = {{b = """text""""", {LONG} = 1}}',
        f"x = 'it''#' # it's\n{LONG} = 1",
        " . ".join(['"a.\\""', "'b'", "c"] * MAX_DEPTH) + " = 1",
    ],
)
def test_long_keys_of_toml_do_not_reach_the_parser(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomllib, "loads", lambda _: pytest.fail("was parsed"))
    with pytest.raises(InputInvalid, match="nested deeper"):
        check_toml(text.encode())


@pytest.mark.parametrize("value", [f'"{LONG}"', f"'{LONG}'", f'"""\n{LONG}\n"""', f"1 # {LONG}", f"[{'1.5, ' * 99}]"])
def test_points_elsewhere_in_toml_are_allowed(value: str) -> None:
    assert check_toml(f"a = {value}".encode())


def test_keys_of_yaml_are_compared_once() -> None:
    compared = 0

    class Key(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    class Loader(yaml_and_toml._StrictLoader):
        def construct_object(self, node: Any, deep: bool = False) -> Any:
            found = super().construct_object(node, deep)
            return Key(found) if isinstance(found, str) else found

    assert len(yaml.load("".join(f"k{n}: 1\n" for n in range(200)), Loader=Loader)) == 200
    assert compared < 2000


@pytest.mark.parametrize(
    "text",
    [
        "[" + "a," * 124_000 + "]",
        "".join(f"k{n}: 1\n" for n in range(30_000)),
        "- []\n" * 50_000,
        "{" + "a," * 124_000 + "}",
    ],
    ids=["list", "object", "lists", "keys"],
)
def test_yaml_with_many_values_is_read_no_further(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    composed = 0

    class Counted(yaml_and_toml._StrictLoader):
        def get_event(self) -> Any:
            nonlocal composed
            composed += 1
            return super().get_event()

    monkeypatch.setattr(yaml_and_toml, "_StrictLoader", Counted)
    with pytest.raises(InputInvalid, match="more than 5000 values"):
        read_yaml(text.encode())
    assert composed < 3 * yaml_and_toml.MAX_NODES


def test_bytes_that_are_no_text() -> None:
    for read in (read_yaml, check_toml):
        with pytest.raises(InputInvalid, match="UTF-8"):
            read(b'"\xff"')


def test_what_is_allowed() -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": {}}}
    assert read_yaml("a: [1, 2.5, null, true, ü]\nb: {c: {}}".encode()) == value
    assert check_toml(b"a = 1") == "a = 1"
