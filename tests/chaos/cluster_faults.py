"""Faults of the local cluster: in processes, pods, S3, the API server and a disk.

The pods' processes are processes of this machine, found by their pod and their command line: `kill -9` from inside a
container does nothing to its first process.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

from demo.install import SYSTEM_NAMESPACE
from demo.kubectl import Object
from local_cluster.control_plane.control_plane_daemons import ControlPlaneDaemons
from local_cluster.host.network import Ports, node_address
from local_cluster.host.paths import paths
from local_cluster.providers.embedded_cluster import EmbeddedCluster
from local_cluster.providers.selection import provider
from tests.chaos.cluster_run import ClusterRun
from tests.chaos.scenario import Lost, NotStruck, require_strike
from tests.e2e.conftest import Platform
from tests.support.pod_processes import processes_of

OPERATOR = "app.kubernetes.io/name=rlrun,app.kubernetes.io/component=operator"
STORAGE_SERVER = "app.kubernetes.io/name=rlrun,app.kubernetes.io/component=server"
S3 = "s3"
ROLLOUT_SECONDS = 120.0
S3_SECONDS = 240.0
"""Deadline for answers of S3 after its start: SeaweedFS has once denied that its bucket exists for two minutes."""
PROCESS_SECONDS = 30.0
CALL_SECONDS = 5.0
"""Seconds that an engine is paused before it is killed: a few steps, so that requests to it are in progress."""

PROCESSES: dict[str, tuple[str, str, str]] = {
    "trainer": ("trainer", "rlrun_trainer", ""),
    "orchestrator": ("orchestrator", "rlrun_orchestrator", ""),
    "engine": ("inference", "VLLM::EngineCore", ""),
    "engine-server": ("inference", "vllm serve", ""),
    "sidecar": ("inference", "rlrun_adapter_sidecar", ""),
    "environment-server": ("environment", "rlrun_environment", "environment.worker"),
    "environment-worker": ("environment", "rlrun_environment.worker", ""),
}
"""Name: role of the pod, what the command line contains, and what it does not."""


def kill_process(run: ClusterRun, name: str) -> None:
    """SIGKILL to a process of the run. Raises NotStruck where there is none."""
    role, mark, without = PROCESSES[name]
    _kill(run.pods(role), mark, without)


def kill_engine_in_a_call(run: ClusterRun) -> None:
    """SIGKILL to the engine's process while vLLM's server waits for its answer, most likely to a new adapter."""
    role, mark, without = PROCESSES["engine"]
    engines = processes_of(run.pods(role), mark, without)
    if not engines:
        raise NotStruck("there is no engine to kill")
    os.kill(engines[0], signal.SIGSTOP)
    time.sleep(CALL_SECONDS)
    os.kill(engines[0], signal.SIGKILL)


def kill_operator(platform: Platform) -> None:
    """SIGKILL to the operator's process."""
    _kill(platform.kubectl.list("pods", SYSTEM_NAMESPACE, OPERATOR), "rlrun_operator", "")


def kill_storage_server(platform: Platform) -> None:
    """SIGKILL to one process of rlrun-server."""
    _kill(platform.kubectl.list("pods", SYSTEM_NAMESPACE, STORAGE_SERVER), "rlrun_server", "")


def _kill(pods: list[Object], mark: str, without: str) -> None:
    deadline = time.monotonic() + PROCESS_SECONDS
    while True:
        for pid in processes_of(pods, mark, without):
            os.kill(pid, signal.SIGKILL)
            return
        if time.monotonic() > deadline:
            raise NotStruck(f"no process {mark!r} in pods {[p['metadata']['name'] for p in pods]}: nothing was killed")
        time.sleep(0.2)


def delete_pod(run: ClusterRun, role: str) -> None:
    """Delete the pod without a grace period."""
    for pod in run.pods(role)[:1]:
        name = pod["metadata"]["name"]
        run.platform.kubectl("delete", "pod", name, "-n", run.namespace, "--grace-period=0", "--force", "--wait=false")
        return
    raise NotStruck(f"there is no {role} pod to delete")


def delete_operator_pod(platform: Platform) -> None:
    """Delete the operator's pod without a grace period."""
    pods = platform.kubectl.list("pods", SYSTEM_NAMESPACE, OPERATOR)
    require_strike(bool(pods), "the operator's pod is deleted")
    platform.kubectl(
        "delete", "pod", "-n", SYSTEM_NAMESPACE, "-l", OPERATOR, "--grace-period=0", "--force", "--wait=false"
    )


def evict_all(run: ClusterRun) -> None:
    """Evict the run's pods, as `kubectl drain` does."""
    pods = run.pods()
    require_strike(bool(pods), "the run's pods are evicted")
    for pod in pods:
        name = pod["metadata"]["name"]
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": run.namespace},
        }
        path = f"/api/v1/namespaces/{run.namespace}/pods/{name}/eviction"
        run.platform.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def scale(platform: Platform, selector: str, replicas: int) -> None:
    """Deployments of the system namespace, by label or by name."""
    what = ["deployment", "-l", selector] if "=" in selector else [f"deployment/{selector}"]
    platform.kubectl("scale", *what, "-n", SYSTEM_NAMESPACE, f"--replicas={replicas}")


@contextmanager
def s3_away(platform: Platform) -> Iterator[None]:
    """Stop S3 inside this context; afterwards it runs again with the same data."""
    scale(platform, S3, 0)
    platform.kubectl(
        "delete", "pods", "-n", SYSTEM_NAMESPACE, "-l", f"app={S3}", "--grace-period=0", "--force", "--wait=false"
    )
    try:
        yield
    finally:
        scale(platform, S3, 1)
        platform.kubectl(
            "rollout", "status", f"deployment/{S3}", "-n", SYSTEM_NAMESPACE, f"--timeout={ROLLOUT_SECONDS:.0f}s",
            timeout=ROLLOUT_SECONDS + 20,
        )  # fmt: skip
        _wait_for_s3(platform)


def _wait_for_s3(platform: Platform) -> None:
    """Wait until files can be written: SeaweedFS has its bucket a second before it has the volumes of the files."""
    from rlrun.storage.layout import S3Uri
    from rlrun.storage.store import StoreError

    from demo.install import BUCKET

    deadline = time.monotonic() + S3_SECONDS
    store, probe = platform.s3.store(), S3Uri(BUCKET, "chaos-probe/file")
    while True:
        try:
            store.put_bytes(probe, b"S3 is back")
            store.delete_prefix(S3Uri(BUCKET, "chaos-probe"))
            return
        except StoreError as error:
            if time.monotonic() > deadline:
                raise Lost(f"the cluster's S3 did not come back: {error}") from error
            time.sleep(1)


@contextmanager
def storage_server_away(platform: Platform) -> Iterator[None]:
    """Stop all replicas of rlrun-server inside this context."""
    (deployment,) = platform.kubectl.list("deployments", SYSTEM_NAMESPACE, STORAGE_SERVER)
    scale(platform, STORAGE_SERVER, 0)
    platform.kubectl(
        "delete", "pods", "-n", SYSTEM_NAMESPACE, "-l", STORAGE_SERVER, "--grace-period=0", "--force", "--wait=false"
    )
    try:
        yield
    finally:
        scale(platform, STORAGE_SERVER, deployment["spec"]["replicas"])
        platform.kubectl(
            "rollout", "status", f"deployment/{deployment['metadata']['name']}", "-n", SYSTEM_NAMESPACE,
            f"--timeout={ROLLOUT_SECONDS:.0f}s", timeout=ROLLOUT_SECONDS + 20,
        )  # fmt: skip


@contextmanager
def operator_away(platform: Platform) -> Iterator[None]:
    """Scale the operator to 0 inside this context."""
    scale(platform, OPERATOR, 0)
    try:
        yield
    finally:
        scale(platform, OPERATOR, 1)


def restart_api_server(seconds_down: float) -> None:
    """SIGKILL, a pause, and the same daemon again. Only the embedded cluster's."""
    chosen = provider()
    if not isinstance(chosen, EmbeddedCluster):
        raise NotStruck("the API server of this provider cannot be restarted from here: set RLRUN_CLUSTER=embedded")
    directories = paths()
    daemons = ControlPlaneDaemons(directories, directories.state, Ports(), node_address())
    chosen.supervisor.stop("kube-apiserver", grace=0.0)
    time.sleep(seconds_down)
    chosen.supervisor.start(daemons.api_server_with_nodes())


FULL = """
import ctypes, os, sys
os.makedirs("/tmp/rlrun", exist_ok=True)
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "fill":
    done = libc.mount(b"none", b"/tmp/rlrun", b"tmpfs", 0, b"size=16k,mode=1777")
else:
    done = libc.umount2(b"/tmp/rlrun", 2)
sys.exit(done and ctypes.get_errno())
"""


@contextmanager
def disk_full(run: ClusterRun) -> Iterator[None]:
    """A volume of four pages hides the trainer's scratch folder: the next checkpoint does not fit."""
    role, mark, _ = PROCESSES["trainer"]
    pids = processes_of(run.pods(role), mark)
    if not pids:
        raise NotStruck("there is no trainer whose disk could be filled")
    enter = ["nsenter", "-t", str(pids[0]), "-m", "-r", "--", "python", "-c", FULL]
    subprocess.run([*enter, "fill"], check=True, timeout=30)
    try:
        yield
    finally:
        # A trainer that died of it took the volume with it.
        subprocess.run([*enter, "empty"], check=False, timeout=30, capture_output=True)
