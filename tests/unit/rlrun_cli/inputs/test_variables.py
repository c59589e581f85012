import base64
from pathlib import Path

import pytest
from rlrun_cli.inputs.variables import collect, owner_patch, parse_file, parse_option, read_files, secret
from rlrun_cli.terminal.errors import CliError

FILE = """
# a comment
PLAIN=value
export EXPORTED=yes
QUOTED="two words # no comment"
SINGLE='it is "fine"'
TRAILING=abc # a comment
EMPTY=
URL=https://host/path?a=b#fragment
"""


def test_env_file_syntax() -> None:
    found, problems = parse_file(FILE, "x.env", {})
    assert problems == []
    assert found == {
        "PLAIN": "value",
        "EXPORTED": "yes",
        "QUOTED": "two words # no comment",
        "SINGLE": 'it is "fine"',
        "TRAILING": "abc",
        "EMPTY": "",
        "URL": "https://host/path?a=b#fragment",
    }


def test_every_invalid_line_is_named_without_its_value() -> None:
    text = """GOOD=1
secret-without-name
1BAD=hunter2

TWO="hunter2
more" hunter2
LATER='more lines
here'

A=${NOT_SET}
B=${A-B}
C="${X:-${Y}}hunter2"
D=${X:?hunter2}
OPEN='hunter2
"""
    found, problems = parse_file(text, "x.env", {})
    assert found == {"GOOD": "1", "LATER": "more lines\nhere"}
    # A statement of several lines is named by its first.
    named = [p.split(": ")[0] for p in problems]
    assert named == [f"x.env:{line}" for line in (2, 3, 5, 10, 11, 12, 13, 14)]
    assert "${NOT_SET} is not set" in problems[3]
    assert "hunter2" not in "".join(problems)


def test_references_stand_for_variables_of_the_shell_then_of_the_file() -> None:
    """As the hosted client expands them, which knows those of the shell alone."""
    text = """HOST=example.com
URL=https://${HOST}:${PORT}/v1
QUOTED="user-${USER_ID}"
LITERAL='${HOST}'
NOT_BRACED=$HOST
DEFAULT=${MISSING:-none}
BOTH=${SHELL_AND_FILE}
SHELL_AND_FILE=file
AFTER=${SHELL_AND_FILE}
"""
    found, problems = parse_file(text, "x.env", {"PORT": "8443", "USER_ID": "7", "SHELL_AND_FILE": "shell"})
    assert problems == []
    assert found == {
        "HOST": "example.com",
        "URL": "https://example.com:8443/v1",
        "QUOTED": "user-7",
        "LITERAL": "${HOST}",
        "NOT_BRACED": "$HOST",
        "DEFAULT": "none",
        "BOTH": "shell",
        "SHELL_AND_FILE": "file",
        "AFTER": "shell",
    }


def test_a_value_in_quotes_may_have_several_lines() -> None:
    key = "-----BEGIN KEY-----\nabc=\n-----END KEY-----\n"
    one_line = key.replace("\n", "\\n")
    text = f'export PEM="{key}"\nSINGLE=\'{key}\'\nESCAPED="{one_line}"\nNEXT=1\n'
    found, problems = parse_file(text, "x.env", {})
    assert problems == []
    assert found == {"PEM": key, "SINGLE": key, "ESCAPED": key, "NEXT": "1"}


def test_files_may_refer_to_earlier_files_and_the_shell(tmp_path: Path) -> None:
    one, two = tmp_path / "one.env", tmp_path / "two.env"
    one.write_text("\ufeffA=1\n", encoding="utf-8")
    two.write_text("B=${A}${C}\n")
    assert collect([one, two], [], {"C": "2"}) == read_files([one, two], {"C": "2"}) == {"A": "1", "B": "12"}


@pytest.mark.parametrize(
    ("option", "wanted"),
    [("A=b", ("A", "b")), ("A=b=c", ("A", "b=c")), ("A=", ("A", "")), ("X", ("X", "here"))],
)
def test_option(option: str, wanted: tuple[str, str]) -> None:
    assert parse_option(option, {"X": "here"}) == wanted


@pytest.mark.parametrize("option", ["MISSING", "A-B=hunter2", "=hunter2", "sk-hunter2"])
def test_an_invalid_option_is_reported_without_its_value(option: str) -> None:
    with pytest.raises(ValueError, match=r"-e") as caught:
        parse_option(option, {})
    assert "hunter2" not in str(caught.value)


def test_later_sources_override_earlier_ones(tmp_path: Path) -> None:
    one, two = tmp_path / "one.env", tmp_path / "two.env"
    one.write_text("A=1\nB=1\nC=1\n")
    two.write_text("B=2\nC=2\n")
    assert collect([one, two], ["C=3"], {}) == {"A": "1", "B": "2", "C": "3"}


def test_all_problems_are_reported(tmp_path: Path) -> None:
    bad = tmp_path / "bad.env"
    bad.write_text("nonsense\n")
    with pytest.raises(CliError) as caught:
        collect([tmp_path / "missing.env", bad], ["NOT_SET"], {})
    assert len(caught.value.details) == 3
    assert caught.value.code == 2


def test_more_than_a_secret_can_hold_is_rejected() -> None:
    with pytest.raises(CliError) as caught:
        collect([], ["BIG=" + "x" * 1024 * 1024], {})
    assert "1 MiB" in caught.value.details[0]
    assert len(str(caught.value.details)) < 200


def test_secret_and_owner() -> None:
    made = secret("first", "team", {"A": "ä"})
    assert made["metadata"]["name"] == "first-env"
    assert base64.b64decode(made["data"]["A"]).decode() == "ä"
    run = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "metadata": {"name": "first", "uid": "u"}}
    (owner,) = owner_patch(run)["metadata"]["ownerReferences"]
    assert owner == {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLRun", "name": "first", "uid": "u"}


@pytest.mark.parametrize("line", ["A: 1", "A B=1", "A='x"])
def test_a_line_in_another_form_is_told_the_form(line: str) -> None:
    assert parse_file(line, "f", {})[1] == [
        "f:1: cannot be read: write NAME=value and close all quotes; only a comment may follow"
    ]


@pytest.mark.parametrize("value", ["${" * 300_000, "${" * 300_000 + ":x}"])
def test_a_value_that_opens_many_variables_is_refused(value: str) -> None:
    variables, problems = parse_file(f"A={value}\nB=1\n", "f.env", {})
    assert variables == {"B": "1"}
    assert len(problems) == 1


def test_values_see_the_shell_before_the_lines_above() -> None:
    variables, _ = parse_file("A=1\nB=${A}${C}\nA=2\n", "f.env", {"C": "shell"})
    assert variables == {"A": "2", "B": "1shell"}
    assert parse_file("C=file\nB=${C}\n", "f.env", {"C": "shell"})[0]["B"] == "shell"
