"""What a serving pool has in the cluster."""

import json

import pytest
from rlrun.constants import RUN_LABEL
from rlrun.kube.objects import Obj
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun_operator.resources.serving_pool import PoolIdentity, differs

from tests.support.built_children import ORDER, POOL, container_of, templates, variables
from tests.support.built_children import build as build_children
from tests.support.built_children import build_pool as build


def engine(found: dict[str, Obj], name: str = "vllm") -> Obj:
    return container_of(found["Deployment"]["spec"]["template"], name)


def argument(args: list[str], name: str) -> str:
    return args[args.index(name) + 1]


def test_the_engine_is_that_of_a_run_with_room_for_many_adapters() -> None:
    found = build({"serving": {"replicas": 3, "maxLoras": 4}}, lora={"rank": 24}, inference={"extraArgs": ["--eager"]})
    args = engine(found)["args"]
    assert argument(args, "--served-model-name") == "a/b"
    assert argument(args, "--max-model-len") == "512"
    assert [argument(args, f"--max-{n}") for n in ("loras", "lora-rank", "cpu-loras")] == ["4", "32", "32"]
    assert "--enable-lora" in args
    assert args[-1] == "--eager"
    env = variables(engine(found))
    assert env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    assert "VLLM_SERVER_DEV_MODE" not in env
    assert found["Deployment"]["spec"]["replicas"] == 3


def test_the_sidecar_starts_from_the_order_and_has_a_token_for_storage() -> None:
    found = build(lora={"rank": 10})
    sidecar = engine(found, "sidecar")
    given = variables(sidecar)
    assert sidecar["command"] == ["python", "-m", "rlrun_adapter_sidecar.serving"]
    assert given["RLRUN_MAX_LORA_RANK"] == "16"
    assert "envFrom" not in sidecar
    mounts = {m["name"]: m["mountPath"] for m in sidecar["volumeMounts"]}
    assert mounts["order"] == "/etc/rlrun/serving"
    assert given["RLRUN_STORAGE_TOKEN_FILE"] == f"{mounts['storage-token-serving']}/token"
    assert "RLRUN_STORAGE_GRANT" not in given, "it comes with the order: another adapter restarts no engine"
    volumes = {v["name"]: v for v in found["Deployment"]["spec"]["template"]["spec"]["volumes"]}
    assert volumes["order"]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    (source,) = volumes["storage-token-serving"]["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == f"rlrun/{POOL.name}/serving"
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
