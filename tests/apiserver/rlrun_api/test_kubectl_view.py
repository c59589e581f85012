"""What `kubectl get` and `kubectl explain` show of the kinds, asked of the API server itself."""

import json

import pytest
from kubernetes import client
from rlrun.codegen.crd import KINDS, CrdKind
from rlrun.constants import GROUP, VERSION
from rlrun.kube.kinds import RLRUN
from rlrun.kube.requests import Printed
from rlrun_operator.controller.observer import WITH_CHECKPOINT

from tests.apiserver.rlrun_api.server import Object
from tests.support.printed_tables import printed

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"

EXPECTED = {
    "RLRun": ["Name", "Phase", "Step", "Max", "Reward", "ETA", "Restarts", "Model", "Display", "Age", "Reason"],
    "RLCheckpoint": ["Name", "Run", "Step", "Phase", "Reward", "Size", "Age", "URI"],
    "RLAdapter": ["Name", "Run", "Step", "Phase", "Reward", "Size", "Deployment", "Age", "URI"],
    "RLModel": [
        *("Name", "Model", "Seq-Len", "Rank", "Trainers", "Trainer-GPUs", "Engines", "Engine-GPUs", "Runs"),
        *("Source", "Age"),
    ],
}
WIDE = {
    "RLRun": ["Last-Step", "Environment", "Driver", "Attempt", "Policy", "Checkpoint", "Ahead", "Pool"],
    "RLCheckpoint": ["Model", "Shared-With"],
    "RLAdapter": ["Model", "Shared-With", "Served-As"],
    "RLModel": ["Valid", "Weights", "Warnings"],
}
IDS = [kind.name for kind in KINDS]


def get(api: client.ApiClient, path: str, accept: str = "application/json") -> Object:
    response = api.call_api(
        path,
        "GET",
        header_params={"Accept": accept},
        auth_settings=["BearerToken"],
        _preload_content=False,
        _return_http_data_only=True,
    )
    answer: Object = json.loads(response.data)
    return answer


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_columns(kind: CrdKind, api: client.ApiClient) -> None:
    columns = get(api, f"/apis/{GROUP}/{VERSION}/{kind.plural}", TABLE)["columnDefinitions"]
    assert [c["name"] for c in columns if c["priority"] == 0] == EXPECTED[kind.name]
    assert [c["name"] for c in columns if c["priority"] == 1] == WIDE[kind.name]


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_names_and_categories(kind: CrdKind, api: client.ApiClient) -> None:
    served = {r["name"]: r for r in get(api, f"/apis/{GROUP}/{VERSION}")["resources"]}
    resource = served[kind.plural]
    assert resource["shortNames"] == [kind.short_name]
    assert "rl" in resource["categories"]
    names = {name for k in KINDS for name in (k.plural, k.name.lower(), k.short_name)}
    assert names.isdisjoint(resource["categories"]), "`kubectl get rlrun NAME` would mean a whole category"
    assert resource["namespaced"] is (kind.name != "RLModel")
    assert f"{kind.plural}/status" in served


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_explain_has_a_description_of_every_field(kind: CrdKind, api: client.ApiClient) -> None:
    schemas = get(api, f"/openapi/v3/apis/{GROUP}/{VERSION}")["components"]["schemas"]
    schema = schemas[f"dev.rlrun.{VERSION}.{kind.name}"]
    bare = []

    def visit(field: Object, path: str) -> None:
        for name, below in field.get("properties", {}).items():
            if not below.get("description"):
                bare.append(f"{path}.{name}")
            visit(below, f"{path}.{name}")
            visit(below.get("items", {}), f"{path}.{name}[]")

    visit(schema, kind.name)
    assert schema["description"]
    assert bare == []


def test_a_run_in_a_table(api: client.ApiClient, namespace: str) -> None:
    objects = client.CustomObjectsApi(api)
    where = (GROUP, VERSION, namespace, "rlruns")
    objects.create_namespaced_custom_object(
        *where,
        {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "RLRun",
            "metadata": {"name": "shown"},
            "spec": {"name": "Try no. 3", "model": "acme/tiny", "env": [{"id": "acme/reverse-text"}]},
        },
    )
    objects.patch_namespaced_custom_object_status(
        *where,
        "shown",
        {
            "status": {
                "phase": "Running",
                "reason": "Training",
                "attempt": 1,
                "restarts": 1,
                "lastCheckpoint": "shown-step-40",
                "queue": {"runsAhead": 2},
                "pool": {"name": "rlpool-tiny-0123abcd"},
                "progress": {
                    "lastStepTime": "2026-01-01T00:00:00Z",
                    "step": 41,
                    "reward": 0.731,
                    "policyVersion": 40,
                    "etaSeconds": 12.5,
                },
            }
        },
    )
    table = get(api, f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/rlruns", TABLE)
    row = dict(zip((c["name"] for c in table["columnDefinitions"]), table["rows"][0]["cells"], strict=True))
    stored = objects.get_namespaced_custom_object(*where, "shown")
    in_memory = printed(stored, Printed(RLRUN, namespace).first_page())
    assert table["rows"][0]["cells"] == in_memory["rows"][0]["cells"], "the cluster in memory prints the same"
    row.pop("Age")
    assert row.pop("Last-Step") not in (None, "<invalid>")
    assert row == {
        "Name": "shown",
        "Phase": "Running",
        "Step": 41,
        "Max": 100,
        "Reward": 0.731,
        "ETA": 12.5,
        "Model": "acme/tiny",
        "Display": "Try no. 3",
        "Restarts": 1,
        "Reason": "Training",
        "Environment": "acme/reverse-text",
        "Driver": "Orchestrator",
        "Attempt": 1,
        "Policy": 40,
        "Checkpoint": "shown-step-40",
        "Ahead": 2,
        "Pool": "rlpool-tiny-0123abcd",
    }


def test_runs_are_selected_by_the_checkpoint_that_they_start_from(api: client.ApiClient, namespace: str) -> None:
    objects = client.CustomObjectsApi(api)
    spec = {"model": "acme/tiny", "sampling": {"maxTokens": 8}, "env": [{"id": "acme/reverse-text"}]}
    for name, more in (("cold", {}), ("warm", {"checkpointId": "one"}), ("other", {"checkpointId": "team/one"})):
        run = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "RLRun",
            "metadata": {"name": name},
            "spec": {**spec, **more},
        }
        objects.create_namespaced_custom_object(GROUP, VERSION, namespace, "rlruns", run)
    for selector, expected in (
        (WITH_CHECKPOINT, {"warm", "other"}),
        ("spec.checkpointId=one", {"warm"}),
        ("spec.checkpointId=", {"cold"}),
    ):
        found = objects.list_namespaced_custom_object(GROUP, VERSION, namespace, "rlruns", field_selector=selector)
        assert {run["metadata"]["name"] for run in found["items"]} == expected, selector
    with pytest.raises(client.ApiException) as refused:
        objects.list_namespaced_custom_object(GROUP, VERSION, namespace, "rlruns", field_selector="spec.seed!=")
    assert refused.value.status == 400, "never an empty list, which would mean that no run needs a checkpoint"
