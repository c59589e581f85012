"""Chart values of serving pools."""

import pytest
from rlrun_operator.config.settings import ServingPoolSettings, parse_settings

from tests.unit.chart.conftest import Helm, Render


def test_the_values_reach_the_operator(render: Render) -> None:
    assert parse_settings(render().settings).serving == ServingPoolSettings()
    values = {"serving": {"replicas": 2, "maxLoras": 4, "maxCpuLoras": 16}}
    assert parse_settings(render(values).settings).serving == ServingPoolSettings(
        replicas=2, max_loras=4, max_cpu_loras=16
    )


@pytest.mark.parametrize("values", [{"replicas": 0}, {"maxLoras": 0}, {"maxCpuLoras": "many"}, {"engines": 2}])
def test_an_invalid_value_is_rejected(template: Helm, values: dict[str, object]) -> None:
    done = template({"serving": values})
    assert done.returncode != 0
    assert "serving" in done.stderr


def test_the_operator_may_create_all_objects_of_a_pool(render: Render) -> None:
    role = next(r for r in render().of("ClusterRole") if r["metadata"]["name"].endswith("-operator"))
    granted = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    for resource in ("deployments", "services", "configmaps", "serviceaccounts", "networkpolicies"):
        assert {(resource, verb) for verb in ("list", "create", "patch", "delete")} <= granted, resource
    assert {("secrets", "get"), ("secrets", "create"), ("secrets", "patch"), ("secrets", "delete")} <= granted
    assert {("rladapters/status", "patch"), ("pods", "list"), ("events", "create")} <= granted
