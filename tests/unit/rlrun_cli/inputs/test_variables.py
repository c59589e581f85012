import base64
from pathlib import Path

import pytest
from rlrun_cli.inputs.variables import collect, owner_patch, parse_file, parse_option, secret
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
    found, problems = parse_file(FILE, "x.env")
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
    found, problems = parse_file("GOOD=1\nsecret-without-name\n1BAD=hunter2\nOPEN='hunter2\n", "x.env")
    assert found == {"GOOD": "1"}
    assert [p.split(": ")[0] for p in problems] == ["x.env:2", "x.env:3", "x.env:4"]
    assert "hunter2" not in "".join(problems)


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
