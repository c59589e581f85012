"""Pools of deployed adapters against a real API server: what is made, what is shown, what goes."""

import json
from typing import Any

from kubernetes import client
from rlrun.api.model import RLModelSpec
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun.storage.layout import S3Uri
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.serving_pool import PoolCredentials, PoolIdentity, pool_children

from tests.apiserver.rlrun_operator.conftest import Bench
from tests.apiserver.rlrun_operator.test_children import FULL_MODEL, apply

Obj = dict[str, Any]
APPS, CORE, NET, RL = "apis/apps/v1", "api/v1", "apis/networking.k8s.io/v1", "apis/rlrun.dev/v1alpha1"
MERGE = "application/merge-patch+json"


def place(bench: Bench, name: str) -> str:
    return f"/{RL}/namespaces/{bench.namespace}/rladapters/{name}"


def create_adapter(bench: Bench, name: str) -> None:
    spec = {
        "runName": "gone",
        "runUid": name,
        "model": f"tests/{bench.namespace}",
        "step": 3,
        "uri": f"s3://rlrun/{bench.namespace}/{name}/adapters/step-000003",
    }
    body = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLAdapter", "metadata": {"name": name}, "spec": spec}
    bench.call("POST", place(bench, "").rstrip("/"), body)
    bench.call("PATCH", f"{place(bench, name)}/status", {"status": {"phase": "Ready", "sizeBytes": 7}}, MERGE)


def deploy(bench: Bench, name: str, deployed: bool = True) -> None:
    bench.call("PATCH", place(bench, name), {"spec": {"deployed": deployed}}, MERGE)


def status(bench: Bench, name: str) -> Obj:
    return dict((bench.get(RL, "rladapters", name) or {}).get("status") or {})


def wait_for_state(bench: Bench, name: str, state: str) -> Obj:
    bench.wait(f"{name} {state}", lambda: status(bench, name).get("deploymentState") == state)
    return status(bench, name)


def pool_objects(bench: Bench) -> list[str]:
    kinds = ((APPS, "deployments"), (NET, "networkpolicies"))
    kinds += tuple((CORE, p) for p in ("services", "configmaps", "secrets", "serviceaccounts", "pods"))
    found = [(p, o) for api, p in kinds for o in bench.items(api, p)]
    return [p for p, o in found if "rlrun.dev/serving" in (o["metadata"].get("labels") or {})]


def start_pods(bench: Bench, model: str | None = None) -> None:
    """Plays the node: the pool's pod runs, is ready, and its sidecar has loaded what lies in the ConfigMap."""
    identity = PoolIdentity(bench.namespace, model or f"tests/{bench.namespace}")
    pod = f"{identity.name}-0"
    order = bench.wait("the desired adapters", lambda: bench.get(CORE, "configmaps", identity.desired_config))
    bench.wait("the pool", lambda: bench.get(APPS, "deployments", identity.name))
    bench.orchestrators.orders[bench.namespace, pod] = json.loads(order["data"]["order.json"])
    bench.make_pods()
    path = f"/{CORE}/namespaces/{bench.namespace}/pods/{pod}/status"
    bench.call("PATCH", path, {"status": {"podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}]}}, MERGE)


def test_life_of_a_deployed_adapter(bench: Bench) -> None:
    bench.create_model()
    for name in ("first", "second"):
        create_adapter(bench, name)
    deploy(bench, "first")
    assert "Waiting" in wait_for_state(bench, "first", "Deploying")["deploymentMessage"]
    start_pods(bench)
    told = wait_for_state(bench, "first", "Deployed")
    model = f"tests/{bench.namespace}"
    identity = PoolIdentity(bench.namespace, model)
    assert told["deploymentModel"] == f"{model}:first"
    assert told["deploymentUrl"] == identity.url
    assert told["deploymentSecret"] == identity.api_key_secret
    assert bench.get(CORE, "secrets", identity.api_key_secret)
    assert told["deployedAt"]
    assert (told["phase"], told["sizeBytes"]) == ("Ready", 7), "the catalogue's part of the status stays"
    assert "deploymentMessage" not in told, "a field that was written before goes when it is not written again"
    generation = (bench.get(APPS, "deployments", identity.name) or {})["metadata"]["generation"]

    deploy(bench, "second")
    wait_for_state(bench, "second", "Deployed")
    orders = bench.orchestrators.orders[bench.namespace, f"{identity.name}-0"]
    assert [a["name"] for a in orders["adapters"]] == [f"{model}:first", f"{model}:second"]
    assert (bench.get(APPS, "deployments", identity.name) or {})["metadata"]["generation"] == generation

    deploy(bench, "first", False)
    wait_for_state(bench, "first", "NotDeployed")
    assert status(bench, "second")["deploymentState"] == "Deployed"
    bench.call("DELETE", place(bench, "second"))
    bench.wait("the pool's end", lambda: not pool_objects(bench))
    reasons = {e["reason"] for e in bench.items(CORE, "events") if e["involvedObject"]["kind"] == "RLAdapter"}
    assert reasons == {"AdapterDeployed", "AdapterUndeployed"}


def test_a_failed_deployment_continues_once_its_model_exists(bench: Bench) -> None:
    create_adapter(bench, "early")
    deploy(bench, "early")
    assert "ModelNotFound" in wait_for_state(bench, "early", "DeployFailed")["deploymentMessage"]
    bench.create_model()
    wait_for_state(bench, "early", "Deploying")


def test_a_deployed_adapter_survives_its_run_with_artifact_policy_delete(bench: Bench) -> None:
    bench.create_model()
    bench.create_run(artifactPolicy="Delete")
    bench.wait("a start", lambda: bench.run().get("status", {}).get("startTime"))
    for step in (1, 2):
        bench.upload("adapter", step)

    def owned() -> dict[int, bool]:
        found = {o["spec"]["step"]: o for o in bench.items(RL, "rladapters")}
        return {step: bool(o["metadata"].get("ownerReferences")) for step, o in found.items()}

    bench.wait("both adapters", lambda: owned() == {1: True, 2: True})
    name = next(o["metadata"]["name"] for o in bench.items(RL, "rladapters") if o["spec"]["step"] == 2)
    deploy(bench, name)
    bench.wait("an adapter of its own", lambda: owned() == {1: True, 2: False})
    start_pods(bench)
    wait_for_state(bench, name, "Deployed")
    assert status(bench, name)["phase"] == "Ready"
    bench.delete_run()
    bench.wait("the run's end", lambda: not bench.run())
    bench.wait("the other adapter's end", lambda: owned() == {2: False})
    assert status(bench, name)["deploymentState"] == "Deployed"
    (folder,) = [o["spec"]["uri"] for o in bench.items(RL, "rladapters")]
    assert bench.s3.store().is_complete(S3Uri.parse(folder))


def test_objects_are_valid_and_satisfy_the_restricted_standard(api: client.ApiClient, namespace: str) -> None:
    client.CoreV1Api(api).patch_namespace(
        namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    )
    settings = OperatorSettings.model_validate(
        {"s3": {"bucket": "rlrun", "credentialsSecret": {"namespace": "rlrun-system", "name": "s3"}}}
    )
    model = RLModelSpec.model_validate({**FULL_MODEL, "id": f"Owner/{'Very.Long' * 20}"})
    identity = PoolIdentity(namespace, model.id)
    order = DesiredAdapters(base=model.id, adapters=[ServedAdapter(name=f"{model.id}:a", uri="s3://a/b", step=1)])
    storage = StorageAccess(settings, b"k" * 32, identity.namespace, identity.name)
    for child in pool_children(identity, settings, model, order, storage, PoolCredentials("token", "key", "server")):
        first = apply(api, child)
        assert apply(api, child)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"], child["kind"]
        if child["kind"] == "Deployment":
            template = child["spec"]["template"]
            metadata = {**template["metadata"], "name": "strict", "namespace": namespace}
            apply(api, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
