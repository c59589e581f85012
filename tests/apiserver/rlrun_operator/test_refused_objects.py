"""Objects of a run that a real API server refuses, and names that are taken."""

from typing import Any

import pytest
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.async_transport import AsyncApiTransport
from rlrun.kube.connection.api_configuration import load_configuration
from rlrun.kube.kinds import ALL
from rlrun.kube.refusals import ObjectRefused

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_operator.conftest import Bench
from tests.support.expectations import lacks

APPS = "apis/apps/v1"
REPLICA_SETS = "count/replicasets.apps"


def set_quota(bench: Bench, replica_sets: int) -> None:
    """Writes the status as well, which a controller does in a whole cluster."""
    path = f"/api/v1/namespaces/{bench.namespace}/resourcequotas"
    hard = {REPLICA_SETS: str(replica_sets)}
    if bench.get("api/v1", "resourcequotas", "small") is None:
        bench.call("POST", path, {"metadata": {"name": "small"}, "spec": {"hard": hard}})
    used = {REPLICA_SETS: str(len(bench.items(APPS, "replicasets")))}
    patch = "application/merge-patch+json"
    bench.call("PATCH", f"{path}/small", {"spec": {"hard": hard}}, patch)
    bench.call("PATCH", f"{path}/small/status", {"status": {"hard": hard, "used": used}}, patch)


def test_a_quota_that_refuses_a_replica_set_becomes_a_condition_and_then_the_run_goes_on(bench: Bench) -> None:
    set_quota(bench, 1)
    bench.create_model()
    bench.create_run()
    bench.wait("the refusal", lambda: bench.condition("ChildrenApplied").get("reason") == "QuotaExceeded")
    refused = bench.condition("ChildrenApplied")
    assert refused["status"] == "False"
    assert not lacks(refused["message"], "exceeded quota: small", f"limited: {REPLICA_SETS}=1")
    status = bench.run()["status"]
    assert (status["phase"], status["reason"], status["attempt"]) == ("Pending", "QuotaExceeded", 1)
    assert len(bench.items(APPS, "replicasets")) == 1
    bench.wait("its Event", lambda: "QuotaExceeded" in {e["reason"] for e in bench.items("api/v1", "events")})

    set_quota(bench, 9)
    bench.wait("the other ReplicaSets", lambda: len(bench.items(APPS, "replicasets")) == 3)
    bench.wait("the end of the refusal", lambda: bench.condition("ChildrenApplied")["status"] == "True")


def test_a_service_account_of_another_owner_is_not_taken_over(bench: Bench) -> None:
    accounts = f"/api/v1/namespaces/{bench.namespace}/serviceaccounts"
    bench.call("POST", accounts, {"metadata": {"name": "reverse"}, "automountServiceAccountToken": True})
    before = bench.get("api/v1", "serviceaccounts", "reverse")
    bench.create_model()
    bench.create_run()
    bench.wait("the refusal", lambda: bench.condition("ChildrenApplied").get("reason") == "NameTaken")
    assert bench.get("api/v1", "serviceaccounts", "reverse") == before
    assert bench.items(APPS, "replicasets") == []
    bench.call("DELETE", f"{accounts}/reverse")
    bench.wait("the ReplicaSets", lambda: len(bench.items(APPS, "replicasets")) == 3)


def test_large_objects_of_users_with_the_label_of_a_run_hold_up_this_run_until_they_are_deleted(bench: Bench) -> None:
    config_maps = f"/api/v1/namespaces/{bench.namespace}/configmaps"
    large = {"data": {"text": 1_000_000 * "x"}}
    for number in range(40):
        labels = {RUN_LABEL: "reverse", MANAGED_BY_LABEL: FIELD_MANAGER, "large": "true"}
        bench.call("POST", config_maps, {"metadata": {"name": f"large-{number}", "labels": labels}, **large})
    bench.create_model()
    bench.create_run()
    bench.create_run("other")
    bench.wait("the condition", lambda: bench.condition("ChildrenApplied").get("reason") == "ObjectsTooLarge")
    message = bench.condition("ChildrenApplied")["message"]
    assert f"Delete the configmaps that users have created with labels matching {RUN_LABEL}=reverse" in message
    bench.wait("the other run", lambda: bench.condition("TrainerReady", "other"))
    bench.wait("an Event", lambda: "ObjectsTooLarge" in {e["reason"] for e in bench.items("api/v1", "events")})
    bench.call("DELETE", f"{config_maps}?labelSelector=large%3Dtrue")
    bench.wait("the ReplicaSets", lambda: len(bench.items(APPS, "replicasets")) == 6)
    bench.wait("its end", lambda: bench.condition("ChildrenApplied").get("status") == "True")


POD: dict[str, Any] = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "a"}]}
SELECTED: dict[str, Any] = {"selector": {"matchLabels": {"a": "b"}}}
TEMPLATE: dict[str, Any] = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": POD["containers"]}}
NEW_OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}},
    {"apiVersion": "v1", "kind": "Secret", "stringData": {"a": "b"}},
    {"apiVersion": "v1", "kind": "ServiceAccount"},
    {"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 80}]}},
    {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": {"podSelector": {}}},
    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "spec": {**SELECTED, "template": TEMPLATE}},
    {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": POD}}},
    {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "spec": {"runName": "a", "runUid": "uid-1", "model": "a/b", "step": 1, "uri": "s3://a/b"},
    },
]


@pytest.mark.parametrize("body", NEW_OBJECTS, ids=lambda body: body["kind"])
async def test_a_new_object_takes_no_name_of_another(
    control_plane: ControlPlane, namespace: str, body: dict[str, Any]
) -> None:
    """One request creates it or is answered 409: the API server knows no object of the version that is sent."""
    kube = AsyncKubeClient(AsyncApiTransport(await load_configuration(str(control_plane.kubeconfig))))
    kind = ALL[body["kind"]]
    try:
        own = {**body, "metadata": {"namespace": namespace, "name": "own", "labels": {RUN_UID_LABEL: "uid-1"}}}
        created = await kube.apply_own(own, is_new=True)
        assert {entry["operation"] for entry in created["metadata"]["managedFields"]} == {"Apply"}
        assert (await kube.apply_own(own, is_new=True))["metadata"]["uid"] == created["metadata"]["uid"]

        foreign = {**body, "metadata": {"namespace": namespace, "name": "foreign"}}
        if kind.kind == "RLCheckpoint":
            foreign["spec"] = {**body["spec"], "runUid": "uid-2"}
        await kube.create(foreign)
        before = await kube.get(kind, namespace, "foreign")
        with pytest.raises(ObjectRefused, match="has a different owner"):
            await kube.apply_own({**own, "metadata": {**own["metadata"], "name": "foreign"}}, is_new=True)
        assert await kube.get(kind, namespace, "foreign") == before
    finally:
        await kube.close()


def test_a_run_that_is_nested_deeper_than_python_reads_is_refused_and_holds_up_no_other(bench: Bench) -> None:
    levels = 4000
    args = '{"a":' * levels + "1" + "}" * levels
    text = (
        f'{{"apiVersion":"rlrun.dev/v1alpha1","kind":"RLRun","metadata":{{"name":"deep"}},"spec":{{"model":"tests/'
        f'{bench.namespace}","maxSteps":10,"sampling":{{"maxTokens":64}},"env":[{{"id":"rlrun/reverse-text",'
        f'"args":{args}}}]}}}}'
    )
    bench.api.call_api(
        f"/apis/rlrun.dev/v1alpha1/namespaces/{bench.namespace}/rlruns",
        "POST",
        header_params={"Content-Type": "application/yaml"},
        body=text,
        auth_settings=["BearerToken"],
        _preload_content=False,
    )
    bench.create_model()
    bench.create_run("other")
    bench.wait("the other run", lambda: bench.condition("TrainerReady", "other"))
    bench.wait("the refusal", lambda: "InvalidSpec" in map(str, bench.columns("deep").values()))
