"""Control plane with KWOK nodes, S3 and the operator, as processes of this machine.

Pods run as soon as they are scheduled, without containers; one process responds for the orchestrators of all runs.
Controller manager and scheduler have CLIENT_FLAGS, because otherwise their default limits (20 and 50 requests/s) would
be measured.
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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client, config

from bench.scale.testbed import objects
from bench.scale.testbed.bulk import BulkClient
from bench.scale.testbed.orchestrators import StepSchedule
from local_cluster.control_plane.kwok import PLENTY, Kwok, node
from local_cluster.control_plane.without_nodes import ALL_CONTROLLERS, ControlPlane
from tests.support.api_address import api_address
from tests.support.crds import install_crds
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server, running
from tests.support.source_tree import PYTHONPATH, ROOT

CLIENT_FLAGS = ("--kube-api-qps=300", "--kube-api-burst=500")
SYSTEM = "rlrun-system"
NODES = 10
PODS_PER_NODE = 5000
DEADLINE_SECONDS = 1800.0
SHOWN_SECONDS = 20.0
"""Seconds between two progress lines of a wait."""


class ScaleCluster:
    """Context manager of the processes. The operator is started separately, and may be started again."""

    def __init__(self, gpus_per_node: int = PLENTY) -> None:
        self._gpus = gpus_per_node
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
                controller_manager_flags=CLIENT_FLAGS,
                scheduled=True,
                scheduler_flags=CLIENT_FLAGS,
                # One Service network for 1,000 runs; the default has 4,096 addresses.
                api_server_flags=("--service-cluster-ip-range=10.128.0.0/14",),
            )
        )
        self.api = config.new_client_from_config(str(self.control_plane.kubeconfig))
        self.bulk = BulkClient(*api_address(self.control_plane.kubeconfig))
        install_crds(self.api)
        core = client.CoreV1Api(self.api)
        for index in range(NODES):
            core.create_node(node(f"node-{index}", PODS_PER_NODE, self._gpus))
        kwok = Kwok(self.control_plane)
        stack.callback(kwok.stop)
        kwok.start()
        self.s3 = stack.enter_context(running(self.folder / "s3"))
        self.orchestrators_port = self._start_orchestrators()
        create_system(core, self.s3)
        client.CustomObjectsApi(self.api).create_cluster_custom_object(*objects.RUNS, "rlmodels", objects.model())

    def start_operator(self, **settings: Any) -> "OperatorProcess":
        """Start an operator. It is on standby while another one has the Lease.

        `settings` overrides settings, such as `kubeconfig` to reach the API server through a proxy.
        """
        self._operators += 1
        (port,) = self._stack.enter_context(claimed_ports(1))
        process = OperatorProcess(self.folder, f"operator-{self._operators}", self._settings() | settings, port)
        self._stack.callback(process.kill)
        return process

    def start_leader(self, **settings: Any) -> "OperatorProcess":
        """Start an operator and wait until it has the Lease."""
        operator = self.start_operator(**settings)
        wait_for("the operator to get the Lease", operator.is_ready, pause=0.1)
        return operator

    def count(self, path: str) -> int:
        """Return the number of objects of a collection."""
        page = json.loads(
            self.api.call_api(
                path,
                "GET",
                query_params=[("limit", "1")],
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
            ).data
        )
        return len(page["items"] or []) + int(page["metadata"].get("remainingItemCount") or 0)

    def set_schedulable(self, schedulable: bool) -> None:
        """Allow or forbid new pods on all nodes."""
        core = client.CoreV1Api(self.api)
        for index in range(NODES):
            core.patch_node(f"node-{index}", {"spec": {"unschedulable": not schedulable}})

    def set_pace(self, seconds: float, first: int = 1) -> StepSchedule:
        """Make every run execute a step each `seconds` seconds. 0 stops the steps."""
        return StepSchedule(**self._put("pace", {"seconds": seconds, "first": first}))

    def set_silent(self, namespaces: Sequence[str]) -> None:
        """Make the orchestrators of these namespaces stop responding."""
        self._put("silent", {"namespaces": list(namespaces)})

    def _put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a setting to the server of the orchestrators. Returns its response."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.orchestrators_port}/{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )
        with local_opener().open(request, timeout=30) as response:
            document: dict[str, Any] = json.load(response)
            return document

    def _settings(self) -> dict[str, Any]:
        base = f"http://127.0.0.1:{self.orchestrators_port}"
        return {
            "s3": {
                "endpoint": self.s3.endpoint,
                "bucket": self.s3.bucket,
                "credentialsSecret": {"namespace": SYSTEM, "name": "s3"},
            },
            "kubeconfig": str(self.control_plane.kubeconfig),
            "leaseNamespace": SYSTEM,
            "statusUrlTemplate": f"{base}/{{namespace}}/{{name}}",
        }

    def _start_orchestrators(self) -> int:
        port_file = self.folder / "orchestrators.port"
        process = start_python(self.folder / "orchestrators.log", "bench.scale.testbed.orchestrators", str(port_file))
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

    def require_running(self) -> bool:
        """Return True. Raises SystemExit with the end of the operator's log if it has exited."""
        if self._process.poll() is not None:
            raise SystemExit(f"the operator exited:\n{self.log.read_text()[-3000:]}")
        return True

    def is_ready(self) -> bool:
        """Return True if the operator has the Lease. Raises SystemExit if it has exited."""
        return "rlrun_leading 1.0" in self._metrics_if_serving()

    def is_serving(self) -> bool:
        """Return True if the operator has the Lease or is on standby. Raises SystemExit if it has exited."""
        return bool(self._metrics_if_serving())

    def _metrics_if_serving(self) -> str:
        self.require_running()
        try:
            return self.metrics()
        except OSError:
            return ""

    def end(self) -> None:
        """Stop the operator gracefully, so that it releases its Lease, and wait for its exit."""
        self._process.terminate()
        self._process.wait(60)

    def kill(self) -> None:
        """Kill the operator and wait for its exit."""
        self._process.kill()
        self._process.wait(30)


def start_python(log: Path, module: str, *arguments: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Run a module of this checkout in a process that the kernel kills when this process exits."""
    env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
    env |= {"PYTHONPATH": f"{ROOT}:{PYTHONPATH}", **environment}
    command = [sys.executable, "-m", module, *arguments]
    if setpriv := shutil.which("setpriv"):
        command = [setpriv, "--pdeathsig", "KILL", "--", *command]
    with log.open("ab") as out:
        return subprocess.Popen(command, env=env, stdout=out, stderr=out, cwd=log.parent)


def wait_for(
    what: str,
    check: Callable[[], bool],
    seconds: float = DEADLINE_SECONDS,
    pause: float = 0.25,
    shown: Callable[[], object] | None = None,
) -> None:
    """Wait until `check` returns True. Raises SystemExit after `seconds`.

    `shown` returns a state that is printed regularly, such as a number of pods.
    """
    began = said = time.monotonic()
    while not check():
        if shown is not None and time.monotonic() - said > SHOWN_SECONDS:
            said = time.monotonic()
            print(f"    {said - began:.0f} s: {what}: {shown()}", flush=True)
        if time.monotonic() - began > seconds:
            raise SystemExit(f"timed out after {seconds:.0f} s: {what}")
        time.sleep(pause)


def create_system(core: client.CoreV1Api, s3: S3Server) -> None:
    """Create the platform's namespace with the Secret for its S3."""
    core.create_namespace({"metadata": {"name": SYSTEM}})
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    data = {key: base64.b64encode(s3.environment[key].encode()).decode() for key in keys}
    core.create_namespaced_secret(SYSTEM, {"metadata": {"name": "s3"}, "data": data})


def local_opener() -> urllib.request.OpenerDirector:
    """Return a client for addresses of this machine, which ignores proxies."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
