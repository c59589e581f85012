"""The translation of monitors, by the examples of the Prometheus operator's own tests."""

from typing import Any

import pytest

from tests.support.scrape_configuration import scrape_jobs

Obj = dict[str, Any]


def monitor(kind: str = "ServiceMonitor", **spec: Any) -> Obj:
    endpoint = {"port": "web", "path": "/metrics", "interval": "30s"}
    field = "podMetricsEndpoints" if kind == "PodMonitor" else "endpoints"
    return {
        "kind": kind,
        "metadata": {"name": "test", "namespace": "default"},
        "spec": {"selector": {}, field: [endpoint], **spec},
    }


def relabelings(of: Obj, action: str) -> list[tuple[list[str], str]]:
    (job,) = scrape_jobs(of)
    return [(r["source_labels"], r["regex"]) for r in job["relabel_configs"] if r.get("action") == action]


@pytest.mark.parametrize(
    ("rule", "action", "of", "regex"),
    [
        ({"operator": "In", "values": ["beta", "gamma"]}, "keep", ["label", "labelpresent"], "(beta|gamma);true"),
        ({"operator": "NotIn", "values": ["beta"]}, "drop", ["label", "labelpresent"], "(beta);true"),
        ({"operator": "Exists"}, "keep", ["labelpresent"], "true"),
        ({"operator": "DoesNotExist"}, "drop", ["labelpresent"], "true"),
    ],
)
def test_what_a_selector_selects(rule: Obj, action: str, of: list[str], regex: str) -> None:
    made = monitor(selector={"matchExpressions": [{"key": "a.b/c", **rule}]})
    assert ([f"__meta_kubernetes_service_{label}_a_b_c" for label in of], regex) in relabelings(made, action)


def test_labels_of_a_selector_and_the_port_select_together() -> None:
    found = relabelings(monitor("PodMonitor", selector={"matchLabels": {"app": "web"}}), "keep")
    assert found == [
        (["__meta_kubernetes_pod_label_app", "__meta_kubernetes_pod_labelpresent_app"], "(web);true"),
        (["__meta_kubernetes_pod_container_port_name"], "web"),
    ]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({}, {"namespaces": {"names": ["default"]}}),
        ({"matchNames": ["one", "two"]}, {"namespaces": {"names": ["one", "two"]}}),
        ({"any": True}, {}),
    ],
)
def test_namespaces(selector: Obj, expected: Obj) -> None:
    for kind, role in (("ServiceMonitor", "endpoints"), ("PodMonitor", "pod")):
        (job,) = scrape_jobs(monitor(kind, namespaceSelector=selector))
        assert job["kubernetes_sd_configs"] == [{"role": role, **expected}]


def test_a_job_has_the_fields_of_its_endpoint() -> None:
    endpoints = [
        {"port": "a", "path": "/metrics", "interval": "30s", "honorLabels": True},
        {"port": "b", "path": "/b", "interval": "5s"},
    ]
    first, second = scrape_jobs(monitor(endpoints=endpoints, podTargetLabels=["x.y/z"], sampleLimit=7))
    assert (first["job_name"], second["job_name"]) == ("serviceMonitor/default/test/0", "serviceMonitor/default/test/1")
    assert (first["honor_labels"], second["honor_labels"]) == (True, False)
    assert (second["metrics_path"], second["scrape_interval"], second["sample_limit"]) == ("/b", "5s", 7)
    targets = {r["target_label"]: r.get("source_labels") or r["replacement"] for r in second["relabel_configs"][2:]
               if "target_label" in r}  # fmt: skip
    assert targets["x_y_z"] == ["__meta_kubernetes_pod_label_x_y_z"]
    assert targets["job"] == ["__meta_kubernetes_service_name"]
    assert targets["endpoint"] == "b"


@pytest.mark.parametrize(
    "spec",
    [
        {"targetLabels": ["a"]},
        {"endpoints": [{"port": "web", "path": "/", "interval": "1s", "scheme": "https"}]},
    ],
)
def test_a_field_that_would_be_ignored_is_an_error(spec: Obj) -> None:
    with pytest.raises(ValueError, match=r"this translation does not know (targetLabels|scheme)"):
        scrape_jobs(monitor(**spec))
