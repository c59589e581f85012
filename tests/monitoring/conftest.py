"""The cluster of the end-to-end level, monitored as docs/alerts.md says, with enforced NetworkPolicies."""

from pathlib import Path

import pytest
import yaml

from demo.cluster import local_cluster
from demo.install import install_platform
from tests.e2e.conftest import STUB_MODEL, Platform, module_namespace  # noqa: F401
from tests.monitoring.prometheus_pods import ADMITTED, definitions

INTERVAL = "5s"
VALUES = {
    "metrics": {
        "serviceMonitor": {"enabled": True, "interval": INTERVAL},
        "podMonitor": {"enabled": True, "interval": INTERVAL},
        "alerts": {"enabled": True},
        "dashboards": {"enabled": True},
    },
    "networkPolicy": {
        "enabled": True,
        "from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ADMITTED}}}],
    },
}


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """The chart with monitors, alerts, dashboards and its own policies."""
    kubectl, s3 = local_cluster()
    kinds = definitions()
    kubectl.apply(*kinds)
    kubectl("wait", "crd", *(kind["metadata"]["name"] for kind in kinds), "--for=condition=Established")
    values: Path = tmp_path_factory.mktemp("chart") / "values.yaml"
    values.write_text(yaml.safe_dump(VALUES))
    install_platform(kubectl, s3, print, "-f", str(values))
    kubectl.apply(yaml.safe_load(STUB_MODEL.read_text()))
    return Platform(kubectl, s3)
