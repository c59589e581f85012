"""The table of minimum versions, against the chart, the locks and the local cluster."""

import hashlib
import re
import tomllib

import pytest
import yaml
from rlrun.constants import MINIMUM_DRIVER
from rlrun.storage.environment_image import PYTHONS
from rlrun.storage.verifiers_generations.generation_choice import SUPPORTED, image_versions

from local_cluster.host.versions import HELM, KUBERNETES, SEAWEEDFS_PACKAGE
from local_cluster.images.push import ENGINE, chart_version
from tests.support.hosted_client import VERSIONS
from tests.support.source_tree import ROOT

DRIVERS = {12: 525, 13: 580}
"""Minimum driver by major version of CUDA, as NVIDIA's table of minor version compatibility says."""


PAGE = (ROOT / "docs/versions.md").read_text()


def rows() -> dict[str, list[str]]:
    text = PAGE.split("## This release")[1].split("\n## ")[0]
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


def test_the_engine_is_that_of_the_chart() -> None:
    assert rows()["vLLM"][:2] == [ENGINE.rpartition(":v")[2]] * 2


def test_verifiers_is_that_of_the_environment_image() -> None:
    least, tested, why = rows()["verifiers"]
    assert tested == " and ".join(image_versions().values())
    supported = [*SUPPORTED.values()]
    assert f">={least}," in f"{','.join(sorted(map(str, supported[0]), reverse=True))},"
    assert str(next(part for part in supported[-1] if part.operator == "<")) == f"<{why.rpartition('below ')[2]}"


def test_kueue_is_that_of_the_local_cluster() -> None:
    modules = (ROOT / "local_cluster/go/kueue/go.mod").read_text()
    assert f"sigs.k8s.io/kueue v{rows()['Kueue'][1]} " in modules
    assert (
        f"install Kueue {rows()['Kueue'][0]} or later"
        in (ROOT / "operator/rlrun_operator/controller/kueue_observer.py").read_text()
    )


def test_hosted_clients_pythons_and_the_s3_server_are_those_of_the_tests() -> None:
    assert rows()["hosted client `prime`"][:2] == [VERSIONS[0], ", ".join(VERSIONS)]
    assert rows()["Python of environments"][1] == " and ".join(map(str, PYTHONS))
    assert rows()["SeaweedFS"][1] == SEAWEEDFS_PACKAGE.partition("==")[2]


def test_the_newest_release_repeats_the_table() -> None:
    lines = PAGE.split("## Releases")[1].splitlines()
    newest = next(line for line in lines if line.startswith(f"| {chart_version()} |"))
    least = {name: rows()[name][0] for name in ("Kubernetes", "Kueue")}
    assert newest == (
        f"| {chart_version()} | {least['Kubernetes']} or later | {rows()['vLLM'][0]} | {rows()['verifiers'][1]} | "
        f"{least['Kueue']} or later | {rows()['hosted client `prime`'][1]} |"
    )
    assert f"## This release: {chart_version()}" in PAGE


RELEASED = {"0.1.0": "7cda8a444ba692b51d8e3ff498635a7d3189926d9279af54810d4a2c2ab45547"}
"""SHA-256 of the requirements of each released version. They never change; later ones have their own."""


def requirements(version: str) -> str:
    section = (ROOT / "docs/release-notes.md").read_text().split(f"## {version}\n")[1]
    return section.split("### Requirements")[1].split("###")[0]


@pytest.mark.parametrize("version", RELEASED)
def test_requirements_of_a_released_version_stay_as_they_were(version: str) -> None:
    assert hashlib.sha256(requirements(version).strip().encode()).hexdigest() == RELEASED[version]
