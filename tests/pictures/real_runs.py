"""The two runs of the pictures: an example that learns, and the same with another learning rate."""

import copy
import time
from collections.abc import Callable
from typing import Any

import yaml

from demo.install import EXAMPLES
from demo.kubectl import Kubectl, Object, wait_for
from demo.watch import TERMINAL, RunFailed, describe, pods

NAMESPACE = "research"
EXAMPLE = "reverse-text.yaml"
RUN, OTHER = "reverse-text", "reverse-text-small-steps"
BOTH: dict[str, Any] = {
    "val": {"numExamples": 32, "interval": 5},
    "eval": {
        "interval": 10,
        "numExamples": 16,
        "rolloutsPerExample": 2,
        "env": [{"id": "rlrun/reverse-text", "name": "longer-texts", "args": {"min_length": 11, "max_length": 16}}],
    },
}
"""What both runs have beside the example: the charts then show validation and evaluation."""
CHANGES: dict[str, dict[str, Any]] = {RUN: BOTH, OTHER: {**BOTH, "learningRate": 1e-4, "batchSize": 64}}
"""Fields of the spec that differ from the example, by run."""
RUN_SECONDS = 1200.0
"""Longest time for a run, and for the deployment of an adapter."""


def run_object(name: str) -> Object:
    """Return the RLRun."""
    run: Object = yaml.safe_load((EXAMPLES / EXAMPLE).read_text())
    run["metadata"] = {"name": name, "namespace": NAMESPACE}
    run["spec"] |= copy.deepcopy(CHANGES[name])
    return run


def remove_runs(kubectl: Kubectl) -> None:
    """Delete what an earlier command left in the namespace, and wait for its end."""
    kubectl.ensure_namespace(NAMESPACE)
    kubectl("delete", "rlruns", "--all", "-n", NAMESPACE, "--wait=true", "--timeout=170s", timeout=180)
    kubectl("delete", "rlcheckpoints,rladapters", "--all", "-n", NAMESPACE, "--timeout=170s", timeout=180)


def look_until_completed(
    kubectl: Kubectl, name: str, look: Callable[[Object], None], seconds: float = RUN_SECONDS
) -> Object:
    """Call `look` with a run, again and again until it is completed, and return the run.

    Raises:
        RunFailed: It ended otherwise, or did not end within `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        run = kubectl.get("rlrun", name, NAMESPACE) or {}
        phase = phase_of(run)
        if phase == "Completed":
            return run
        if phase in TERMINAL or time.monotonic() > deadline:
            raise RunFailed(f"rlrun {NAMESPACE}/{name} is {phase}:\n{describe(run)}\n{pods(kubectl, NAMESPACE)}")
        look(run)


def phase_of(run: Object) -> str:
    """Return the phase of a run, which has none until the operator has seen it."""
    return str(run.get("status", {}).get("phase") or "Pending")


def step_of(run: Object) -> int:
    """Return the last step of a run."""
    return int(run.get("status", {}).get("progress", {}).get("step") or 0)


def newest_adapter(kubectl: Kubectl, run: str) -> str:
    """Return the name of the run's last adapter, once it is Ready."""

    def look() -> str | None:
        found = [o for o in kubectl.list("rladapters", NAMESPACE) if o["spec"]["runName"] == run]
        if not found or any(o.get("status", {}).get("phase") != "Ready" for o in found):
            return None
        return str(max(found, key=lambda o: o["spec"]["step"])["metadata"]["name"])

    return wait_for(f"the adapters of {run}", look, RUN_SECONDS)


def wait_until_deployed(kubectl: Kubectl, adapter: str) -> None:
    """Wait until the pool serves the adapter. Raises RuntimeError with its message if it cannot."""

    def look() -> bool:
        status = (kubectl.get("rladapter", adapter, NAMESPACE) or {}).get("status") or {}
        if status.get("deploymentState") == "DeployFailed":
            raise RuntimeError(f"{adapter} cannot be deployed: {status.get('deploymentMessage')}")
        return status.get("deploymentState") == "Deployed"

    wait_for(f"the deployment of {adapter}", look, RUN_SECONDS)
