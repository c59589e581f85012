from datetime import UTC, datetime

import pytest
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN, ResourceKind
from rlrun.kube.objects import ordered_expiry

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_artifacts_are_sorted_by_step(rlrun: Rlrun, artifacts: FakeCluster, command: str) -> None:
    header, *rows = rlrun(command, "first").out.splitlines()
    assert [r.split()[0] for r in rows] == ["first-09", "first-10"]
    assert "2.0 KiB" in rows[0]
    assert ("DEPLOYMENT" in header) == (command == "adapters")
    assert len(rlrun(command).out.splitlines()) == 4


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_an_unknown_run_is_an_error_one_without_artifacts_is_not(
    rlrun: Rlrun, artifacts: FakeCluster, command: str
) -> None:
    assert rlrun(command, "empty").code == 0
    assert rlrun(command, "frist").code == 1


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_a_run_named_like_a_command_is_listed_with_the_word_list(
    rlrun: Rlrun, artifacts: FakeCluster, command: str
) -> None:
    assert rlrun(command, "list", "first").out == rlrun(command, "first").out
    assert rlrun(command, "-o", "name").out == rlrun(command, "list", "-o", "name").out
    assert "does not exist" in rlrun(command, "list", "get").err


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_get_shows_one_artifact(rlrun: Rlrun, artifacts: FakeCluster, command: str) -> None:
    text = rlrun(command, "get", "first-09").out
    assert ("cp_team.first-09" in text) == (command == "checkpoints")
    for part in ("team/first-09", "2.0 KiB", "s3://b/9"):
        assert part in text
    assert len(rlrun(command, "get", "first-09", "-o", "wide").out.splitlines()) == 2
    assert rlrun(command, "get", "none").code == 1


@pytest.mark.parametrize(("command", "kind"), [("checkpoints", RLCHECKPOINT), ("adapters", RLADAPTER)])
def test_an_artifact_is_deleted_by_retention_while_its_run_exists(
    rlrun: Rlrun, artifacts: FakeCluster, command: str, kind: ResourceKind
) -> None:
    spec = {"runName": "first", "runUid": "uid-first", "step": 1, "uri": "s3://b/1"}
    artifacts.put(custom_object(kind, "one", spec=spec))
    assert rlrun(command, "delete", "one", "--yes").out == f"rl{command}.rlrun.dev/one deleting\n"
    changed = ordered_expiry(artifacts.find(kind.kind, "one"))
    assert changed is not None
    assert changed <= datetime.now(UTC)
    artifacts.put(custom_object(RLRUN, "first", spec={"model": "a/b"}) | {"metadata": {
        "name": "first", "namespace": "team", "uid": "another"}})  # fmt: skip
    assert rlrun(command, "delete", "one").code == 2, "nobody confirms"
    assert rlrun(command, "delete", "one", "--yes").out == f"rl{command}.rlrun.dev/one deleted\n"


@pytest.mark.parametrize(("command", "kind"), [("checkpoints", RLCHECKPOINT), ("adapters", RLADAPTER)])
def test_an_artifact_that_was_made_again_under_the_name_is_not_deleted(
    rlrun: Rlrun, api: FakeCluster, command: str, kind: ResourceKind
) -> None:
    item = custom_object(kind, "one", spec={"runName": "gone", "runUid": "u", "step": 1, "uri": "s3://b/1"})
    api.answers[f"get {kind.kind} team/one"] = [item]
    again = {**item, "metadata": {**item["metadata"], "uid": "another"}}
    api.put(again)
    answer = rlrun(command, "delete", "one", "--yes")
    assert answer.code == 1
    assert "it was replaced by a new object with the same name" in answer.err
    assert api.find(kind.kind, "one") is not None
