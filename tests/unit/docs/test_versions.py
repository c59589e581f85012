"""The table of minimum versions, against the chart, the locks and the local cluster."""

import hashlib
import re
import tomllib

import pytest
import yaml
from rlrun.constants import MINIMUM_DRIVER

from local_cluster.host.versions import HELM, KUBERNETES
from tests.support.source_tree import ROOT

DRIVERS = {12: 525, 13: 580}
"""Minimum driver by major version of CUDA, as NVIDIA's table of minor version compatibility says."""


def rows() -> dict[str, list[str]]:
    text = (ROOT / "docs/guides/quickstart.md").read_text().split("### Versions")[1].split("## 1.")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return {row[0].split(",")[0]: row[1:] for row in cells[2:]}


def test_kubernetes_is_that_of_the_chart_and_of_the_local_cluster() -> None:
    chart = yaml.safe_load((ROOT / "charts/rlrun/Chart.yaml").read_text())
    least, tested, _ = rows()["Kubernetes"]
    assert chart["kubeVersion"] == f">={least}.0-0"
    assert tested == KUBERNETES


def test_helm_is_tested_with_that_of_the_local_cluster() -> None:
    assert rows()["Helm"][1] == HELM


def test_the_driver_is_that_of_the_trainers_cuda() -> None:
    lock = (ROOT / "requirements/torch-cuda.lock").read_text()
    (version,) = re.findall(r"^nvidia-cuda-runtime==(\d+)\.", lock, re.MULTILINE)
    least, _, why = rows()["driver of NVIDIA"]
    assert int(least) == MINIMUM_DRIVER == DRIVERS[int(version)]
    assert f"CUDA {version}" in why


def test_python_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={rows()['Python'][0]}"


RELEASED = {"0.1.0": "7cda8a444ba692b51d8e3ff498635a7d3189926d9279af54810d4a2c2ab45547"}
"""SHA-256 of the requirements of each released version. They never change; later ones have their own."""


def requirements(version: str) -> str:
    section = (ROOT / "docs/release-notes.md").read_text().split(f"## {version}\n")[1]
    return section.split("### Requirements")[1].split("###")[0]


@pytest.mark.parametrize("version", RELEASED)
def test_requirements_of_a_released_version_stay_as_they_were(version: str) -> None:
    assert hashlib.sha256(requirements(version).strip().encode()).hexdigest() == RELEASED[version]
