"""Runs of one model that share a pool: they finish, see only their own policies, and outlive the pool's processes."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from demo.kubectl import Object, condition, wait_for
from demo.run_metrics import mean_of
from demo.watch import follow
from tests.e2e.conftest import ON_POLICY, SECONDS, SEEDS, STUBS, Neighbours, Platform
from tests.e2e.runs import KL_LIMITS, metrics_of
from tests.support.pod_processes import processes_of

ENGINE_STEP, TRAINER_STEP = 2, 4
"""Steps after which engine and trainer are killed, the sidecar of the next engine between them. The runs have steps to
make then.
"""
SIDECAR = "rlrun_adapter_sidecar.pools"
IDLE_SECONDS = 5
NAMES = ("one", "two")
POOL_LABEL = "rlrun.dev/serving"
REQUESTS = """
import json, os, sys, urllib.error, urllib.request
answers = {}
for name, (method, url, headers, body) in json.loads(sys.argv[1]).items():
    headers = {"Authorization": "Bearer " + os.environ["RLRUN_TOKEN"], "Content-Type": "application/json", **headers}
    request = urllib.request.Request(url, None if method == "GET" else body.encode(), headers, method=method)
    try:
        answers[name] = urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        answers[name] = error.code
print(json.dumps(answers))
"""


@dataclass
class SharedRuns:
    """Two runs of a pool whose processes were killed while both trained, and a third without a slot."""

    platform: Platform
    namespace: str
    pool: str = ""
    runs: list[Object] = field(default_factory=list)
    """The two runs at their end."""
    answers: dict[str, int] = field(default_factory=dict)
    """HTTP status of each request of the first run's orchestrator to the pool."""
    pods: set[str] = field(default_factory=set)
    """Roles of the pods of both runs while they trained."""
    full: str = ""
    """Reason for which the third run waited."""
    engines: list[Object] = field(default_factory=list)
    """Pods of the pool's engines before one was killed."""
    trainers: list[Object] = field(default_factory=list)
    """Pods of the pool's trainer before it was killed."""
    killed_at: dict[str, list[int]] = field(default_factory=dict)
    """Steps of both runs when the trainer and the sidecar were killed."""

    def look(self, _: object) -> None:
        kubectl = self.platform.kubectl
        runs = [kubectl.get("rlrun", name, self.namespace) or {} for name in NAMES]
        steps = [(run.get("status", {}).get("progress") or {}).get("step", 0) for run in runs]
        third = condition(kubectl.get("rlrun", "three", self.namespace) or {}, "Admitted")
        if third and third["status"] == "False":
            self.full = third["reason"]
        if any(run.get("status", {}).get("phase") != "Running" for run in runs):
            return
        if not self.engines and min(steps) >= ENGINE_STEP:
            self.kill_engine(runs)
        elif self.engines and "sidecar" not in self.killed_at:
            self.kill_sidecar(steps)
        elif self.engines and not self.trainers and min(steps) >= TRAINER_STEP:
            self.trainers, self.killed_at["trainer"] = self.pods_of_pool("trainer"), steps
            self.kill(self.trainers[0])

    def kill_engine(self, runs: list[Object]) -> None:
        kubectl = self.platform.kubectl
        self.pool = runs[0]["status"]["pool"]["name"]
        assert runs[1]["status"]["pool"]["name"] == self.pool
        pods = kubectl.list("pods", self.namespace)
        self.pods = {str(pod["metadata"]["labels"].get("rlrun.dev/role")) for pod in pods if run_of(pod) in NAMES}
        self.engines = self.pods_of_pool("inference")
        self.answers = self.ask(runs)
        self.kill(self.engines[0])

    def kill_sidecar(self, steps: list[int]) -> None:
        before = self.engines[0]["metadata"]["name"]
        pods = [pod for pod in self.pods_of_pool("inference") if pod["metadata"]["name"] != before]
        if any((condition(pod, "Ready") or {}).get("status") == "True" for pod in pods):
            for process in processes_of(pods, SIDECAR):
                os.kill(process, signal.SIGKILL)
                self.killed_at["sidecar"] = steps

    def pods_of_pool(self, role: str) -> list[Object]:
        return self.platform.kubectl.list("pods", self.namespace, f"{POOL_LABEL}={self.pool},rlrun.dev/role={role}")

    def kill(self, pod: Object) -> None:
        """End the pod's processes by SIGKILL: from inside the container, the first process cannot be killed."""
        name = pod["metadata"]["name"]
        self.platform.kubectl("delete", "pod", name, "-n", self.namespace, "--grace-period=0", "--force")

    def ask(self, runs: list[Object]) -> dict[str, int]:
        """Send requests with the first run's token."""
        host = self.engines[0]["status"]["podIP"]
        engine, sidecar = f"http://{host}:8000", f"http://{host}:8001"
        trainer = f"http://{self.pods_of_pool('trainer')[0]['status']['podIP']}:8080"
        sample = json.dumps({"prompt": [1, 2], "max_tokens": 1})
        foreign = f"{runs[1]['metadata']['uid']}_policy-v000001-00000000"
        completions, base = f"{engine}/v1/completions", runs[0]["spec"]["model"]
        twice = f'{sample[:-1]}, "model": "{foreign}", "model": "{foreign}"}}'
        requests: dict[str, tuple[str, str, dict[str, str], str]] = {
            "base model": ("POST", completions, {"X-Rlrun-Model": base}, sample),
            "foreign name twice in the body": ("POST", completions, {"X-Rlrun-Model": base}, twice),
            "foreign name": ("POST", completions, {"X-Rlrun-Model": foreign}, sample),
            "no name": ("POST", completions, {}, sample),
            "metrics": ("GET", f"{engine}/metrics", {}, ""),
            "models": ("GET", f"{engine}/v1/models", {}, ""),
            "load": ("POST", f"{engine}/v1/load_lora_adapter", {}, json.dumps({"lora_name": "x", "lora_path": "/x"})),
            "order": ("PUT", f"{sidecar}/pool-order", {}, json.dumps({"base": base, "runs": []})),
            "order of the trainer": ("PUT", f"{trainer}/pool-order", {}, json.dumps({"runs": []})),
            "foreign session": ("GET", f"{trainer}/sessions/{runs[1]['metadata']['uid']}", {}, ""),
            "no object": ("POST", completions, {"X-Rlrun-Model": base}, "[]"),
        }
        selector = f"rlrun.dev/run={NAMES[0]},rlrun.dev/role=orchestrator"
        pod = self.platform.kubectl.list("pods", self.namespace, selector)[0]["metadata"]["name"]
        command = ("exec", "-n", self.namespace, pod, "--", "python", "-c", REQUESTS, json.dumps(requests))
        answers: dict[str, int] = json.loads(self.platform.kubectl(*command))
        return answers


def run_of(pod: Object) -> str:
    return str(pod["metadata"].get("labels", {}).get("rlrun.dev/run"))


@pytest.fixture(scope="module")
def shared(platform: Platform, model: str, module_namespace: Callable[[str], str]) -> Iterator[SharedRuns]:
    kubectl, namespace = platform.kubectl, module_namespace("pool")
    model_id = f"rlrun/shared-{'stubs' if model == STUBS else 'engines'}"
    entry = platform.model_object(model_id.partition("/")[2], model_id, model)
    entry["spec"]["sharing"] = {"mode": "Namespace", "maxRuns": 2, "idleSeconds": IDLE_SECONDS, "recoverySeconds": 1}
    if model == STUBS:
        entry["spec"]["inference"]["env"] = [{"name": "STUB_ENGINE_TOKEN_SECONDS", "value": "0.1"}]
    kubectl.apply(entry)
    for name, seed in zip(NAMES, SEEDS, strict=True):
        kubectl.apply(platform.run_object(name, namespace, **ON_POLICY, model=model_id, seed=seed))
    wait_for("both runs in the pool", lambda: all(in_pool(platform, namespace, name) for name in NAMES), 60)
    kubectl.apply(platform.run_object("three", namespace, model=model_id, maxSteps=1))
    found = SharedRuns(platform, namespace)
    found.runs = [follow(kubectl, name, namespace, SECONDS, each=found.look) for name in NAMES]
    yield found
    with suppress(RuntimeError):
        kubectl("delete", "rlmodel", entry["metadata"]["name"], "--wait=false")


def in_pool(platform: Platform, namespace: str, run: str) -> bool:
    obj: dict[str, Any] = platform.kubectl.get("rlrun", run, namespace) or {}
    return bool((obj.get("status", {}).get("pool") or {}).get("name"))


def test_two_runs_use_one_trainer_and_one_engine(shared: SharedRuns) -> None:
    assert (len(shared.engines), len(shared.trainers)) == (1, 1)
    assert shared.pods == {"environment", "orchestrator"}
    assert [run["status"]["resolved"]["gpus"] for run in shared.runs] == [0, 0]


def test_killed_processes_of_the_pool_lose_and_repeat_no_step(
    shared: SharedRuns, model: str, neighbours: Neighbours
) -> None:
    assert shared.killed_at.keys() == {"trainer", "sidecar"}
    assert max(max(steps) for steps in shared.killed_at.values()) < ON_POLICY["maxSteps"], "both trained meanwhile"
    for run, alone in zip(shared.runs, neighbours.runs, strict=True):
        lines = metrics_of(shared.platform, run)
        assert [line["step"] for line in lines] == list(range(1, ON_POLICY["maxSteps"] + 1))
        assert mean_of(lines, "mismatch_kl/all/mean") <= KL_LIMITS[model], "the engine served another run's adapter"
        if model == STUBS:
            rewards = [line["reward/mean"] for line in metrics_of(shared.platform, alone)]
            assert [line["reward/mean"] for line in lines] == rewards, "a run in a pool is the same run as alone"


def test_a_killed_process_of_the_pool_restarts_no_run(shared: SharedRuns) -> None:
    assert [run["status"].get("restarts", 0) for run in shared.runs] == [0, 0]
    assert [run["status"]["attempt"] for run in shared.runs] == [1, 1]
    assert all(run["status"]["phase"] == "Completed" for run in shared.runs)


def test_a_run_reaches_only_its_own_policies(shared: SharedRuns) -> None:
    assert shared.answers.pop("foreign session") in (401, 403, 404)
    assert shared.answers == {
        "base model": 200,
        "foreign name twice in the body": 200,  # of the base model, as the header says
        "foreign name": 404,
        "no name": 400,
        "metrics": 401,
        "models": 401,
        "load": 401,
        "order": 401,
        "order of the trainer": 401,
        "no object": 400,
    }


def test_a_run_waits_for_a_place_and_the_pool_ends_when_it_is_idle(shared: SharedRuns) -> None:
    kubectl = shared.platform.kubectl
    assert shared.full == "PoolFull"
    done = follow(kubectl, "three", shared.namespace, SECONDS)
    assert done["status"]["phase"] == "Completed"
    kinds = ("deployments", "secrets", "serviceaccounts")
    gone = lambda: not any(kubectl.list(kind, shared.namespace, POOL_LABEL) for kind in kinds)  # noqa: E731
    wait_for("the end of the idle pool", gone, IDLE_SECONDS + 90)


def test_a_dedicated_run_of_a_shared_model_has_its_own_engine(
    platform: Platform, fresh_namespace: Callable[[str], str]
) -> None:
    kubectl, namespace = platform.kubectl, fresh_namespace("alone")
    entry = platform.model_object("shared-dedicated", "rlrun/shared-dedicated")
    entry["spec"]["sharing"] = {"mode": "Namespace"}
    kubectl.apply(entry)
    run = platform.run_object("own", namespace, model="rlrun/shared-dedicated", maxSteps=1)
    run["spec"]["infrastructure"] = {**run["spec"].get("infrastructure", {}), "dedicated": True}
    kubectl.apply(run)
    done = follow(kubectl, "own", namespace, SECONDS)
    assert done["status"]["phase"] == "Completed"
    assert "pool" not in done["status"]
    assert not kubectl.list("deployments", namespace, POOL_LABEL)
