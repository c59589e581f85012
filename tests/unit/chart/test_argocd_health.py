"""Health of the project's kinds in Argo CD, by the Lua interpreter that Argo CD has, over every phase of the CRDs."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.unit.chart.conftest import CHART, Object

CONFIG = yaml.safe_load((CHART / "argocd-cm.yaml").read_text(encoding="utf-8"))
PREFIX = "resource.customizations.health.rlrun.dev_"
KINDS = {"RLRun": "rlruns", "RLCheckpoint": "rlcheckpoints", "RLAdapter": "rladapters", "RLModel": "rlmodels"}
PHASES: dict[str, dict[str, str]] = {
    "RLRun": {
        "Queued": "Progressing",
        "Pending": "Progressing",
        "Running": "Progressing",
        "Completed": "Healthy",
        "Failed": "Degraded",
        "Stopped": "Healthy",
        "Suspended": "Suspended",
    },
    "RLCheckpoint": {
        "Pending": "Progressing",
        "Uploading": "Progressing",
        "Ready": "Healthy",
        "Failed": "Degraded",
        "Deleting": "Progressing",
    },
}
PHASES["RLAdapter"] = PHASES["RLCheckpoint"]
DEPLOYMENTS = {
    "NotDeployed": "Healthy",
    "Deploying": "Progressing",
    "Deployed": "Healthy",
    "Unloading": "Progressing",
    "DeployFailed": "Degraded",
    "UnloadFailed": "Degraded",
}
SEEN = {"observedGeneration": 2}

pytestmark = pytest.mark.slow


def lua(value: Any) -> str:
    """Return a value of JSON as Lua. Null is left out, as Argo CD does."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"[{lua(k)}] = {lua(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(lua, value)) + "}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value).lower()


def health(folder: Path, kind: str, status: Object | None) -> tuple[str, str]:
    """Return the health and the message that the script of a kind gives an object of generation 2."""
    script = folder / "health.lua"
    obj = {"kind": kind, "metadata": {"name": "x", "generation": 2}, "status": status}
    text = CONFIG["data"][PREFIX + kind]
    script.write_text(
        f'obj = {lua(obj)}\nlocal function f()\n{text}\nend\nlocal hs = f()\nprint(hs.status .. "|" .. hs.message)\n'
    )
    program = ensure_program("glua", paths())
    done = subprocess.run([program, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    found, _, message = done.stdout.strip().partition("|")
    return found, message


def values_of(kind: str, field: str) -> list[str]:
    crd = yaml.safe_load((CHART / "files" / "crds" / f"{KINDS[kind]}.rlrun.dev.yaml").read_text(encoding="utf-8"))
    status = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    found: list[str] = status["properties"][field]["enum"]
    return found


def test_all_kinds_have_a_script() -> None:
    assert set(CONFIG["data"]) == {PREFIX + kind for kind in KINDS}


@pytest.mark.parametrize("kind", PHASES)
def test_every_phase_has_its_health(tmp_path: Path, kind: str) -> None:
    phases = values_of(kind, "phase")
    assert {phase: health(tmp_path, kind, {**SEEN, "phase": phase})[0] for phase in phases} == PHASES[kind]
    assert health(tmp_path, kind, None)[0] == "Progressing"
    assert health(tmp_path, kind, {})[0] == "Progressing"


def test_a_run_of_an_older_generation_progresses_and_a_failed_one_says_why(tmp_path: Path) -> None:
    old = {"observedGeneration": 1, "phase": "Completed"}
    assert health(tmp_path, "RLRun", old) == ("Progressing", "The operator has not seen this generation yet.")
    failed = {**SEEN, "phase": "Failed", "reason": "ModelNotFound", "message": "There is none."}
    assert health(tmp_path, "RLRun", failed) == ("Degraded", "Failed: ModelNotFound: There is none.")


def test_every_state_of_a_deployment_has_its_health(tmp_path: Path) -> None:
    def of(state: str, phase: str = "Ready") -> str:
        return health(tmp_path, "RLAdapter", {**SEEN, "phase": phase, "deploymentState": state})[0]

    assert {state: of(state) for state in values_of("RLAdapter", "deploymentState")} == DEPLOYMENTS
    assert of("Deployed", "Failed") == "Degraded"


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({**SEEN, "conditions": [{"type": "Warnings", "status": "True"}]}, "Progressing"),
        ({**SEEN, "conditions": [{"type": "Validated", "status": "True", "reason": "Valid"}]}, "Healthy"),
        ({**SEEN, "conditions": [{"type": "Validated", "status": "False", "message": "no"}]}, "Degraded"),
        ({"observedGeneration": 1, "conditions": [{"type": "Validated", "status": "True"}]}, "Progressing"),
        (None, "Progressing"),
    ],
)
def test_a_model_is_healthy_when_it_is_valid(tmp_path: Path, status: Object | None, expected: str) -> None:
    assert health(tmp_path, "RLModel", status)[0] == expected
