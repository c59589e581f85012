"""A `podTemplate` is merged over the pods of its role, and what the operator owns holds."""

from typing import Any

from tests.support.built_children import MAIN, ROLES, Obj, container_of, pod_templates, variables

PATCHED = ("trainer", "inference", "serving")


def patch(role: str) -> Obj:
    own: Obj = {
        "name": MAIN[role],
        "resources": {"claims": [{"name": "gpu"}], "limits": {"rdma/hca": "1"}},
        "env": [{"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "HF_HUB_OFFLINE", "value": "0"}],
        "volumeMounts": [{"name": "sock", "mountPath": "/var/run/agent"}],
    }
    return {
        "metadata": {"labels": {"team": "rl"}, "annotations": {"karpenter.sh/do-not-disrupt": "false"}},
        "spec": {
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["hub"]}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "two"}],
            "securityContext": {"runAsUser": 2000},
            "containers": [own, {"name": "agent", "image": "agent:1", "securityContext": {"runAsUser": 3000}}],
            "volumes": [{"name": "sock", "emptyDir": {}}],
        },
    }


def patched(**trainer: Any) -> dict[str, Obj]:
    model = {"trainer": {"podTemplate": patch("trainer"), **trainer}, "inference": {"podTemplate": patch("inference")}}
    return {name: t for name, t in pod_templates(model=model).items() if ROLES[name] in PATCHED}


def test_each_list_is_merged_by_the_key_of_its_entries() -> None:
    plain = pod_templates()
    found = patched()
    assert {ROLES[name] for name in found} == set(PATCHED)
    for name, template in found.items():
        before, spec, main = plain[name]["spec"], template["spec"], MAIN[ROLES[name]]
        assert template["metadata"]["labels"] == {**plain[name]["metadata"]["labels"], "team": "rl"}
        assert template["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "false"
        assert spec["securityContext"] == {**before["securityContext"], "runAsUser": 2000}
        assert [c["name"] for c in spec["containers"]] == [*(c["name"] for c in before["containers"]), "agent"]
        assert spec.get("initContainers") == before.get("initContainers")
        assert [v["name"] for v in spec["volumes"]] == [*(v["name"] for v in before["volumes"]), "sock"]
        old, new = container_of(plain[name], main), container_of(template, main)
        given = variables(new)
        assert len(given) == len(new["env"]) == len(old["env"]) + 1
        assert (given["NCCL_DEBUG"], given["HF_HUB_OFFLINE"]) == ("INFO", "0")
        assert new["volumeMounts"][:-1] == old["volumeMounts"]
        assert new["resources"]["limits"] == {**old["resources"]["limits"], "rdma/hca": "1"}
        assert new["command" if main == "trainer" else "args"] == old["command" if main == "trainer" else "args"]


def test_a_container_of_the_patch_satisfies_the_restricted_standard() -> None:
    for template in patched().values():
        assert container_of(template, "agent")["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "runAsUser": 3000,
        }


def test_the_nodes_of_a_trainer_stay_distinct_and_find_each_other() -> None:
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
    template = patched(nodes=2, podTemplate={"spec": {"affinity": anti}})["reverse-trainer-a2"]
    rules = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert [rule["topologyKey"] for rule in rules] == ["kubernetes.io/hostname"]
    assert template["spec"]["subdomain"] == "reverse-trainer-nodes"
