"""Who reaches whom on a cluster that enforces NetworkPolicies: every pod of a run against every port that serves.

The rows are the pods of one run. The columns are the ports of its own pods, of a run in the same namespace, of one in
another namespace, and of what lies outside of runs. Each cell is a TCP connection, opened by the container itself.
Without enforcement nearly all cells are open, so that these tests fail.
"""

import http.server
import json
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import pytest
from rlrun.constants import (
    ENVIRONMENT_PORT,
    GATEWAY_CONTAINER_PORT,
    INFERENCE_PORT,
    ORCHESTRATOR_STATUS_CONTAINER_PORT,
    SIDECAR_PORT,
    TRAINER_PORT,
)

from demo.install import SYSTEM_NAMESPACE
from demo.kubectl import Object, wait_for
from tests.e2e.conftest import SECONDS, Platform

RUNS = ("own", "same-namespace", "other-namespace")
PORTS = {
    "orchestrator gateway": ("orchestrator", GATEWAY_CONTAINER_PORT),
    "orchestrator status": ("orchestrator", ORCHESTRATOR_STATUS_CONTAINER_PORT),
    "trainer": ("trainer", TRAINER_PORT),
    "engine": ("inference", INFERENCE_PORT),
    "sidecar": ("inference", SIDECAR_PORT),
    "environment": ("environment", ENVIRONMENT_PORT),
}
"""Ports on which the pods of a run serve."""
ALLOWED = {
    "environment": {"orchestrator gateway"},
    "orchestrator": {"trainer", "engine", "sidecar", "environment"},
    "inference": {"trainer"},
    "trainer": set[str](),
}
"""Ports of other pods of its own run that a pod may reach. Those of other runs: none."""
OUTSIDE_OF_USER_CODE = {"DNS"}
"""What user code may reach outside of its run. The other pods' ways out are not limited by default."""
METADATA = "169.254.169.254"
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def connects(address):
    try:
        socket.create_connection(tuple(address), timeout=5).close()
    except OSError:
        return False
    return True

addresses = json.loads(sys.argv[1])
with ThreadPoolExecutor(len(addresses)) as pool:
    print(json.dumps(dict(zip(addresses, pool.map(connects, addresses.values())))))
"""
"""Prints for each address whether a connection opens. A policy may refuse one or leave it without an answer."""


@dataclass(frozen=True)
class Runs:
    """The pods of RUNS by role, while all of them train."""

    platform: Platform
    pods: dict[str, dict[str, Object]]

    def reached_from(self, pod: Object, addresses: dict[str, tuple[str, int]]) -> set[str]:
        """Return the names of the addresses to which the first container of the pod can connect."""
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]["name"]
        where = ("exec", "-n", metadata["namespace"], metadata["name"], "-c", container)
        answer = json.loads(self.platform.kubectl(*where, "--", "python3", "-c", CONNECT, json.dumps(addresses)))
        return {name for name, is_open in answer.items() if is_open}

    def addresses(self, run: str) -> dict[str, tuple[str, int]]:
        """Return the address of each of PORTS in that run."""
        return {name: (self.pods[run][role]["status"]["podIP"], port) for name, (role, port) in PORTS.items()}


@pytest.fixture(scope="module")
def runs(platform: Platform, module_namespace: Callable[[str], str]) -> Runs:
    """Three runs that train beside each other, two of them in one namespace."""
    ours, theirs = module_namespace("policies"), module_namespace("policies-other")
    namespaces = dict(zip(RUNS, (ours, ours, theirs), strict=True))
    for name, namespace in namespaces.items():
        platform.kubectl.apply(platform.run_object(name, namespace, maxSteps=100_000))

    def pods_of(name: str) -> dict[str, Object] | None:
        run = platform.kubectl.get("rlrun", name, namespaces[name]) or {}
        assert run.get("status", {}).get("phase") != "Failed", run["status"]
        if not (run.get("status", {}).get("progress") or {}).get("step"):
            return None
        found = platform.kubectl.list("pods", namespaces[name], f"rlrun.dev/run={name}")
        return {pod["metadata"]["labels"]["rlrun.dev/role"]: pod for pod in found}

    return Runs(platform, {name: wait_for(f"a step of {name}", partial(pods_of, name), SECONDS) for name in RUNS})


@contextmanager
def listening_at(address: str, port: int) -> Iterator[None]:
    """Give this machine, which is the node, an address with a server, as clouds give nodes one with credentials."""
    subprocess.run(["ip", "address", "add", f"{address}/32", "dev", "lo"], check=True)
    try:
        with socketserver.ThreadingTCPServer((address, port), http.server.BaseHTTPRequestHandler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield
            server.shutdown()
    finally:
        subprocess.run(["ip", "address", "delete", f"{address}/32", "dev", "lo"], check=True)


@pytest.fixture(scope="module")
def outside(platform: Platform) -> Iterator[dict[str, tuple[str, int]]]:
    """Addresses outside of runs at which something listens."""

    def service(name: str, namespace: str) -> tuple[str, int]:
        spec = platform.kubectl.get("service", name, namespace)["spec"]  # type: ignore[index]
        return spec["clusterIP"], spec["ports"][0]["port"]

    node = json.loads(platform.kubectl("get", "nodes", "-o", "json"))["items"][0]
    address = next(a["address"] for a in node["status"]["addresses"] if a["type"] == "InternalIP")
    with listening_at(METADATA, 80):
        yield {
            "DNS": service("kube-dns", "kube-system"),
            "API server": service("kubernetes", "default"),
            "S3": service("s3", SYSTEM_NAMESPACE),
            "rlrun-server": service("rlrun-server", SYSTEM_NAMESPACE),
            "kubelet of its node": (address, 10250),
            "metadata address": (METADATA, 80),
        }


@pytest.mark.parametrize("role", ALLOWED)
@pytest.mark.parametrize("run", RUNS)
def test_pods_reach_only_what_their_run_needs(runs: Runs, role: str, run: str) -> None:
    addresses = {name: a for name, a in runs.addresses(run).items() if run != "own" or PORTS[name][0] != role}
    assert runs.reached_from(runs.pods["own"][role], addresses) == (ALLOWED[role] if run == "own" else set())


def test_user_code_reaches_nothing_outside_but_dns(runs: Runs, outside: dict[str, tuple[str, int]]) -> None:
    assert runs.reached_from(runs.pods["own"]["environment"], outside) == OUTSIDE_OF_USER_CODE


@pytest.mark.parametrize("role", sorted(ALLOWED.keys() - {"environment"}))
def test_everything_outside_answers_to_pods_without_a_limit(
    runs: Runs, outside: dict[str, tuple[str, int]], role: str
) -> None:
    """Otherwise a refused connection of user code would prove nothing."""
    assert runs.reached_from(runs.pods["own"][role], outside) == set(outside)


def test_operator_and_server_read_the_status_of_all_runs(runs: Runs) -> None:
    pods = runs.platform.kubectl.list("pods", SYSTEM_NAMESPACE, "app.kubernetes.io/component=operator")
    for run in RUNS:
        assert runs.reached_from(pods[0], runs.addresses(run)) == {"orchestrator status"}
