"""The scrape configuration that the Prometheus operator makes of ServiceMonitors and PodMonitors.

Jobs, relabelings and their order are those of its `pkg/prometheus/promcfg.go`. A field that this translation does not
know is an error, so that nothing is ignored.
"""

import re
from typing import Any

Obj = dict[str, Any]


def scrape_jobs(monitor: Obj) -> list[Obj]:
    """Return a job of Prometheus for each endpoint of a monitor. Raises ValueError for a field that is unknown here."""
    metadata, rest = monitor["metadata"], dict(monitor["spec"])
    of_pods = {"PodMonitor": True, "ServiceMonitor": False}[monitor["kind"]]
    place = f"{metadata['namespace']}/{metadata['name']}"
    endpoints = rest.pop("podMetricsEndpoints" if of_pods else "endpoints")
    discovery = {"role": "pod" if of_pods else "endpoints", **_namespaces(rest.pop("namespaceSelector", {}), metadata)}
    selected = _selection("pod" if of_pods else "service", rest.pop("selector"))
    labels = [
        {"source_labels": [f"__meta_kubernetes_pod_label_{name}"], "target_label": name, "regex": "(.+)"}
        for name in map(_sanitized, rest.pop("podTargetLabels", []))
    ]
    limits = {"sample_limit": rest.pop("sampleLimit")} if "sampleLimit" in rest else {}
    of_port = "__meta_kubernetes_pod_container_port_name" if of_pods else "__meta_kubernetes_endpoint_port_name"
    job = {"replacement": place} if of_pods else {"source_labels": ["__meta_kubernetes_service_name"]}
    made = []
    for number, endpoint in enumerate(map(dict, endpoints)):
        port = endpoint.pop("port")
        made.append(
            {
                "job_name": f"{'pod' if of_pods else 'service'}Monitor/{place}/{number}",
                "metrics_path": endpoint.pop("path"),
                "scrape_interval": endpoint.pop("interval"),
                "honor_labels": endpoint.pop("honorLabels", False),
                "kubernetes_sd_configs": [discovery],
                "relabel_configs": [
                    *selected,
                    {"action": "keep", "source_labels": [of_port], "regex": port},
                    {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
                    {"source_labels": ["__meta_kubernetes_service_name"], "target_label": "service"},
                    {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
                    {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
                    {
                        "action": "drop",
                        "source_labels": ["__meta_kubernetes_pod_phase"],
                        "regex": "(Failed|Succeeded)",
                    },
                    *labels,
                    {**job, "target_label": "job"},
                    {"replacement": port, "target_label": "endpoint"},
                ],
                **limits,
            }
        )
        rest |= endpoint
    if rest:
        raise ValueError(f"{monitor['kind']} {place}: this translation does not know {', '.join(sorted(rest))}")
    return made


def _namespaces(selector: Obj, metadata: Obj) -> Obj:
    if selector.get("any"):
        return {}
    return {"namespaces": {"names": selector.get("matchNames") or [metadata["namespace"]]}}


def _selection(of: str, selector: Obj) -> list[Obj]:
    """Return the relabelings that keep what a selector of labels selects."""
    wanted = [{"key": k, "operator": "In", "values": [v]} for k, v in selector.get("matchLabels", {}).items()]
    made = []
    for rule in [*wanted, *selector.get("matchExpressions", [])]:
        name = _sanitized(rule["key"])
        value, present = f"__meta_kubernetes_{of}_label_{name}", f"__meta_kubernetes_{of}_labelpresent_{name}"
        action = "keep" if rule["operator"] in ("In", "Exists") else "drop"
        if rule["operator"] in ("In", "NotIn"):
            found = {"source_labels": [value, present], "regex": f"({'|'.join(rule['values'])});true"}
        else:
            found = {"source_labels": [present], "regex": "true"}
        made.append({"action": action, **found})
    return made


def _sanitized(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)
