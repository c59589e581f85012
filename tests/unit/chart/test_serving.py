"""Chart values of serving pools."""

import pytest
from rlrun.constants import INFERENCE_PORT, SERVING_LABEL
from rlrun_operator.config.settings import EgressRule, ServingPoolSettings, parse_settings
from rlrun_operator.resources.serving_pool import PoolIdentity, network_policy

from tests.unit.chart.conftest import Helm, Render


def test_the_values_reach_the_operator(render: Render) -> None:
    assert parse_settings(render().settings).serving == ServingPoolSettings()
    values = {"serving": {"replicas": 2, "maxLoras": 4, "maxCpuLoras": 16}}
    assert parse_settings(render(values).settings).serving == ServingPoolSettings(
        replicas=2, max_loras=4, max_cpu_loras=16
    )


def test_the_limits_of_pods_with_models_reach_the_operator(render: Render, template: Helm) -> None:
    assert parse_settings(render().settings).model_egress is None
    assert parse_settings(render({"runs": {"modelEgress": []}}).settings).model_egress == []
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 9000, "protocol": "TCP"}]}
    found = parse_settings(render({"runs": {"modelEgress": [rule]}}).settings).model_egress
    assert found == [EgressRule.model_validate(rule)]
    done = template({"runs": {"modelEgress": [{"ports": [{"port": 443}]}]}})
    assert done.returncode != 0
    assert "to" in done.stderr


@pytest.mark.parametrize("values", [{"replicas": 0}, {"maxLoras": 0}, {"maxCpuLoras": "many"}, {"engines": 2}])
def test_an_invalid_value_is_rejected(template: Helm, values: dict[str, object]) -> None:
    done = template({"serving": values})
    assert done.returncode != 0
    assert "serving" in done.stderr


def test_the_operator_may_create_all_objects_of_a_pool(render: Render) -> None:
    role = render().one("ClusterRole", "rlrun-operator-tenant")
    granted = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    for resource in ("deployments", "services", "configmaps", "serviceaccounts", "networkpolicies"):
        assert {(resource, verb) for verb in ("list", "create", "patch", "delete")} <= granted, resource
    assert {("secrets", "get"), ("secrets", "create"), ("secrets", "patch"), ("secrets", "delete")} <= granted
    assert {("rladapters/status", "patch"), ("pods", "list")} <= granted


def test_editors_may_ask_deployed_adapters_and_viewers_may_not(render: Render) -> None:
    rule = {"apiGroups": ["rlrun.dev"], "resources": ["rladapters/chat"], "verbs": ["create"]}
    rendered = render()
    assert rule in rendered.one("ClusterRole", "rlrun-editor")["rules"]
    assert "rladapters/chat" not in str(rendered.one("ClusterRole", "rlrun-viewer"))


def test_the_server_reaches_pools_and_pools_admit_it(render: Render) -> None:
    rendered = render({"networkPolicy": {"enabled": True, "egress": []}})
    (rule,) = rendered.one("NetworkPolicy", "rlrun-server")["spec"]["egress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": INFERENCE_PORT}]
    (to,) = rule["to"]
    assert to["namespaceSelector"] == {}
    assert to["podSelector"] == {"matchExpressions": [{"key": SERVING_LABEL, "operator": "Exists"}]}
    pod = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["metadata"]
    settings = parse_settings(rendered.settings)
    (admitted, _) = network_policy(PoolIdentity("team", "a/b"), settings)["spec"]["ingress"]
    labels = admitted["from"][1]["podSelector"]["matchLabels"]
    assert labels.items() <= pod["labels"].items()
    assert SERVING_LABEL in PoolIdentity("team", "a/b").labels()
    open_again = render({"networkPolicy": {"enabled": True}})
    assert {} in open_again.one("NetworkPolicy", "rlrun-server")["spec"]["egress"]
