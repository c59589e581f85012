"""Control plane with KWOK nodes, S3 and the operator, as processes of this machine.

Pods run as soon as they are scheduled, without containers; one process answers for the orchestrators of all runs. The
controller manager has MANAGER_FLAGS, because its default limit (20 requests/s) would be what is measured.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from bench.scale.orchestrators import Pace
from local_cluster.control_plane.kwok import Kwok, node
from local_cluster.control_plane.without_nodes import ALL_CONTROLLERS, ControlPlane
from tests.support.crds import install_crds
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server, running
from tests.support.source_tree import PYTHONPATH, ROOT

MANAGER_FLAGS = ("--kube-api-qps=300", "--kube-api-burst=500")
SYSTEM = "rlrun-system"
NODES = 10
PODS_PER_NODE = 5000
DEADLINE_SECONDS = 1800.0
RUNS = ("rlrun.dev", "v1alpha1")
MODEL = "bench/many"


class ScaleCluster:
    """Context manager of the processes. The operator is started separately, and may be started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rlrun-scale-"))
        self._stack = ExitStack()
        self._operators = 0

    def __enter__(self) -> "ScaleCluster":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        stack = self._stack
        stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.control_plane = stack.enter_context(
            ControlPlane(
                controllers=ALL_CONTROLLERS,
                controller_manager_flags=MANAGER_FLAGS,
                scheduled=True,
                # One Service network for 1,000 runs: the default has 4,096 addresses.
                api_server_flags=("--service-cluster-ip-range=10.128.0.0/14",),
            )
        )
        self.api = config.new_client_from_config(str(self.control_plane.kubeconfig))
        install_crds(self.api)
        core = client.CoreV1Api(self.api)
        for index in range(NODES):
            core.create_node(node(f"node-{index}", PODS_PER_NODE))
        kwok = Kwok(self.control_plane)
        stack.callback(kwok.stop)
        kwok.start()
        self.s3 = stack.enter_context(running(self.folder / "s3"))
        self.orchestrators_port = self._start_orchestrators()
        create_system(core, self.s3)
        client.CustomObjectsApi(self.api).create_cluster_custom_object(*RUNS, "rlmodels", _model())

    def start_operator(self) -> "OperatorProcess":
        """Start an operator. It stands by while another one has the Lease."""
        self._operators += 1
        (port,) = self._stack.enter_context(claimed_ports(1))
        process = OperatorProcess(self.folder, f"operator-{self._operators}", self._settings(), port)
        self._stack.callback(process.kill)
        return process

    def set_schedulable(self, schedulable: bool) -> None:
        """Open or close all nodes for new pods."""
        core = client.CoreV1Api(self.api)
        for index in range(NODES):
            core.patch_node(f"node-{index}", {"spec": {"unschedulable": not schedulable}})

    def set_pace(self, seconds: float, first: int = 1) -> Pace:
        """Let every run make a step each so many seconds; 0: none."""
        body = json.dumps({"seconds": seconds, "first": first}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.orchestrators_port}/pace", body, {"Content-Type": "application/json"}, method="PUT"
        )
        with local_opener().open(request, timeout=30) as response:
            return Pace(**json.load(response))

    def _settings(self) -> dict[str, Any]:
        base = f"http://127.0.0.1:{self.orchestrators_port}"
        return {
            "s3": {
                "endpointUrl": self.s3.endpoint,
                "bucket": self.s3.bucket,
                "credentialsSecret": {"namespace": SYSTEM, "name": "s3"},
            },
            "kubeconfig": str(self.control_plane.kubeconfig),
            "leaseNamespace": SYSTEM,
            "statusUrlTemplate": f"{base}/{{namespace}}/{{name}}",
        }

    def _start_orchestrators(self) -> int:
        port_file = self.folder / "orchestrators.port"
        process = start_python(self.folder / "orchestrators.log", "bench.scale.orchestrators", str(port_file))
        self._stack.callback(process.kill)
        wait_for("the orchestrators' server", port_file.exists, 60)
        return int(port_file.read_text())


class OperatorProcess:
    """The operator, from the sources of this checkout."""

    def __init__(self, folder: Path, name: str, settings: Mapping[str, Any], port: int) -> None:
        file = folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump({**settings, "httpPort": port}))
        self.log = folder / f"{name}.log"
        self._url = f"http://127.0.0.1:{port}"
        self._process = start_python(self.log, "rlrun_operator", RLRUN_SETTINGS=str(file))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        with local_opener().open(f"{self._url}/metrics", timeout=30) as response:
            return str(response.read().decode())

    def is_ready(self) -> bool:
        """Return whether the operator leads. Raises SystemExit if it has ended."""
        return "rlrun_leading 1.0" in self._metrics_if_serving()

    def is_serving(self) -> bool:
        """Return whether the operator leads or stands by. Raises SystemExit if it has ended."""
        return bool(self._metrics_if_serving())

    def _metrics_if_serving(self) -> str:
        if self._process.poll() is not None:
            raise SystemExit(f"the operator ended:\n{self.log.read_text()[-3000:]}")
        try:
            return self.metrics()
        except OSError:
            return ""

    def kill(self) -> None:
        """Kill it and wait for its end."""
        self._process.kill()
        self._process.wait(30)


def start_python(log: Path, module: str, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Start a module of this checkout that the kernel kills with this process."""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env |= {"PYTHONPATH": f"{ROOT}:{PYTHONPATH}", **environment}
    command = [sys.executable, "-m", module, *arguments]
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "KILL", "--", *command]
    with log.open("ab") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=log.parent)


def wait_for(what: str, check: Callable[[], bool], seconds: float = DEADLINE_SECONDS, pause: float = 0.25) -> None:
    """Wait until `check` returns True. Raises SystemExit after `seconds`."""
    began = time.monotonic()
    while not check():
        if time.monotonic() - began > seconds:
            raise SystemExit(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)


def create_system(core: client.CoreV1Api, s3: S3Server) -> None:
    """Create the platform's namespace with the Secret of its S3."""
    core.create_namespace({"metadata": {"name": SYSTEM}})
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    data = {key: base64.b64encode(s3.environment[key].encode()).decode() for key in keys}
    core.create_namespaced_secret(SYSTEM, {"metadata": {"name": "s3"}, "data": data})


def local_opener() -> urllib.request.OpenerDirector:
    """Return a client for addresses of this machine, which no proxy serves."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _model() -> dict[str, Any]:
    none: dict[str, Any] = {"gpus": 0}
    spec = {"id": MODEL, "source": "s3://rlrun/models/none", "seqLen": 256, "trainer": none, "inference": none}
    return {"apiVersion": "/".join(RUNS), "kind": "RLModel", "metadata": {"name": "bench-many"}, "spec": spec}
