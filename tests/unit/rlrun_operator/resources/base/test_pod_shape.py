"""Pod shapes: each role gets its own, and what the operator sets itself holds."""

import pytest
from pydantic import ValidationError
from rlrun.api.base.pod_shape import PodShape, is_own_path, is_own_volume
from rlrun_operator.resources.base.pod_shape import STAY

from tests.support.built_children import MAIN, POOL, ROLES, SOURCES, Obj, containers, pod_templates


def shape(role: str) -> Obj:
    return {
        "nodeSelector": {"pool": role},
        "tolerations": [{"key": role, "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"of": role}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": role, "whenUnsatisfiable": "ScheduleAnyway"}],
        "runtimeClassName": role,
        "schedulerName": role,
        "priorityClassName": role,
        "labels": {"team": role},
        "annotations": {"note": role},
        "volumes": [{"name": "data", "nfs": {"server": role, "path": "/"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }


def test_the_pods_of_each_role_have_the_shape_of_the_role_and_of_no_other() -> None:
    settings = {role: shape(role) for role in ("orchestrator", "environments", "serving")}
    model = {role: shape(role) for role in ("trainer", "inference")}
    found = pod_templates(settings, model)
    assert set(ROLES.values()) == {ROLES[name] for name in found}
    for name, template in found.items():
        role, spec = ROLES[name], template["spec"]
        expected = ["inference", role] if role == "serving" else [role]
        assert spec["nodeSelector"] == {"pool": role}
        assert [t["key"] for t in spec["tolerations"]] == expected
        assert spec["affinity"] == {"nodeAffinity": {"of": role}}
        (spread,) = spec["topologySpreadConstraints"]
        assert spread["topologyKey"] == role
        assert spread["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        classes = [spec[f"{kind}Name"] for kind in ("runtimeClass", "scheduler", "priorityClass")]
        assert classes == [role] * 3, name
        assert template["metadata"]["labels"]["team"] == role
        assert template["metadata"]["annotations"]["note"] == role
        assert [v["nfs"]["server"] for v in spec["volumes"] if v["name"] == "data"] == [role]
        mounted = [c["name"] for c in containers(template) if any(m["name"] == "data" for m in c["volumeMounts"])]
        assert mounted == [MAIN[role]]


def test_without_a_shape_a_pod_names_no_placement() -> None:
    fields = set(shape("")) - {"labels", "annotations", "volumes", "volumeMounts"}
    for name, template in pod_templates().items():
        assert not fields & template["spec"].keys(), name


def test_autoscalers_evict_no_pod_unless_its_shape_allows_it() -> None:
    for template in pod_templates().values():
        assert template["metadata"]["annotations"].items() >= STAY.items()
    allowed = {"annotations": {"karpenter.sh/do-not-disrupt": "false"}}
    found = pod_templates({"serving": allowed}, {"trainer": allowed})
    values = {name: t["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] for name, t in found.items()}
    assert {name for name, value in values.items() if value == "false"} == {"reverse-trainer", POOL.name}


def test_each_role_refuses_the_proxies_of_meshes_or_asks_for_native_ones() -> None:
    refused = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
    native = {
        "sidecar.istio.io/nativeSidecar": "true",
        "config.beta.linkerd.io/proxy-enable-native-sidecar": "true",
    }
    settings = {"environments": {"meshInjection": "Refused"}, "serving": {"meshInjection": "Refused"}}
    model = {"inference": {"meshInjection": "Native"}, "trainer": {"meshInjection": "Refused"}}
    for name, template in pod_templates(settings, model).items():
        keys = {**template["metadata"]["labels"], **template["metadata"]["annotations"]}
        expected = {"inference": native, "orchestrator": {}}.get(ROLES[name], refused)
        assert {key: value for key, value in keys.items() if key in {**refused, **native}} == expected, name
    plain = {
        key for t in pod_templates().values() for key in {**t["metadata"]["labels"], **t["metadata"]["annotations"]}
    }
    assert not plain & {*refused, *native}


def test_the_run_chooses_its_priority_class_where_it_may() -> None:
    found = pod_templates({"orchestrator": shape("a")}, {"trainer": shape("b")}, priorityClassName="urgent")
    of_run = {t["spec"]["priorityClassName"] for name, t in found.items() if name != POOL.name}
    assert of_run == {"urgent"}


def test_the_nodes_of_a_trainer_are_distinct_in_addition_to_its_own_affinity() -> None:
    own = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack"}]}}
    for given, kept in ({}, []), (own, ["rack"]):
        template = pod_templates(model={"trainer": {"nodes": 4, "affinity": given}})["reverse-trainer-a2"]
        *others, apart = template["spec"]["affinity"]["podAntiAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        assert [rule["topologyKey"] for rule in others] == kept
        assert apart["topologyKey"] == "kubernetes.io/hostname"
        selected = apart["labelSelector"]["matchLabels"]
        assert selected.items() <= template["metadata"]["labels"].items()
        assert {"rlrun.dev/run", "rlrun.dev/attempt", "rlrun.dev/component"} <= selected.keys()


@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("source", SOURCES)
def test_volumes_and_folders_of_the_operator_are_refused_in_a_shape(source: str, nodes: int) -> None:
    """Each one that the operator has, so that the lists stay complete."""
    for template in pod_templates(model={"source": source, "trainer": {"nodes": nodes}}).values():
        for volume in template["spec"]["volumes"]:
            assert is_own_volume(volume["name"]), volume
        for mount in (m for c in containers(template) for m in c["volumeMounts"]):
            assert is_own_path(mount["mountPath"]), mount


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"labels": {"rlrun.dev/run": "other"}}, "labels"),
        ({"labels": {"app.kubernetes.io/managed-by": "me"}}, "labels"),
        ({"volumes": [{"name": "data", "hostPath": {"path": "/"}}]}, "volumes.0.hostPath"),
        ({"volumes": [{"name": "data", "projected": {}}]}, "volumes.0.projected"),
        ({"volumes": [{"name": "data", "secret": {"secretName": "a"}}]}, "volumes.0.secret"),
    ],
)
def test_a_shape_that_would_open_the_pods_is_refused(given: Obj, field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        PodShape.model_validate(given)
    assert field in {".".join(map(str, e["loc"])) for e in refused.value.errors()}
