import pytest
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLRUN, ResourceKind

from tests.support.command_line import Rlrun
from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object


@pytest.fixture
def artifacts(api: FakeCluster) -> FakeCluster:
    api.put(custom_object(RLRUN, "first", spec={"model": "a/b"}))
    api.put(custom_object(RLRUN, "empty", spec={"model": "a/b"}))
    for kind in (RLCHECKPOINT, RLADAPTER):
        for step in (10, 9):
            spec = {"runName": "first", "step": step, "uri": f"s3://b/{step}"}
            status = {"phase": "Ready", "sizeBytes": 2048, "reward": 0.5}
            api.put(custom_object(kind, f"first-{step}", spec=spec, status=status))
        api.put(custom_object(kind, "other-1", spec={"runName": "other", "step": 1, "uri": "s3://b/o"}))
    return api


@pytest.mark.parametrize("command", ["checkpoints", "adapters"])
def test_artifacts_are_sorted_by_step(rlrun: Rlrun, artifacts: FakeCluster, command: str) -> None:
    header, *rows = rlrun(command, "first").out.splitlines()
    assert [r.split()[0] for r in rows] == ["first-9", "first-10"]
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
    text = rlrun(command, "get", "first-9").out
    for part in ("team/first-9", "2.0 KiB", "s3://b/9"):
        assert part in text
    assert len(rlrun(command, "get", "first-9", "-o", "wide").out.splitlines()) == 2
    assert rlrun(command, "get", "none").code == 1


@pytest.mark.parametrize(("command", "kind"), [("checkpoints", RLCHECKPOINT), ("adapters", RLADAPTER)])
def test_an_artifact_is_deleted_only_after_its_run(
    rlrun: Rlrun, artifacts: FakeCluster, command: str, kind: ResourceKind
) -> None:
    spec = {"runName": "first", "runUid": "uid-first", "step": 1, "uri": "s3://b/1"}
    artifacts.put(custom_object(kind, "one", spec=spec))
    answer = rlrun(command, "delete", "one", "--yes")
    assert answer.code == 1
    assert "would record it again" in answer.err
    artifacts.put(custom_object(RLRUN, "first", spec={"model": "a/b"}) | {"metadata": {
        "name": "first", "namespace": "team", "uid": "another"}})  # fmt: skip
    assert rlrun(command, "delete", "one").code == 2, "nobody confirms"
    assert rlrun(command, "delete", "one", "--yes").out == f"rl{command}.rlrun.dev/one deleted\n"


def deployed(artifacts: FakeCluster, *states: str, **status: object) -> None:
    """What the operator reports of adapter first-9, one state per request."""
    spec = {"runName": "first", "step": 9, "uri": "s3://b/9"}
    artifacts.answers["get RLAdapter team/first-9"] = [
        custom_object(RLADAPTER, "first-9", spec=spec, status={"phase": "Ready", "deploymentState": state, **status})
        for state in states
    ]


def is_deployed(artifacts: FakeCluster) -> bool:
    found = artifacts.find("RLAdapter", "first-9")
    assert found is not None
    return bool(found["spec"].get("deployed"))


def test_deploy_and_undeploy(rlrun: Rlrun, artifacts: FakeCluster) -> None:
    assert rlrun("adapters", "deploy", "first-9").out == "rladapters.rlrun.dev/first-9 deploying\n"
    assert is_deployed(artifacts)
    assert "nothing changed" in rlrun("adapters", "deploy", "first-9").err
    assert "undeploy first-9" in rlrun("adapters", "delete", "first-9", "--yes").err
    assert rlrun("adapters", "undeploy", "first-9").out == "rladapters.rlrun.dev/first-9 unloading\n"
    assert not is_deployed(artifacts)
    assert "nothing changed" in rlrun("adapters", "undeploy", "first-9").err


def test_deploy_waits_and_prints_where_the_adapter_is_served(rlrun: Rlrun, artifacts: FakeCluster) -> None:
    served = {"deploymentModel": "a/b:first-9", "deploymentUrl": "http://pool/v1", "deploymentSecret": "key"}
    deployed(artifacts, "NotDeployed", "Deploying", "Deployed", **served)
    answer = rlrun("adapters", "deploy", "first-9", "--wait")
    assert answer.code == 0
    assert all(value in answer.err for value in served.values())


def test_a_failed_deployment_ends_the_wait_with_its_cause(rlrun: Rlrun, artifacts: FakeCluster) -> None:
    deployed(artifacts, "NotDeployed", "DeployFailed", deploymentMessage="ModelGone: add the model")
    answer = rlrun("adapters", "deploy", "first-9", "--wait")
    assert answer.code == 1
    assert "ModelGone: add the model" in answer.err


def test_an_adapter_that_is_not_ready_cannot_be_deployed(rlrun: Rlrun, artifacts: FakeCluster) -> None:
    answer = rlrun("adapters", "deploy", "other-1")
    assert answer.code == 1
    assert "other-1 is Pending, not Ready" in answer.err
    assert artifacts.writes == 0
