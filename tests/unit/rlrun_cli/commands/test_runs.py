import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.requests import Printed
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.support.printed_tables import printed
from tests.unit.rlrun_cli.conftest import custom_object


def test_list(rlrun: Rlrun, runs: FakeCluster) -> None:
    answer = rlrun("list")
    header, newest, oldest = answer.out.splitlines()
    assert header.split()[:6] == ["NAME", "PHASE", "STEP", "MAX", "REWARD", "ETA"]
    assert header.split()[6:] == ["RESTARTS", "MODEL", "DISPLAY", "AGE", "REASON"]
    assert newest.split()[:5] == ["second", "Pending", "-", "10", "-"]
    assert oldest.split()[:7] == ["first", "Failed", "3", "10", "0.500", "-", "2"]
    assert oldest.endswith("TrainerOutOfMemory")


def test_a_row_has_the_time_left_until_the_run_ends(rlrun: Rlrun, api: FakeCluster) -> None:
    spec = {"model": "a/b", "maxSteps": 10}
    for phase in ("Running", "Stopped"):
        status = {"phase": phase, "progress": {"step": 4, "etaSeconds": 90.0}}
        api.put(custom_object(RLRUN, phase.lower(), spec=spec, status=status))
    rows = [line.split() for line in rlrun("list", "--sort-by", ".metadata.name").out.splitlines()[1:]]
    assert [(row[0], row[5]) for row in rows] == [("running", "90s"), ("stopped", "-")]


def test_a_list_asks_for_whole_objects_only_if_it_needs_them(rlrun: Rlrun, runs: FakeCluster) -> None:
    for words, included in (((), "Metadata"), (("-o", "wide"), "Metadata"), (("-o", "json"), "Object")):
        rlrun("list", *words)
        assert runs.requests[-1].query["includeObject"] == included


def test_an_answer_that_is_no_table_is_an_error(rlrun: Rlrun, runs: FakeCluster) -> None:
    runs.answers["list rlruns in namespace team"] = [{"items": [], "metadata": {}}]
    answer = rlrun("list")
    assert answer.code == 1
    assert "the response is not a Table of rlruns" in answer.err


@pytest.mark.proves("name")
def test_list_and_get_show_the_display_name(rlrun: Rlrun, api: FakeCluster) -> None:
    api.put(custom_object(RLRUN, "first", spec={"model": "a/b", "maxSteps": 10, "name": "Try no. 3"}))
    assert "Try no. 3" in rlrun("list").out
    assert "Try no. 3" in rlrun("get", "first").out


def test_a_run_of_a_clients_program_has_a_step_and_no_environments(rlrun: Rlrun, api: FakeCluster) -> None:
    spec = {"model": "a/b", "driver": "Client", "maxSteps": 100, "env": []}
    api.put(custom_object(RLRUN, "first", spec=spec, status={"phase": "Running", "progress": {"step": 7}}))
    facts = [line.split() for line in rlrun("get", "first").out.splitlines()]
    assert ["Driver:", "Client"] in facts
    assert ["Step:", "7"] in facts
    assert "Trains" not in {fact[0] for fact in facts if fact}


def test_texts_of_a_run_do_not_control_the_terminal(rlrun: Rlrun, api: FakeCluster) -> None:
    title = "Try\x1b]0;title\x07\x9b2J\nfake   row"
    status = {"phase": "Fail\x1b[2Jed", "conditions": [{"type": "A", "status": "True", "message": "\x1b[31mred"}]}
    api.put(custom_object(RLRUN, "first", spec={"model": "a/b", "maxSteps": 10, "name": title}, status=status))
    for answer in (rlrun("list"), rlrun("get", "first")):
        assert "Try]0;title2J fake   row" in answer.out
        assert "Fail[2Jed" in answer.out
        assert not set(answer.out.replace("\n", "")) & {chr(code) for code in CONTROL_CHARACTERS}


def test_list_of_all_namespaces_has_a_namespace_column(rlrun: Rlrun, runs: FakeCluster) -> None:
    other = custom_object(RLRUN, "third", spec={"model": "a/b", "maxSteps": 10})
    other["metadata"]["namespace"] = "lab"
    runs.put(other)
    answer = rlrun("list", "-A")
    assert answer.out.startswith("NAMESPACE")
    assert {line.split()[0] for line in answer.out.splitlines()[1:]} == {"team", "lab"}
    assert "third" not in rlrun("list").out


def test_list_in_machine_readable_formats(rlrun: Rlrun, runs: FakeCluster) -> None:
    found = json.loads(rlrun("list", "-o", "json").out)
    assert found["kind"] == "List"
    assert [i["metadata"]["name"] for i in found["items"]] == ["second", "first"]
    assert "managedFields" not in found["items"][0]["metadata"]
    assert rlrun("list", "-o", "name").out.split() == ["rlruns.rlrun.dev/second", "rlruns.rlrun.dev/first"]


def test_an_empty_list_is_not_an_error(rlrun: Rlrun) -> None:
    answer = rlrun("list")
    assert (answer.code, answer.out) == (0, "")
    assert "No runs in namespace team" in answer.err
    assert json.loads(rlrun("list", "-o", "json").out)["items"] == []


def test_get(rlrun: Rlrun, runs: FakeCluster) -> None:
    text = rlrun("get", "first").out
    for part in ("team/first", "Failed", "give it more memory", "3/10", "TrainerReady", "s3://b/c", "reverse"):
        assert part in text
    assert yaml.safe_load(rlrun("get", "first", "-o", "yaml").out)["metadata"]["name"] == "first"
    assert rlrun("get", "missing").code == 1


def test_get_shows_the_display_name_if_there_is_one(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert "Name:" not in rlrun("get", "first").out
    named = runs.find("RLRun", "first")
    assert named is not None
    named["spec"]["name"] = "Reverse Text!"
    assert "Name:      Reverse Text!\n" in rlrun("get", "first").out


def test_get_shows_the_packages_that_the_run_trains_with(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert "Environment packages" not in rlrun("get", "first").out
    found = runs.find("RLRun", "first")
    assert found is not None
    digest = f"sha256:{'ab' * 32}"
    found["status"]["environments"] = [{"id": "acme/reverse", "version": "1.2.0", "digest": digest}]
    text = rlrun("get", "first").out
    for part in ("Environment packages", "acme/reverse", "1.2.0", digest):
        assert part in text


def test_cluster_options_are_accepted_before_and_after_the_command(
    rlrun: Rlrun, runs: FakeCluster, chosen: list[Any]
) -> None:
    rlrun("-n", "one", "--context", "c", "list")
    rlrun("list", "-n", "two", "--kubeconfig", "/k")
    rlrun("-n", "one", "list", "-n", "two")
    assert chosen == [(None, "c", "one"), (Path("/k"), None, "two"), (None, None, "two")]


def test_wide_shows_more_columns(rlrun: Rlrun, runs: FakeCluster) -> None:
    header, _, oldest = rlrun("list", "-o", "wide").out.splitlines()
    wide = ["LAST-STEP", "ENVIRONMENT", "DRIVER", "ATTEMPT", "POLICY", "CHECKPOINT", "AHEAD", "POOL"]
    assert header.split()[-8:] == wide
    assert "me/reverse" in oldest
    assert rlrun("list", "-o", "table").out == rlrun("list").out
    assert rlrun("get", "first", "-o", "wide").out.splitlines()[0].split() == header.split()


def test_labels_are_selected_by_the_api_server(rlrun: Rlrun, runs: FakeCluster) -> None:
    first = runs.find("RLRun", "first")
    assert first is not None
    first["metadata"]["labels"] = {"stage": "test"}
    assert rlrun("list", "-l", "stage=test", "-o", "name").out == "rlruns.rlrun.dev/first\n"
    assert runs.requests[-1].query["labelSelector"] == "stage=test"


@pytest.mark.parametrize("path", [".metadata.name", "{.metadata.name}", "metadata.name"])
def test_rows_are_sorted_by_a_field(rlrun: Rlrun, runs: FakeCluster, path: str) -> None:
    assert rlrun("list", "--sort-by", path, "-o", "name").out.split() == [
        "rlruns.rlrun.dev/first",
        "rlruns.rlrun.dev/second",
    ]


@pytest.mark.parametrize(("path", "why"), [(".spec.x[", "is not the path"), (".status.nothing", "no object has")])
def test_a_field_that_cannot_be_sorted_by_is_refused(rlrun: Rlrun, runs: FakeCluster, path: str, why: str) -> None:
    answer = rlrun("list", "--sort-by", path)
    assert answer.code == 2
    assert why in answer.err


def event(kind: str, name: str, version: str, phase: str = "Running") -> bytes:
    item = custom_object(RLRUN, name, spec={"model": "a/b", "maxSteps": 10}, status={"phase": phase})
    item["metadata"]["resourceVersion"] = version
    table = printed(item, Printed(RLRUN, has_objects=True).first_page())
    return json.dumps({"type": kind, "object": {**table, "columnDefinitions": None}}).encode() + b"\n"


BOOKMARK = b'{"type": "BOOKMARK", "object": {"kind": "Table", "metadata": {"resourceVersion": "900"}, "rows": []}}\n'
WATCH = "watch rlruns in namespace team"
END = ApiError(403, "Forbidden", "the right was taken away")
"""Nothing else ends a watch."""


def test_a_watch_prints_a_row_for_each_change(rlrun: Rlrun, runs: FakeCluster) -> None:
    lines = event("MODIFIED", "second", "800", "Queued") + BOOKMARK
    runs.answers[WATCH] = [[lines[:50], lines[50:]], [event("MODIFIED", "second", "901")], END]
    answer = rlrun("list", "-w")
    assert answer.code == 1
    assert [line.split()[:2] for line in answer.out.splitlines()] == [
        ["NAME", "PHASE"], ["second", "Pending"], ["first", "Failed"], ["second", "Queued"], ["second", "Running"],
    ]  # fmt: skip
    versions = [r.query["resourceVersion"] for r in runs.requests if str(r) == WATCH]
    assert versions[1:] == ["900", "901"], "a watch goes on where the one before it ended"


def test_a_watch_that_is_too_old_begins_again_without_repeating_rows(rlrun: Rlrun, runs: FakeCluster) -> None:
    gone = b'{"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"}}\n'
    runs.answers[WATCH] = [[gone], END]
    assert len(rlrun("list", "-w").out.splitlines()) == 3
    assert runs.calls.count("list rlruns in namespace team") == 2


def test_a_watch_takes_over_the_columns_of_an_upgraded_kind(rlrun: Rlrun, runs: FakeCluster) -> None:
    upgraded = json.loads(event("MODIFIED", "second", "901"))
    item = custom_object(RLRUN, "second", spec={"model": "a/b", "maxSteps": 10})
    table = printed(item, Printed(RLRUN, has_objects=True).first_page())
    (row,) = upgraded["object"]["rows"]
    upgraded["object"]["columnDefinitions"] = [*table["columnDefinitions"], {"name": "New", "type": "string"}]
    row["cells"] = [*row["cells"], "a value"]
    runs.answers[WATCH] = [[json.dumps(upgraded).encode() + b"\n"], END]
    answer = rlrun("list", "-w", "-o", "wide")
    assert "a value" in answer.out
    assert "the right was taken away" in answer.err


def test_a_list_that_is_always_too_old_ends(rlrun: Rlrun, runs: FakeCluster) -> None:
    runs.answers["list rlruns in namespace team"] = [ApiError(410, "Expired", "the continue token is too old")]
    answer = rlrun("list")
    assert answer.code == 1
    assert "too old" in answer.err


def test_a_watch_of_one_run_ends_with_its_deletion(rlrun: Rlrun, runs: FakeCluster) -> None:
    runs.answers[WATCH] = [[event("DELETED", "first", "800")]]
    answer = rlrun("get", "first", "-w", "-o", "json")
    assert answer.code == 1
    assert "first was deleted" in answer.err
    assert runs.requests[-1].query["fieldSelector"] == "metadata.name=first"
    decoder, text, shown = json.JSONDecoder(), answer.out, []
    while text.strip():
        item, end = decoder.raw_decode(text.lstrip())
        shown.append(item["metadata"]["name"])
        text = text.lstrip()[end:]
    assert shown == ["first", "first"]


def test_a_watch_survives_an_outage_and_ends_when_it_lasts(rlrun: Rlrun, runs: FakeCluster) -> None:
    away = ApiError(0, "Unreachable", "the API server does not answer")
    runs.answers[WATCH] = [away, [event("MODIFIED", "second", "901")], END]
    assert rlrun("list", "-w", "-o", "name").out.split().count("rlruns.rlrun.dev/second") == 2
    runs.answers[WATCH] = [away]
    answer = rlrun("list", "-w", ticks=50.0)
    assert answer.code == 1
    assert "does not answer" in answer.err


def test_watch_and_order_exclude_each_other(rlrun: Rlrun, runs: FakeCluster) -> None:
    assert rlrun("list", "-w", "--sort-by", ".metadata.name").code == 2
