"""An upgrade is not begun blindly: what the next version refuses is named before."""

from typing import Any

import pytest
from rlrun.installation.checks import Finding
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, RLMODEL, RLRUN
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.upgrade_checks import SHOWN, examine_upgrade

from tests.support.fake_cluster import FakeCluster
from tests.unit.rlrun_cli.conftest import custom_object

ENV = [{"id": "acme/reverse-text"}]
REFUSED = {"model": "a/m", "batchSize": 7, "env": ENV}


def model(name: str, source: str = "s3://bucket/m") -> Any:
    return custom_object(RLMODEL, name, spec={"id": f"a/{name}", "source": source})


def found(remote: RemoteCluster) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine_upgrade(remote)}


def test_objects_that_this_version_accepts_are_counted(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(model("m"))
    api.put(custom_object(RLRUN, "r", spec={"model": "a/m", "env": ENV}))
    texts = {name: finding.text for name, finding in found(remote).items() if name != "tenants"}
    assert set(texts.values()) == {"this version accepts all 1"}


def test_namespaces_that_are_no_tenants_yet_are_named_with_the_command(api: FakeCluster, remote: RemoteCluster) -> None:
    labels = {"one": {}, "two": {"rlrun.dev/tenant": "true"}, "three": {}, "four": {}}
    for name, own in labels.items():
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": own}})
        run = custom_object(RLRUN, "r", spec={"model": "a/m", "env": ENV})
        run["metadata"]["namespace"] = name
        api.put(run | {"status": {"phase": "Completed" if name == "three" else "Running"}})
    finding = found(remote)["tenants"]
    assert "these namespaces with runs or deployed adapters: four, one" in finding.text
    assert "kubectl label namespace four one rlrun.dev/tenant=true" in finding.hint

    chart = custom_object(CONFIG_MAP, "rlrun-server", data={"namespaceLabel": "kind=rl"})
    chart["metadata"]["namespace"] = "kube-public"
    api.put(chart)
    assert "four one two kind=rl" in found(remote)["tenants"].hint
    api.put({**chart, "data": {"namespaces": "one"}})
    assert not found(remote)["tenants"].is_problem


def test_refused_models_are_named_with_their_field(api: FakeCluster, remote: RemoteCluster) -> None:
    api.put(model("good"))
    api.put(model("old", "hf://Qwen/Qwen3-0.6B"))
    finding = found(remote)["RLModels"]
    assert finding.is_problem
    assert finding.text.startswith("this version rejects 1: RLModel old: spec.source: an hf:// source must be")


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [({}, True), ({"phase": "Running", "resolved": {"model": {}}}, False), ({"phase": "Completed"}, False)],
    ids=["not begun", "begun", "finished"],
)
def test_runs_are_refused_as_the_operator_refuses_them(
    api: FakeCluster, remote: RemoteCluster, status: Any, is_refused: bool
) -> None:
    api.put(custom_object(RLRUN, "r", spec=REFUSED, status=status))
    finding = found(remote)["RLRuns"]
    assert finding.is_problem is is_refused
    assert ("RLRun team/r: spec.batchSize: batchSize must be a multiple" in finding.text) is is_refused


def test_a_long_list_is_cut(api: FakeCluster, remote: RemoteCluster) -> None:
    for number in range(SHOWN + 3):
        api.put(model(f"m{number}", "hf://a/b"))
    assert found(remote)["RLModels"].text.endswith("; and 3 more")


def test_without_the_right_to_read_all_namespaces_those_of_the_own_are_checked(
    api: FakeCluster, remote: RemoteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(custom_object(RLRUN, "r", spec=REFUSED))
    everywhere = remote.snapshot

    def forbidden(*args: Any, all_namespaces: bool = False, **options: Any) -> Any:
        if all_namespaces:
            raise ApiError(403, "Forbidden", "rlruns is forbidden at the cluster scope")
        return everywhere(*args, **options)

    monkeypatch.setattr(remote, "snapshot", forbidden)
    assert found(remote)["RLRuns"].is_problem
