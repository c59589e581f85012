"""Prometheus in pods, with the configuration that the Prometheus operator makes of the chart's monitors."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from demo.install import SYSTEM_NAMESPACE
from demo.kubectl import Kubectl, Object
from local_cluster.host.paths import paths
from local_cluster.node.static_images import BinaryImage
from local_cluster.providers.selection import provider
from local_cluster.tools.binaries import ensure_program, module_folder
from tests.e2e.server_clients import forwarded
from tests.support.prometheus_server import Prometheus
from tests.support.scrape_configuration import scrape_jobs

ADMITTED, STRANGER = "monitoring", "elsewhere"
"""Namespaces: that which the chart's value networkPolicy.from names, and another."""
PORT = 9090
OPERATOR = "github.com/prometheus-operator/prometheus-operator"
KINDS = ("servicemonitors", "podmonitors", "prometheusrules")


def definitions() -> list[Object]:
    """Return the CustomResourceDefinitions of KINDS, from the sources of the Prometheus operator."""
    folder = module_folder("prometheus/operator", OPERATOR, paths()) / "example" / "prometheus-operator-crd"
    return [yaml.safe_load((folder / f"monitoring.coreos.com_{kind}.yaml").read_text()) for kind in KINDS]


def prometheus_image() -> str:
    """Build Prometheus if necessary, load it onto the node, and return its image."""
    image = BinaryImage("prometheus", ensure_program("prometheus", paths()))
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "prometheus.tar"
        reference = image.write(archive)
        provider().import_images([archive])
    return reference


def configuration(kubectl: Kubectl) -> dict[str, str]:
    """Return the files of a Prometheus that follows the monitors and rules in the cluster."""
    monitors = _installed(kubectl, "servicemonitors,podmonitors")
    rules = _installed(kubectl, "prometheusrules")
    groups = [group for rule in rules for group in rule["spec"]["groups"]]
    main = {
        "global": {"evaluation_interval": "5s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [job for monitor in monitors for job in scrape_jobs(monitor)],
    }
    return {"prometheus.yaml": yaml.safe_dump(main), "rules.yaml": yaml.safe_dump({"groups": groups})}


@contextmanager
def prometheus_pod(kubectl: Kubectl, namespace: str, image: str, files: dict[str, str]) -> Iterator[Prometheus]:
    """Run Prometheus in a namespace of its own, which goes with it."""
    name = f"prometheus-of-{namespace}"
    kubectl.ensure_namespace(namespace, is_tenant=False)
    try:
        kubectl.apply(*_objects(name, namespace, image, files))
        kubectl("wait", "pod/prometheus", "-n", namespace, "--for=condition=Ready", "--timeout=100s")
        with forwarded(kubectl, namespace, "pod/prometheus", PORT) as url:
            yield Prometheus(url)
    finally:
        kubectl("delete", "clusterrole,clusterrolebinding", name, "--ignore-not-found")
        kubectl("delete", "namespace", namespace, "--wait=false")


def _installed(kubectl: Kubectl, kinds: str) -> list[Object]:
    found: list[Object] = json.loads(kubectl("get", kinds, "-n", SYSTEM_NAMESPACE, "-o", "json"))["items"]
    return found


def _objects(name: str, namespace: str, image: str, files: dict[str, str]) -> list[Object]:
    """Return the pod, with the rights by which it finds its targets, and what these need."""
    group = "rbac.authorization.k8s.io"
    place = {"name": "prometheus", "namespace": namespace}
    container: dict[str, Any] = {
        "name": "prometheus",
        "image": image,
        "imagePullPolicy": "Never",
        "args": ["--config.file=/config/prometheus.yaml", "--storage.tsdb.path=/data"],
        "ports": [{"name": "web", "containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": "web"}, "periodSeconds": 1},
        "volumeMounts": [{"name": "config", "mountPath": "/config"}, {"name": "data", "mountPath": "/data"}],
    }
    rule = {"apiGroups": [""], "resources": ["pods", "services", "endpoints"], "verbs": ["get", "list", "watch"]}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": place},
        {"apiVersion": f"{group}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": [rule]},
        {
            "apiVersion": f"{group}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", **place}],
        },
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": files},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": place,
            "spec": {
                "serviceAccountName": "prometheus",
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
                "volumes": [{"name": "config", "configMap": {"name": "prometheus"}}, {"name": "data", "emptyDir": {}}],
            },
        },
    ]
