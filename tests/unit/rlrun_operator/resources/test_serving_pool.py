"""What a serving pool has in the cluster."""

import json
from typing import Any

import pytest
from rlrun.api.model import RLModelSpec
from rlrun.constants import RUN_LABEL
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.serving_pool import PoolCredentials, PoolIdentity, differs, pool_children

from tests.unit.rlrun_operator.resources.test_children import build as build_children
from tests.unit.rlrun_operator.resources.test_children import templates

Obj = dict[str, Any]
IDENTITY = PoolIdentity("team", "a/b")
TOKEN = "token-of-the-pool"
API_KEY = "key-of-its-users"
SERVER_KEY = "key-of-the-server"
BASE: Obj = {"bucket": "rlrun", "credentialsSecret": {"namespace": "sys", "name": "s3"}}
ORDER = DesiredAdapters(base="a/b", adapters=[ServedAdapter(name="a/b:one", uri="s3://rlrun/x", step=3)])


def build(
    settings: Obj | None = None,
    order: DesiredAdapters = ORDER,
    token: str = TOKEN,
    server_key: str = SERVER_KEY,
    **model: Any,
) -> dict[str, Obj]:
    spec = RLModelSpec.model_validate({"id": "a/b", "source": "s3://rlrun/models/a", "seqLen": 512, **model})
    full = OperatorSettings.model_validate({"s3": BASE, **(settings or {})})
    storage = StorageAccess(full, b"k" * 32, IDENTITY.namespace, IDENTITY.name)
    found = pool_children(IDENTITY, full, spec, order, storage, PoolCredentials(token, API_KEY, server_key))
    users = IDENTITY.api_key_secret
    named = {"Secret of users" if c["metadata"]["name"] == users else c["kind"]: c for c in found}
    assert len(named) == len(found)
    return named


def containers(found: dict[str, Obj]) -> dict[str, Obj]:
    return {c["name"]: c for c in found["Deployment"]["spec"]["template"]["spec"]["containers"]}


def argument(args: list[str], name: str) -> str:
    return args[args.index(name) + 1]


def test_the_engine_is_that_of_a_run_with_room_for_many_adapters() -> None:
    found = build({"serving": {"replicas": 3, "maxLoras": 4}}, lora={"rank": 24}, inference={"extraArgs": ["--eager"]})
    args = containers(found)["vllm"]["args"]
    assert argument(args, "--served-model-name") == "a/b"
    assert argument(args, "--max-model-len") == "512"
    assert [argument(args, f"--max-{n}") for n in ("loras", "lora-rank", "cpu-loras")] == ["4", "32", "32"]
    assert "--enable-lora" in args
    assert args[-1] == "--eager"
    env = {e["name"]: e.get("value") for e in containers(found)["vllm"]["env"]}
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_SERVER_DEV_MODE" not in env
    assert found["Deployment"]["spec"]["replicas"] == 3


def test_the_sidecar_starts_from_the_order_and_has_a_token_for_storage() -> None:
    found = build(lora={"rank": 10})
    sidecar = containers(found)["sidecar"]
    assert sidecar["command"] == ["python", "-m", "rlrun_adapter_sidecar.serving"]
    assert {e["name"]: e.get("value") for e in sidecar["env"]}["RLRUN_MAX_LORA_RANK"] == "16"
    assert "envFrom" not in sidecar
    mounts = {m["name"]: m["mountPath"] for m in sidecar["volumeMounts"]}
    assert mounts["order"] == "/etc/rlrun/serving"
    variables = {e["name"]: e.get("value") for e in sidecar["env"]}
    assert variables["RLRUN_STORAGE_TOKEN_FILE"] == f"{mounts['storage-token-serving']}/token"
    assert "RLRUN_STORAGE_GRANT" not in variables, "it comes with the order: another adapter restarts no engine"
    volumes = {v["name"]: v for v in found["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["order"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (source,) = volumes["storage-token-serving"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == f"rlrun/{IDENTITY.name}/serving"
    assert set(found["Secret"]["data"]) == {"RLRUN_TOKEN", "RLRUN_POOL_SERVER_KEY"}
    assert DesiredAdapters.model_validate_json(found["ConfigMap"]["data"]["order.json"]) == ORDER


def test_engines_of_a_model_with_a_cache_mount_the_claim_that_runs_mount() -> None:
    cached: Obj = {"cache": {"size": "20Gi"}}
    pod = build(**cached)["Deployment"]["spec"]["template"]["spec"]
    run = templates(build_children(cached))["reverse-inference"]["spec"]
    (claim,) = (v for v in pod["volumes"] if v["name"] == "models")
    assert claim["persistentVolumeClaim"]["readOnly"]
    assert [v for v in pod["volumes"] if v["name"] == "models"] == [v for v in run["volumes"] if v["name"] == "models"]
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "models")
    assert mount["readOnly"]
    assert "fetch-model" not in {c["name"] for c in pod.get("initContainers", [])}


def test_pool_has_no_owner_and_is_not_a_child_of_a_run() -> None:
    for child in build().values():
        assert "ownerReferences" not in child["metadata"]
        assert RUN_LABEL not in child["metadata"]["labels"]
        assert child["metadata"]["annotations"]["rlrun.dev/model"] == "a/b"
    template = build()["Deployment"]["spec"]["template"]
    assert template["metadata"]["annotations"]["rlrun.dev/model"] == "a/b"
    assert template["spec"]["automountServiceAccountToken"] is False


def test_namespace_and_server_reach_the_engine_and_only_the_operator_the_sidecar() -> None:
    policy = build({"leaseNamespace": "home"})["NetworkPolicy"]["spec"]
    asking, ordering = policy["ingress"]
    own, server = asking["from"]
    assert (own, asking["ports"][0]["port"]) == ({"podSelector": {}}, 8000)
    assert server["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "home"}
    assert server["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "server"
    (system,) = ordering["from"]
    assert system["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "home"}
    assert ordering["ports"][0]["port"] == 8001
    assert [p["port"] for p in build()["Service"]["spec"]["ports"]] == [8000]
    assert "NetworkPolicy" not in build({"networkPolicies": False})


def test_an_engine_is_replaced_before_the_next_one_ends() -> None:
    strategy = build()["Deployment"]["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}


@pytest.mark.parametrize("model", ["a/b", "A/B", "a.b/c", "a-b/c", "x" * 200, "Qwen/Qwen3-30B-A3B-Instruct-2507"])
def test_names_are_valid_and_differ_where_models_do(model: str) -> None:
    identity = PoolIdentity("team", model)
    assert len(identity.name) <= 52, "pods add to it, and a label has 63"
    assert identity.name.replace("-", "").isalnum()
    assert identity.name == identity.name.lower()
    others = {"a/b", "A/B", "a.b/c", "a-b/c"} - {model}
    assert identity.name not in {PoolIdentity("team", other).name for other in others}


def test_an_additional_adapter_changes_only_the_config_map() -> None:
    more = ORDER.model_copy(update={"adapters": [*ORDER.adapters, ServedAdapter(name="a/b:two", uri="s3://y", step=4)]})
    before, after = build(), build(order=more)
    assert [kind for kind in before if differs(after[kind], before[kind])] == ["ConfigMap"]


def test_fields_added_by_others_are_no_difference_and_a_changed_model_is() -> None:
    before = build()
    seen = json.loads(json.dumps(before["Deployment"]))
    seen["spec"]["template"]["spec"]["dnsPolicy"] = "ClusterFirst"
    seen["spec"]["replicas"] = 5
    assert not differs(before["Deployment"], seen)
    assert differs(build(lora={"rank": 64})["Deployment"], seen)
    assert differs(before["Service"], None)
