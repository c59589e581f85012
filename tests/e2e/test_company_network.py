"""A platform in a company's network: all it connects to is behind a proxy and certificates of a private authority."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from demo.install import CHART, RELEASE, SYSTEM_NAMESPACE, chart_values
from demo.watch import follow
from tests.e2e.company import HUB, S3, Company, start_company
from tests.e2e.conftest import SECONDS, Platform

pytestmark = [pytest.mark.alone, pytest.mark.extended]  # the chart is changed

MODEL = "rlrun/company-tiny"
COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"


@pytest.fixture
def company(platform: Platform, tmp_path: Path) -> Iterator[Company]:
    """The network, with the chart installed in it. Afterwards the chart is as before."""
    kubectl = platform.kubectl
    company = start_company(kubectl, platform.s3, tmp_path / "authority")
    values = tmp_path / "values.yaml"
    values.write_text(
        yaml.safe_dump(
            {
                "caBundle": {"pem": company.ca},
                "proxy": {"httpsProxy": company.proxy},
                "s3": {"endpoint": f"https://{S3}"},
            }
        )
    )
    local = ["-n", SYSTEM_NAMESPACE, *chart_values(platform.s3), "--wait", "--timeout", "400s"]
    try:
        kubectl.helm("upgrade", RELEASE, str(CHART), *local, "-f", str(values), timeout=420)
        yield company
    finally:
        kubectl.helm("upgrade", RELEASE, str(CHART), *local, timeout=420)
        company.stop()


def test_a_run_with_a_model_of_the_hub_completes(
    platform: Platform, company: Company, fresh_namespace: Callable[[str], str]
) -> None:
    kubectl, namespace = platform.kubectl, fresh_namespace("company")
    model = platform.model_object("company-tiny", MODEL)
    model["spec"]["source"] = f"hf://rlrun/reverse-text-tiny@{COMMIT}"
    for role in ("trainer", "inference"):
        env = [v for v in model["spec"][role].get("env", []) if v["name"] != "HF_ENDPOINT"]
        model["spec"][role]["env"] = [*env, {"name": "HF_ENDPOINT", "value": f"https://{HUB}"}]
    kubectl.apply(model)
    try:
        run = platform.run_object("company", namespace, model=MODEL, maxSteps=3, checkpoints={"interval": 2})
        kubectl.apply(run)
        ended = follow(kubectl, "company", namespace, SECONDS)
        assert ended["status"]["phase"] == "Completed", ended["status"]
        kinds = {c["kind"] for c in kubectl.list("rlcheckpoints", namespace)}
        assert kinds == {"RLCheckpoint"}
        # Processes of the run, rlrun-server and the API server are inside.
        assert set(company.connections()) == {f"CONNECT {HUB}:443", f"CONNECT {S3}:443"}
    finally:
        kubectl("delete", "rlmodel", "company-tiny", "--ignore-not-found")
