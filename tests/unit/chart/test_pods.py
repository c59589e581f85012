"""Values that every workload of the chart has: one table, value x workload, and what `pods` gives to all of them."""

from typing import Any

import pytest

from tests.unit.chart.conftest import VERSION, Helm, Object, Render, Rendered
from tests.unit.chart.test_render import EVERYTHING, MINIMAL, pod_templates

WORKLOADS: dict[str, set[str]] = {
    "operator": {"rlrun-operator"},
    "server": {"rlrun-server"},
    "tinker": {"rlrun-tinker"},
    "egress": {"rlrun-egress"},
    "jobs": {
        "rlrun-models", "rlrun-uninstall", "rlrun-test-readyz", "rlrun-test-dns", "rlrun-test-s3", "rlrun-test-run",
    },
}  # fmt: skip
"""Sections of the values, and the objects whose pods have them."""
ALL: Object = {
    **EVERYTHING,
    "pods": {},
    "operator": {},
    "tests": {"run": {"spec": {"model": "a/b", "env": [{"id": "a/c"}]}, "namespace": "team"}},
}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
SELECTOR = {"matchLabels": {"of": "mine"}}
ANTI = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
VOLUME = {"name": "mine", "configMap": {"name": "mine"}}
MOUNT = {"name": "mine", "mountPath": "/mine"}
VARIABLE = {"name": "MINE", "value": "1"}

VALUES: dict[str, tuple[Any, Any]] = {
    "securityContext": ({"runAsUser": 7}, lambda pod: pod["spec"]["securityContext"]["runAsUser"] == 7),
    "containerSecurityContext": (
        {"readOnlyRootFilesystem": False},
        lambda pod: (
            container(pod)["securityContext"]
            == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": False, "capabilities": {"drop": ["ALL"]}}
        ),
    ),
    "podLabels": ({"team": "ml"}, lambda pod: pod["metadata"]["labels"].get("team") == "ml"),
    "podAnnotations": ({"note": "x"}, lambda pod: (pod["metadata"].get("annotations") or {}).get("note") == "x"),
    "nodeSelector": ({"pool": "system"}, lambda pod: pod["spec"].get("nodeSelector") == {"pool": "system"}),
    "tolerations": (
        [{"key": "system", "operator": "Exists"}],
        lambda pod: pod["spec"].get("tolerations") == [{"key": "system", "operator": "Exists"}],
    ),
    "affinity": (ANTI, lambda pod: pod["spec"].get("affinity") == ANTI),
    "topologySpreadConstraints": (
        [{**SPREAD, "labelSelector": SELECTOR}],
        lambda pod: pod["spec"].get("topologySpreadConstraints") == [{**SPREAD, "labelSelector": SELECTOR}],
    ),
    "priorityClassName": ("high", lambda pod: pod["spec"].get("priorityClassName") == "high"),
    "extraEnv": ([VARIABLE], lambda pod: VARIABLE in container(pod)["env"]),
    "volumes": ([VOLUME], lambda pod: VOLUME in pod["spec"]["volumes"]),
    "volumeMounts": ([MOUNT], lambda pod: MOUNT in container(pod)["volumeMounts"]),
}
"""Values, and whether a pod template has them."""


def container(pod: Object) -> Object:
    (found,) = pod["spec"]["containers"]
    return dict(found)


def pods(rendered: Rendered) -> dict[str, Object]:
    return pod_templates(rendered.objects)


def test_the_table_names_all_pods(render: Render) -> None:
    assert set(pods(render(ALL))) == set.union(*WORKLOADS.values())


@pytest.mark.parametrize("section", [*WORKLOADS, "pods"])
def test_each_value_reaches_the_pods_of_its_section_and_no_other(render: Render, section: str) -> None:
    own = {**ALL.get(section, {}), **{value: given for value, (given, _) in VALUES.items()}}
    found = pods(render({**ALL, section: own}))
    wanted = set(found) if section == "pods" else WORKLOADS[section]
    reached = {value: {name for name, pod in found.items() if has(pod)} for value, (_, has) in VALUES.items()}
    # Volumes of the values may be gone with the release when its last Job runs.
    without = {key: {"rlrun-uninstall"} for key in ("volumes", "volumeMounts")}
    assert reached == {value: wanted - without.get(value, set()) for value in VALUES}


def test_values_of_a_workload_add_to_those_of_all_pods_or_replace_them(render: Render) -> None:
    values = {
        "pods": {
            "securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
            "podLabels": {"team": "all", "cost": "1"},
            "nodeSelector": {"pool": "all"},
            "extraEnv": [{"name": "A", "value": "all"}, {"name": "B", "value": "all"}],
            "volumes": [VOLUME],
        },
        "server": {
            "securityContext": {"runAsUser": 7, "seccompProfile": {"type": "Unconfined"}},
            "podLabels": {"team": "own"},
            "nodeSelector": {"zone": "own"},
            "extraEnv": [{"name": "A", "value": "own"}, {"name": "TMPDIR", "value": "/mine"}],
            "volumes": [{"name": "own", "emptyDir": {}}],
        },
    }
    found = pods(render(values))
    server, operator = found["rlrun-server"], found["rlrun-operator"]
    assert operator["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert server["spec"]["securityContext"] == {
        "runAsNonRoot": True, "runAsUser": 7, "seccompProfile": {"type": "Unconfined"},
    }  # fmt: skip
    assert {"team": "own", "cost": "1"}.items() <= server["metadata"]["labels"].items()
    assert server["spec"]["nodeSelector"] == {"zone": "own"}
    assert operator["spec"]["nodeSelector"] == {"pool": "all"}
    variables = [(v["name"], v.get("value")) for v in container(server)["env"]]
    assert variables[-3:] == [("B", "all"), ("A", "own"), ("TMPDIR", "/mine")]
    assert len({name for name, _ in variables}) == len(variables)
    assert {"mine", "own", "tmp", "keys"} <= {v["name"] for v in server["spec"]["volumes"]}


def test_a_spread_without_a_selector_counts_the_pods_of_its_workload(render: Render) -> None:
    found = pods(render({"pods": {"topologySpreadConstraints": [SPREAD]}}))
    for name, component in (("rlrun-operator", "operator"), ("rlrun-egress", "egress-proxy")):
        (spread,) = found[name]["spec"]["topologySpreadConstraints"]
        selected = spread.pop("labelSelector")["matchLabels"]
        assert spread == SPREAD
        assert selected.items() <= found[name]["metadata"]["labels"].items()
        assert selected["app.kubernetes.io/component"] == component


def test_replicas_are_spread_over_nodes_and_zones(render: Render) -> None:
    found = pods(render(EVERYTHING))
    for name in ("rlrun-operator", "rlrun-server", "rlrun-tinker", "rlrun-egress"):
        spread = {s["topologyKey"]: s for s in found[name]["spec"]["topologySpreadConstraints"]}
        assert spread.keys() == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
        for constraint in spread.values():
            assert (constraint["maxSkew"], constraint["whenUnsatisfiable"]) == (1, "ScheduleAnyway")
            assert constraint["labelSelector"]["matchLabels"].items() <= found[name]["metadata"]["labels"].items()
    assert "topologySpreadConstraints" not in found["rlrun-uninstall"]["spec"]


def test_labels_of_values_are_on_everything_and_replace_none_of_the_chart(render: Render) -> None:
    ours = {"app.kubernetes.io/name": "other", "app.kubernetes.io/component": "other", "cost-center": "7"}
    rendered = render({**ALL, "commonLabels": ours, "pods": {"podLabels": ours}})
    for item in rendered.objects:
        labels = item["metadata"]["labels"]
        place = (item["kind"], item["metadata"]["name"])
        assert labels["cost-center"] == "7", place
        assert labels["app.kubernetes.io/name"] == "rlrun", place
        assert labels.get("app.kubernetes.io/component") != "other", place
    for name, pod in pods(rendered).items():
        assert pod["metadata"]["labels"]["cost-center"] == "7", name
        assert pod["metadata"]["labels"]["app.kubernetes.io/component"] != "other", name
    for deployment in rendered.of("Deployment"):
        assert "cost-center" not in deployment["spec"]["selector"]["matchLabels"], "a selector cannot be changed"


def test_extra_objects_are_text_or_yaml_with_templates(render: Render) -> None:
    as_yaml = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "{{ .Release.Name }}-one"}}
    as_text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: two\n  namespace: {{ .Release.Namespace }}\n"
    rendered = render({"extraObjects": [as_yaml, as_text]})
    assert rendered.one("ConfigMap", "rlrun-one")
    assert rendered.one("ConfigMap", "two")["metadata"]["namespace"] == "rlrun-system"


@pytest.mark.parametrize(
    ("images", "engine", "operator"),
    [
        ({}, "vllm/vllm-openai:v0.32.0", f"rlrun-operator:{VERSION}"),
        ({"registry": "r.corp/ml/"}, "r.corp/ml/vllm/vllm-openai:v0.32.0", f"r.corp/ml/rlrun-operator:{VERSION}"),
        (
            {"registry": "r.corp", "inference": {"registry": "docker.io"}, "operator": {"registry": ""}},
            "docker.io/vllm/vllm-openai:v0.32.0",
            f"rlrun-operator:{VERSION}",
        ),
    ],
)
def test_one_registry_holds_all_images(render: Render, images: Object, engine: str, operator: str) -> None:
    rendered = render({**MINIMAL, "images": images}, base=None)
    assert engine.rpartition(":")[0] in rendered.settings
    assert container(pods(rendered)["rlrun-operator"])["image"] == operator


def test_every_deployment_has_a_disruption_budget(render: Render) -> None:
    rendered = render(EVERYTHING)
    budgets = {b["metadata"]["name"]: b["spec"]["selector"]["matchLabels"] for b in rendered.of("PodDisruptionBudget")}
    assert budgets == {d["metadata"]["name"]: d["spec"]["selector"]["matchLabels"] for d in rendered.of("Deployment")}
    without = render({**EVERYTHING, "egress": {"enabled": False}, "tinker": {"enabled": False}}).of(
        "PodDisruptionBudget"
    )
    assert {b["metadata"]["name"] for b in without} == {"rlrun-operator", "rlrun-server"}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"pods": {"podLabels": {"a": 1}}}, "/pods/podLabels"),
        ({"jobs": {"tolerations": [{"effect": "Never"}]}}, "/jobs/tolerations/0/effect"),
        ({"jobs": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "/jobs/topologySpreadConstraints/0"),
        ({"egress": {"extraEnv": [{"name": "a b"}]}}, "/egress/extraEnv/0/name"),
        ({"server": {"volumes": [{"emptyDir": {}}]}}, "/server/volumes/0"),
        ({"operator": {"securityContxt": {}}}, "securityContxt"),
        ({"runs": {"securityContext": {"runAsUser": 0}}}, "/runs/securityContext/runAsUser"),
        ({"runs": {"dns": {"port": 0}}}, "/runs/dns/port"),
    ],
)
def test_wrong_values_of_pods_are_refused_by_name(template: Helm, values: Object, field: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert field in done.stderr


def test_two_renders_are_equal(template: Helm) -> None:
    first, second = (template(ALL).stdout for _ in range(2))
    assert first == second
    assert "kind: Deployment" in first
