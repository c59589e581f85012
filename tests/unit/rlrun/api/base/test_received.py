"""InputLimits of what is parsed, and what an error keeps of it."""

import gc
import json
import tracemalloc
from typing import Any

import pytest
from pydantic import BaseModel, Field
from rlrun.api.base.received import (
    MAX_DEPTH,
    MAX_FAULTS,
    MAX_LISTED,
    InputInvalid,
    InputLimits,
    check_value,
    parse,
    read_json,
    read_stored,
    to_input_invalid,
)
from rlrun.api.base.schema import Schema

DEEP = "[" * MAX_DEPTH + "]" * MAX_DEPTH


class Item(Schema):
    name: str = Field(max_length=100)


class Order(Schema):
    wire_limits = InputLimits(size=100_000, values=1000)

    items: list[Item] = Field(default_factory=list, max_length=300)
    labels: dict[str, str] = Field(default_factory=dict, max_length=100)


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
        ("[" * 100_000, "more than 20000 values"),
        ("[" * 10_000, "nested deeper|not JSON"),
        (r'"\ud800"', "surrogate"),
        (r'{"\udfff": 1}', "surrogate"),
        ("9" * 4301, "too many digits"),
        ("9" * 400, "too many digits"),
        (f"[{'0,' * 20_000}0]", "more than 20000 values"),
        (f'"{"a" * 1024**2}"', "larger than 1048576 bytes"),
    ],
)
def test_text_of_a_person_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputInvalid, match=message):
        read_json(text.encode())


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(InputInvalid, match="UTF-8"):
        read_json(b'"\xff"')


def test_ordinary_text_is_read() -> None:
    value = {"a": [1, 2.5, None, True, "ü"], "b": {"c": {}}}
    assert read_json(b'{"a": [1, 2.5, null, true, "\xc3\xbc"], "b": {"c": {}}}') == value
    assert read_json(f"{DEEP}".encode())


def test_commas_and_brackets_in_texts_are_not_values() -> None:
    text = r"a, \"b\" [c] {d}, \\" * 2000
    assert read_json(f'{{"text": "{text}"}}', limits=InputLimits(values=10))
    assert parse(Order, f'{{"labels": {{"a": "{text}"}}}}').labels["a"].startswith("a,")


@pytest.mark.parametrize("is_user_input", [True, False])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"items":[' + "{}," * 999 + "{}]}", "more than 1000 values"),
        ('{"items":[' + "{}," * 400 + "{}]}", "at most 300 items"),
        ("{" + ",".join(f'"k{n}":1' for n in range(999)) + "}", "Extra inputs"),
        ("[" * 900 + "]" * 900, "nested|recursion|not JSON"),
        (f'{{"items":[{"9" * 90_000}]}}', "digits|out of range"),
        (f'{{"labels":{{"a":"{"a" * 100_000}"}}}}', "larger than 100000 bytes"),
        ('{"items":[{}]}', r"^The body is not a valid Order of this version: items\.0\.name: Field required$"),
        ('{"items":[{},{}]}', r"items\.0\.name: Field required \(and 1 more\)$"),
    ],
)
def test_limits_of_a_model(text: str, message: str, is_user_input: bool) -> None:
    with pytest.raises(InputInvalid, match=message):
        parse(Order, text, is_user_input=is_user_input)


def test_an_error_lists_its_first_faults_only() -> None:
    with pytest.raises(InputInvalid) as found:
        parse(Order, '{"items":[' + "{}," * 250 + "{}]}")
    assert len(found.value.faults) == MAX_FAULTS
    assert found.value.faults[0].location == ("items", 0, "name")
    assert len(str(found.value)) < 200


def test_very_many_faults_are_counted_and_not_listed() -> None:
    class Numbers(BaseModel):
        values: list[int]

    try:
        Numbers.model_validate({"values": ["x"] * (MAX_LISTED + 1)})
    except ValueError as error:
        found = to_input_invalid(error, "It is not valid")  # type: ignore[arg-type]
    assert str(found).startswith(f"It is not valid: {MAX_LISTED + 1} values are invalid")
    assert not found.faults


@pytest.mark.parametrize("text", ['{"items":[{"name":1}], "secret":"', '{"labels":"', '{"a":1,"a":"', '["\\ud800'])
@pytest.mark.parametrize("is_user_input", [True, False])
def test_an_error_keeps_nothing_of_the_input(text: str, is_user_input: bool) -> None:
    end = '"]' if text.startswith("[") else '"}'
    data = f"{text}{'hunter2' * 10_000}{end}"
    with pytest.raises(InputInvalid) as found:
        parse(Order, data, is_user_input=is_user_input)
    error = found.value.with_traceback(None)
    assert error.__cause__ is None
    assert error.__context__ is None
    assert "hunter2" not in f"{error!r} {vars(error)}"


def test_causes_for_others_quote_no_name_of_the_input() -> None:
    for text in ('{"hunter2":1,"hunter2":2}', '{"hunter2":1}'):
        with pytest.raises(InputInvalid) as found:
            parse(Order, text, is_user_input=True)
        assert "hunter2" not in found.value.unquoted


def test_errors_that_are_kept_need_little_memory() -> None:
    body = ('{"items":[' + "{}," * 290 + "{}]}").encode()

    def refused() -> InputInvalid:
        try:
            parse(Order, body)
        except InputInvalid as error:
            return error.with_traceback(None)
        raise AssertionError("was accepted")

    refused()
    gc.collect()
    tracemalloc.start()
    kept = [refused() for _ in range(20)]
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert size < 20 * 60_000
    assert len(kept) == 20


@pytest.mark.parametrize("value", [float("nan"), 1 << 2000, "\ud800", {1, 2}, json.loads(f"[{DEEP}]")])
def test_values_of_other_parsers_are_checked_alike(value: Any) -> None:
    with pytest.raises(InputInvalid):
        check_value({"a": value})


@pytest.mark.parametrize("levels", [150, 300, 5000])
@pytest.mark.parametrize(("opened", "closed"), [('{"a":', "}"), ("[", "]")])
def test_no_object_makes_the_answer_of_the_api_server_unreadable(levels: int, opened: str, closed: str) -> None:
    deep = opened * levels + '"]}[{\\"' + '"' + closed * levels
    text = f'{{"items":[{{"name":"a","spec":{deep}}},{{"name":"b","text":"]}}"}}]}}'
    found = read_stored(text)
    assert [item["name"] for item in found["items"]] == ["a", "b"]
    assert found["items"][1]["text"] == "]}"
    assert depth_of(found) <= 200


@pytest.mark.parametrize("text", ["", "{", '{"a":' * 5000, "[" * 5000 + '"', "]" * 5000, '{"a":1}]'])
def test_an_answer_that_is_not_json_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|Unterminated|ends within"):
        read_stored(text)


def depth_of(value: Any) -> int:
    depth, level = 0, [value]
    while level := [child for each in level for child in (each.values() if isinstance(each, dict) else each)]:
        depth, level = depth + 1, [child for child in level if isinstance(child, dict | list)]
    return depth
