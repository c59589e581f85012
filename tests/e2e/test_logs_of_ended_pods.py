"""The log of a pod is whole in S3, however the pod ends: with a real kubelet, which removes logs within a second.

    LOG_ENDS=200 $(make -s venv)/bin/python -m pytest tests/e2e/test_logs_of_ended_pods.py

ends 200 pods in each way, and 200 attempts of runs.
"""

import json
import os
from collections.abc import Callable

import pytest
from rlrun.constants import (
    ATTEMPT_LABEL,
    FIELD_MANAGER,
    LOG_HOLD_CONTAINER,
    LOG_HOLD_SECONDS,
    MANAGED_BY_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    RUN_UID_LABEL,
)
from rlrun.storage.errors import NotFound
from rlrun.storage.layout import RunLayout

from demo.install import BUCKET
from demo.kubectl import Object, wait_for
from tests.e2e.conftest import SECONDS, STUBS, Platform

ENDS = int(os.environ.get("LOG_ENDS", "8"))
AT_ONCE = 8
"""Pods that end at a time."""
LINES = 2000
PROGRAM = f"""
import signal, sys, time

def end(*_):
    print("the end", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
for number in range({LINES}):
    print("line", number)
print("begun", flush=True)
time.sleep(1 if sys.argv[1:] else 3600)
end()
"""
RUNS = min(4, ENDS)
"""Runs that restart at a time."""
CONTAINERS = {"trainer": "trainer", "inference": "vllm", "environment": "environment", "orchestrator": "orchestrator"}
"""Container of each role."""
LAST_WORDS = {
    "trainer": "Shutdown took",
    "inference": "Finished server process",
    "orchestrator": "shutting down at step",
}
"""In the last lines of processes that a restart ends. Environments have none."""
WHOLE = "".join([*(f"line {number}\n" for number in range(LINES)), "begun\nthe end\n"])


def pod(name: str, namespace: str, image: str, *, by_itself: bool) -> Object:
    """A pod as an orchestrator's, whose process ends at once when it is asked to, or `by_itself`."""
    labels = {
        MANAGED_BY_LABEL: FIELD_MANAGER,
        RUN_LABEL: "short",
        RUN_UID_LABEL: "short",
        ROLE_LABEL: "orchestrator",
        ATTEMPT_LABEL: "1",
    }
    common = {"image": image, "imagePullPolicy": "IfNotPresent", "securityContext": {"runAsUser": 1000}}
    hold = ["python", "-m", "rlrun.service.containers.log_hold", str(LOG_HOLD_SECONDS)]
    main = ["python", "-c", PROGRAM, *(["by itself"] if by_itself else [])]
    spec = {
        "automountServiceAccountToken": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 10 + LOG_HOLD_SECONDS,
        "initContainers": [{"name": LOG_HOLD_CONTAINER, "restartPolicy": "Always", "command": hold, **common}],
        "containers": [{"name": "orchestrator", "command": main, **common}],
    }
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("way", ["delete", "evict", "by itself"])
def test_the_log_of_a_pod_that_ends_at_once_is_whole(
    platform: Platform, fresh_namespace: Callable[[str], str], way: str
) -> None:
    namespace, kubectl = fresh_namespace("ends"), platform.kubectl
    layout = RunLayout.of(BUCKET, "", namespace, "short")
    settings = kubectl.get("deployment", "rlrun-operator", "rlrun-system") or {}
    image = settings["spec"]["template"]["spec"]["containers"][0]["image"]

    def kept(name: str) -> str:
        try:
            return platform.s3.store().get_bytes(layout.log(1, name, "orchestrator"), 2**20).decode()
        except NotFound:
            return ""

    def wait_until_all(names: list[str], what: str, is_so: Callable[[str | None], bool]) -> None:
        def look() -> bool:
            found = {pod["metadata"]["name"]: pod["status"].get("phase") for pod in kubectl.list("pods", namespace)}
            return all(is_so(found.get(name)) for name in names)

        wait_for(f"all of {', '.join(names)} to {what}", look, SECONDS, 0.5)

    for first in range(0, ENDS, AT_ONCE):
        names = [f"pod-{number}" for number in range(first, min(first + AT_ONCE, ENDS))]
        for name in names:
            kubectl.apply(pod(name, namespace, image, by_itself=way == "by itself"))
        wait_until_all(names, "run", lambda phase: phase not in (None, "Pending"))
        # A signal between two lines would end the program in the middle.
        for name in names if way != "by itself" else []:
            said = ("logs", name, "-n", namespace, "--tail=1")
            wait_for(f"the first lines of {name}", lambda said=said: "begun" in kubectl(*said), SECONDS, 0.5)
        if way == "delete":
            kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")
        for name in names if way == "evict" else []:
            eviction = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace},
            }
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
            kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
        wait_until_all(names, "end", lambda phase: phase in (None, "Succeeded", "Failed"))
        lost = {name: kept(name)[-40:] for name in names if kept(name) != WHOLE}
        assert not lost, f"{len(lost)} of {len(names)} logs are not whole: {lost}"
        kubectl("delete", "pods", "--all", "-n", namespace, "--wait=true")


@pytest.mark.extended
def test_the_logs_of_all_attempts_of_runs_that_restart_are_whole(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    """A restart as `rlrun restart` makes it: all processes end at once, each with its own last words."""
    namespace, kubectl, store = fresh_namespace("restarts"), platform.kubectl, platform.s3.store()
    names = [f"run-{number}" for number in range(RUNS)]
    for name in names:
        kubectl.apply(platform.run_object(name, namespace, model=platform.slowed(STUBS), maxSteps=100_000))

    def suspend(value: bool) -> None:
        for name in names:
            patch = json.dumps({"spec": {"suspend": value}})
            kubectl("patch", "rlrun", name, "-n", namespace, "--type", "merge", "-p", patch)

    def are_all(phase: str) -> bool:
        return all(run.get("status", {}).get("phase") == phase for run in kubectl.list("rlruns", namespace))

    def problem_of(pod: Object) -> str:
        labels = pod["metadata"]["labels"]
        role, layout = labels[ROLE_LABEL], RunLayout.of(BUCKET, "", namespace, labels[RUN_UID_LABEL])
        uri = layout.log(int(labels[ATTEMPT_LABEL]), pod["metadata"]["name"], CONTAINERS[role])
        try:
            text = store.get_bytes(uri, 2**20).decode()
        except NotFound:
            return "no log"
        return "" if text and LAST_WORDS.get(role, "") in text else f"ends with {text[-200:]!r}"

    ended = 0
    for _ in range(ENDS // RUNS):
        wait_for("all runs to train", lambda: are_all("Running"), SECONDS, 0.5)
        pods = kubectl.list("pods", namespace)
        assert {pod["metadata"]["labels"][ROLE_LABEL] for pod in pods} == set(CONTAINERS)
        suspend(True)
        wait_for(
            "all runs to be suspended",
            lambda: are_all("Suspended") and not kubectl.list("pods", namespace),
            SECONDS,
            0.5,
        )
        lost = {pod["metadata"]["name"]: problem for pod in pods if (problem := problem_of(pod))}
        ended += len(pods)
        assert not lost, f"{len(lost)} of {ended} logs are not whole: {lost}"
        suspend(False)
    print(f"{ended} logs of {ENDS // RUNS * RUNS} attempts are whole")
