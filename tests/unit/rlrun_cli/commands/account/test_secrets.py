import base64
import json
from pathlib import Path

import pytest
from rlrun.api.toml.loader import loads
from rlrun.kube.kinds import RLRUN, SECRET

from tests.support.command_line import Answer, Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object

VALUE = "hunter2-öä"


def values(api: FakeCluster, name: str = "judge") -> dict[str, str]:
    found = api.find("Secret", name)
    assert found is not None
    return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}


def assert_hidden(answer: Answer) -> None:
    assert VALUE not in answer.out + answer.err


def test_a_value_comes_from_standard_input_and_is_not_shown(rlrun: Rlrun, api: FakeCluster) -> None:
    answer = rlrun("secret", "set", "judge", "KEY", input=f"{VALUE}\n")
    assert answer.out == "secrets/judge created: KEY\n"
    assert_hidden(answer)
    assert values(api) == {"KEY": VALUE}
    assert rlrun("secret", "set", "judge", "OTHER", input="x").out == "secrets/judge changed: OTHER\n"
    assert values(api) == {"KEY": VALUE, "OTHER": "x"}
    for fmt in ([], ["-o", "json"], ["-o", "yaml"]):
        listed = rlrun("secret", "list", *fmt)
        assert_hidden(listed)
        assert "KEY" in listed.out
    assert json.loads(rlrun("secret", "list", "-o", "json").out) == [{"name": "judge", "variables": ["KEY", "OTHER"]}]


def test_values_come_from_files(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "s.env").write_text(f"A={VALUE}\nB=2\n")
    (tmp_path / "ca.pem").write_text("one\ntwo\n")
    answer = rlrun("secret", "set", "judge", "--env-file", tmp_path / "s.env", "--from-file", f"CA={tmp_path}/ca.pem")
    assert answer.code == 0
    assert_hidden(answer)
    assert values(api) == {"A": VALUE, "B": "2", "CA": "one\ntwo\n"}


def test_line_ends_of_values_stay(rlrun: Rlrun, api: FakeCluster, tmp_path: Path) -> None:
    (tmp_path / "crlf.pem").write_bytes(b"one\r\ntwo\rthree\r\n")
    (tmp_path / "crlf.env").write_bytes(b"A=1\r\n\r\nB='one\r\ntwo'\r\n")
    files = ["--from-file", f"K={tmp_path}/crlf.pem", "--env-file", tmp_path / "crlf.env"]
    assert rlrun("secret", "set", "judge", *files, "PIPED", input=b"one\r\ntwo\r\n").code == 0
    assert values(api) == {
        "K": "one\r\ntwo\rthree\r\n", "A": "1", "B": "one\r\ntwo", "PIPED": "one\r\ntwo",
    }  # fmt: skip


def test_standard_input_that_is_no_text_is_refused(rlrun: Rlrun, api: FakeCluster) -> None:
    answer = rlrun("secret", "set", "judge", "KEY", input=b"\xff\xfe")
    assert answer.code == 2
    assert "standard input is not UTF-8 text" in answer.err
    assert api.calls == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([f"KEY={VALUE}"], "KEY: values must not be given as arguments"),
        (["A", "B"], "only one variable"),
        (["A-B"], "not a valid variable name"),
        ([], "no variables are given"),
        (["KEY"], "has no value for KEY"),
        (["--from-file", "x"], "not NAME=FILE"),
        (["--from-file", "X=/no/such/file"], "cannot be read"),
        (["--env-file", "/no/such/file"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_any_request(
    rlrun: Rlrun, api: FakeCluster, words: list[str], message: str
) -> None:
    answer = rlrun("secret", "set", "judge", *words)
    assert answer.code == 2
    assert message in answer.err
    assert_hidden(answer)
    assert api.calls == []


def test_secrets_of_others_and_of_single_runs_are_neither_listed_nor_changed(rlrun: Rlrun, api: FakeCluster) -> None:
    api.put(custom_object(SECRET, "judge", data={}))
    single = custom_object(SECRET, "first-env", data={})
    single["metadata"]["labels"] = {"app.kubernetes.io/managed-by": "rlrun-cli", "rlrun.dev/run": "first"}
    api.put(single)
    assert rlrun("secret", "list").out == ""
    for name in ("judge", "first-env"):
        assert rlrun("secret", "set", name, "KEY", input="x").code == 1
        assert rlrun("secret", "delete", name, "--yes").code == 1
    assert api.writes == 0


def test_delete_asks_and_names_the_runs_that_use_the_secret(rlrun: Rlrun, api: FakeCluster) -> None:
    rlrun("secret", "set", "judge", "A", input="x")
    rlrun("secret", "set", "judge", "B", input="x")
    spec = {"envFrom": [{"secretRef": {"name": "judge"}}]}
    api.put(custom_object(RLRUN, "user", spec=spec, status={"phase": "Running"}))
    api.put(custom_object(RLRUN, "past", spec=spec, status={"phase": "Completed"}))
    refused = rlrun("secret", "delete", "judge", input="n\n")
    assert refused.code == 1
    assert "Unfinished runs use it: user." in refused.err
    assert rlrun("secret", "delete", "judge").code == 2
    assert "it has: A, B" in rlrun("secret", "delete", "judge", "C", "--yes").err
    assert rlrun("secret", "delete", "judge", "A", "--yes").code == 0
    assert values(api) == {"B": "x"}
    assert rlrun("secret", "delete", "judge", "--yes").out == "secrets/judge deleted\n"
    assert api.all("Secret") == []


def test_the_form_in_the_help_page_is_valid(rlrun: Rlrun) -> None:
    shown = " ".join(rlrun("secret", "set", "--help").out.split())
    assert '[[env_from]], then secret_ref = { name = "judge" }' in shown
    run = 'model = "a/b"\n[sampling]\nmax_tokens = 1\n[[env]]\nid = "a/b"\n'
    (reference,) = loads(run + '[[env_from]]\nsecret_ref = { name = "judge" }\n').spec.env_from
    assert reference.secret_ref.name == "judge"
