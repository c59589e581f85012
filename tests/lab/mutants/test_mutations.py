"""Every kind of change is made once where it can be, and nothing else is touched."""

import ast

import pytest

from tests.mutants.mutations import mutations


def changed(source: str) -> list[tuple[str, str]]:
    return [(mutation.before, mutation.after) for mutation in mutations(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", [("a < b", "a <= b")]),
        ("a is None", [("a is None", "a is not None")]),
        ("a and b", [("a and b", "a or b")]),
        ("a + b", [("a + b", "a - b")]),
        ("'x' + b", []),
        ("a += b", [("a += b", "a -= b")]),
        ("not a", [("not a", "a")]),
        ("3", [("3", "4"), ("3", "2")]),
        ("True", [("True", "False")]),
        ("f(x)", [("f(x)", "pass")]),
        ("log.info(x)", []),
        ("def f() -> 3: return a", [("return a", "return None")]),
        ("def f(): return None", []),
        ("raise E(3)", [("raise E(3)", "pass")]),
        ("x = max(a, b)", [("max(a, b)", "min(a, b)")]),
        ("while a == b: c = d", [("a == b", "a != b")]),
        ("c if not a else d", [("not a", "a")]),
        ("c if a < b else d", [("c if a < b else d", "c if not a < b else d"), ("a < b", "a <= b")]),
        ("'''text'''", []),
    ],
)
def test_changes(source: str, expected: list[tuple[str, str]]) -> None:
    assert changed(source) == expected


def test_only_the_named_functions_are_changed() -> None:
    source = "x = 1\ndef f(): g(2)\ndef g(a): return a\n"
    assert [m.after for m in mutations(source, ["g"])] == ["return None"]
    with pytest.raises(ValueError, match="no function is named h"):
        list(mutations(source, ["f", "h"]))


def test_each_change_is_alone_and_has_its_line() -> None:
    found = list(mutations("if a:\n    b = c - d\nelse:\n    b = 7\n"))
    assert [mutation.line for mutation in found] == [1, 2, 4, 4]
    assert ast.unparse(found[0].tree) == "if not a:\n    b = c - d\nelse:\n    b = 7"
    assert ast.unparse(found[1].tree) == "if a:\n    b = c + d\nelse:\n    b = 7"
