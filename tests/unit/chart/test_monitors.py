"""Monitors of Prometheus, and the NetworkPolicies that let it in and nothing else."""

import copy
import re
from typing import Any

import pytest
from rlrun_operator.config.settings import parse_settings

from tests.support.network_policies import Pod, is_allowed
from tests.unit.chart.conftest import Object, Render, Rendered
from tests.unit.chart.test_render import MINIMAL, pod_templates
from tests.unit.rlrun_operator.resources.test_network import objects
from tests.unit.rlrun_operator.resources.test_shared_pool import build as shared_pool_objects

MONITORING = {"kubernetes.io/metadata.name": "monitoring"}
VALUES: Object = {
    **MINIMAL,
    "egress": {"enabled": True},
    "tinker": {"enabled": True},
    "metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": MONITORING}}]},
}
PROMETHEUS = Pod("monitoring", {"app": "prometheus"})
OTHERS = [Pod("other", {}), Pod("team", {}), Pod("other", {"app": "prometheus"})]


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec["containers"], *spec.get("initContainers", [])]


def port_number(template: Object, name: str) -> int | None:
    numbers = [p["containerPort"] for c in containers(template) for p in c.get("ports", []) if p["name"] == name]
    return numbers[0] if numbers else None


def matches(selector: Object, labels: Object) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(e["operator"] == "Exists" for e in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(e["key"] in labels for e in expressions)


def is_dropped(rule: Object, labels: Object) -> bool:
    assert rule["action"] == "drop"
    (source,) = rule["sourceLabels"]
    named = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}": v for key, v in labels.items()}
    return re.fullmatch(rule["regex"], named.get(source, "")) is not None


def numbered(policies: list[Object], template: Object) -> list[Any]:
    """The policies with the numbers of the template's ports in place of names."""

    def number(port: Object) -> Object:
        name = port["port"]
        return port if isinstance(name, int) else {**port, "port": port_number(template, name) or 1}

    made = copy.deepcopy(policies)
    for policy in made:
        for rule in policy["spec"].get("ingress", []):
            rule["ports"] = [number(port) for port in rule.get("ports", [])]
    return made


def scraped(rendered: Rendered, of_runs: list[Object]) -> dict[str, tuple[Pod, Object, int]]:
    """The pods that the monitors select, with their templates and the port of the metrics."""
    found = {}
    (monitor,) = rendered.of("ServiceMonitor")
    for service in rendered.of("Service"):
        if not matches(monitor["spec"]["selector"], service["metadata"]["labels"]):
            continue
        for port in service["spec"]["ports"]:
            if port["name"] == monitor["spec"]["endpoints"][0]["port"]:
                for name, template in pod_templates(rendered.of("Deployment")).items():
                    labels = template["metadata"]["labels"]
                    if matches({"matchLabels": service["spec"]["selector"]}, labels):
                        number = port_number(template, port["targetPort"])
                        assert number is not None, f"{name} has no port {port['targetPort']}"
                        found[name] = (Pod("rlrun-system", labels), template, number)
    for monitor in rendered.of("PodMonitor"):
        for item in of_runs:
            if item["kind"] not in ("ReplicaSet", "Deployment", "Job"):
                continue
            template = item["spec"]["template"]
            labels = template["metadata"]["labels"]
            if matches(monitor["spec"]["selector"], labels):
                for endpoint in monitor["spec"]["podMetricsEndpoints"]:
                    if any(is_dropped(rule, labels) for rule in endpoint.get("relabelings", [])):
                        continue
                    number = port_number(template, endpoint["port"])
                    if number is not None:
                        pod = Pod(item["metadata"]["namespace"], template["metadata"]["labels"])
                        found[f"{pod.namespace}/{item['metadata']['name']}:{endpoint['port']}"] = (
                            pod,
                            template,
                            number,
                        )
    return found


def test_prometheus_reaches_all_that_the_monitors_select_and_others_do_not(render: Render) -> None:
    rendered = render(VALUES, base=None)
    of_runs = objects({"metricsPeers": parse_settings(rendered.settings).metrics_peers})
    policies = [*rendered.of("NetworkPolicy"), *(o for o in of_runs if o["kind"] == "NetworkPolicy")]
    found = scraped(rendered, of_runs)
    assert {"rlrun-operator", "rlrun-server", "rlrun-tinker", "rlrun-egress"} <= set(found)
    endings = {name.partition(":")[2] for name in found if ":" in name}
    assert endings == {"status", "http", "openai", "sidecar"}
    for name, (pod, template, port) in found.items():
        assert is_allowed(numbered(policies, template), PROMETHEUS, pod, port), name
        for other in OTHERS:
            if (other.namespace, port) == (pod.namespace, 8000):
                continue  # pods of the namespace may ask its serving pool
            assert not is_allowed(numbered(policies, template), other, pod, port), (name, other)


def test_engines_of_shared_pools_are_not_scraped_because_their_metrics_need_a_token(render: Render) -> None:
    rendered = render(VALUES, base=None)
    pools = [(shared_pool_objects()["Deployment"], ["sidecar"])]
    pools += [(o, ["openai", "sidecar"]) for o in objects() if o["kind"] == "Deployment"]
    assert len(pools) == 2
    for deployment, ports in pools:
        names = scraped(rendered, [deployment])
        assert [port for name in names if (port := name.partition(":")[2])] == ports


def test_without_peers_of_values_runs_admit_no_scrape(render: Render) -> None:
    rendered = render({**VALUES, "networkPolicy": {"enabled": True}}, base=None)
    assert parse_settings(rendered.settings).metrics_peers == []
    policies: list[Any] = [o for o in objects() if o["kind"] == "NetworkPolicy"]
    found = scraped(rendered, objects())
    assert not any(is_allowed(policies, PROMETHEUS, pod, port) for name, (pod, _, port) in found.items() if ":" in name)


def test_a_peer_without_a_namespace_is_in_that_of_the_release(render: Render) -> None:
    peer = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
    rendered = render({"networkPolicy": {"from": [peer, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}})
    own = {"matchLabels": {"kubernetes.io/metadata.name": "rlrun-system"}}
    assert parse_settings(rendered.settings).metrics_peers == [
        {**peer, "namespaceSelector": own},
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
    ]


def test_helm_test_reaches_the_operator_beside_the_peers_of_values(render: Render) -> None:
    rendered = render(VALUES, base=None)
    (rule,) = rendered.one("NetworkPolicy", "rlrun-operator")["spec"]["ingress"]
    (admitted,) = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    assert admitted.items() <= rendered.one("Pod", "rlrun-test-readyz")["metadata"]["labels"].items()


@pytest.mark.parametrize(("namespaces", "selected"), [([], {"any": True}), (["one"], {"matchNames": ["one"]})])
def test_pods_are_scraped_in_the_namespaces_of_the_operator(
    render: Render, namespaces: list[str], selected: Object
) -> None:
    rendered = render({**VALUES, "operator": {"watchNamespaces": namespaces}}, base=None)
    monitors = rendered.of("PodMonitor")
    assert [m["spec"]["namespaceSelector"] for m in monitors] == [selected, selected]
    assert {m["spec"]["sampleLimit"] for m in monitors} == {10_000}
    targets = {m["metadata"]["name"]: m["spec"]["podTargetLabels"] for m in monitors}
    assert targets == {"rlrun-runs": ["rlrun.dev/run", "rlrun.dev/role"], "rlrun-serving": ["rlrun.dev/serving"]}
