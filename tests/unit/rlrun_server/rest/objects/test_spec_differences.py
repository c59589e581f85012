"""Differences of specs."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from rlrun_server.rest.objects.spec_differences import MAX_VALUE, differences


def found(*specs: dict[str, Any]) -> dict[str, list[Any]]:
    return {difference.path: difference.values for difference in differences(specs)}


def test_only_what_differs_by_path() -> None:
    first = {"model": "a", "env": [{"id": "x/y", "args": {"level": 1}}], "batchSize": 8, "tags": ["a"]}
    other = {"model": "a", "env": [{"id": "x/y", "args": {"level": 2}}, {"id": "x/z"}], "tags": ["a", "b"]}
    assert found(first, other) == {
        "env[0].args.level": [1, 2],
        "batchSize": [8, None],
        "tags": [["a"], ["a", "b"]],
        "env[1].id": [None, "x/z"],
    }
    assert found(first, first, first) == {}


def test_values_of_other_types_differ() -> None:
    assert found({"a": 1}, {"a": True}, {"a": "1"}) == {"a": [1, True, "1"]}
    assert found({"a": {}}, {"a": {"b": 1}}) == {"a": [{}, None], "a.b": [None, 1]}


def test_long_values_are_shortened() -> None:
    (values,) = found({"a": "x" * 5000}, {"a": ["y" * 5000]}).values()
    assert values[0] == "x" * MAX_VALUE + "…"
    assert values[1].startswith('["yyy')
    assert len(values[1]) == MAX_VALUE + 1


def test_names_with_dots_and_empty_ones_have_paths_of_their_own() -> None:
    spec: dict[str, Any] = {"args": {"a.b": 1, "a": {"b": 2}, "": {"c": 3}, "c": 4}}
    assert found(spec, {"args": {}}) == {
        'args["a.b"]': [1, None],
        "args.a.b": [2, None],
        'args[""].c': [3, None],
        "args.c": [4, None],
        "args": [None, {}],
    }


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=3), JSON, max_size=4))
@example({"": {"0": None}, "0": []})
def test_equal_specs_do_not_differ(spec: dict[str, Any]) -> None:
    assert differences([spec, dict(reversed(spec.items()))]) == []
