"""The operator as a process of its own, against a real API server, a real S3 and orchestrators that tests play."""

import base64
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import pytest
import yaml
from kubernetes import client
from rlrun.protocol.orchestrator import RunStatus
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun_orchestrator.status.status_server import with_version

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH

Obj = dict[str, Any]
WAIT_SECONDS = 240
KINDS_OF = {"replicasets": "ReplicaSet", "deployments": "Deployment", "jobs": "Job"}
"""Kinds that create pods."""
"""Far longer than anything takes: the machine may be busy with other tests."""


@dataclass
class Orchestrators:
    """Answers /status for every run that a test gives an answer for."""

    answers: dict[tuple[str, str], Obj] = field(default_factory=dict)
    orders: dict[tuple[str, str], Obj] = field(default_factory=dict)
    """What the sidecars of serving pools were told, by namespace and pod; they have loaded it at once."""
    port: int = 0

    def report(self, namespace: str, name: str) -> Obj | None:
        """Return the answer of a run's orchestrator with its version, as the real one does."""
        answer = self.answers.get((namespace, name))
        if answer is None:
            return None
        return with_version(RunStatus.model_validate(answer)).to_json_dict()


@pytest.fixture(scope="session")
def orchestrators() -> Iterator[Orchestrators]:
    found = Orchestrators()

    def sidecar(namespace: str, name: str) -> Obj | None:
        order = found.orders.get((namespace, name))
        loaded = [{"name": a["name"], "state": "loaded"} for a in order["adapters"]] if order else []
        return {"order": order, "adapters": loaded} if order else None

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            *role, namespace, name = path.strip("/").split("/")
            asked = dict(parse_qsl(query))
            end = time.monotonic() + float(asked.get("wait", 0))
            while (answer := sidecar(namespace, name) if role else found.report(namespace, name)) is not None:
                if answer.get("version") != asked.get("since") or time.monotonic() > end or role:
                    break
                time.sleep(0.05)
            self.respond(answer)

        def do_PUT(self) -> None:
            *_, namespace, name = self.path.split("/")
            found.orders[namespace, name] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.respond(sidecar(namespace, name))

        def respond(self, answer: Obj | None) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200 if answer else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield found
    server.shutdown()


class Process:
    """One operator process."""

    def __init__(self, settings: Path, log: Path) -> None:
        env = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}
        env |= {"RLRUN_SETTINGS": str(settings), "PYTHONPATH": PYTHONPATH}
        self.log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rlrun_operator"], env=env, stdout=out, stderr=out, cwd=log.parent
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def terminate(self) -> int:
        self._process.terminate()
        return self._process.wait(60)


@dataclass
class Bench:
    """What a test works with."""

    api: client.ApiClient
    namespace: str
    settings: Path
    folder: Path
    s3: S3Server
    orchestrators: Orchestrators
    processes: list[Process] = field(default_factory=list)

    def start_operator(self) -> Process:
        process = Process(self.settings, self.folder / f"operator-{len(self.processes)}.log")
        self.processes.append(process)
        return process

    def call(
        self,
        method: str,
        path: str,
        body: Obj | None = None,
        content: str = "application/json",
        accept: str = "application/json",
    ) -> Obj:
        response = self.api.call_api(
            path,
            method,
            header_params={"Accept": accept, "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
        )
        found: Obj = json.loads(response.data)
        return found

    def get(self, api: str, plural: str, name: str) -> Obj | None:
        try:
            return self.call("GET", f"/{api}/namespaces/{self.namespace}/{plural}/{name}")
        except client.ApiException as error:
            if error.status == 404:
                return None
            raise

    def items(self, api: str, plural: str) -> list[Obj]:
        found: list[Obj] = self.call("GET", f"/{api}/namespaces/{self.namespace}/{plural}")["items"]
        return found

    def count(self, plural: str) -> int:
        """Return the number of objects of all namespaces; a spec may be too deep for Python's parser."""
        metadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
        return len(self.call("GET", f"/apis/rlrun.dev/v1alpha1/{plural}", accept=metadata)["items"])

    def run(self, name: str = "reverse") -> Obj:
        return self.get("apis/rlrun.dev/v1alpha1", "rlruns", name) or {}

    def create_run(self, name: str = "reverse", **spec: Any) -> Obj:
        body = {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": "RLRun",
            "metadata": {"name": name},
            "spec": {
                "model": f"tests/{self.namespace}",
                "maxSteps": 10,
                "sampling": {"maxTokens": 64},
                "env": [{"id": "rlrun/reverse-text"}],
                **spec,
            },
        }
        return self.call("POST", f"/apis/rlrun.dev/v1alpha1/namespaces/{self.namespace}/rlruns", body)

    def change_run(self, name: str = "reverse", **spec: Any) -> None:
        path = f"/apis/rlrun.dev/v1alpha1/namespaces/{self.namespace}/rlruns/{name}"
        self.call("PATCH", path, {"spec": spec}, "application/merge-patch+json")

    def delete_run(self, name: str = "reverse") -> None:
        self.call("DELETE", f"/apis/rlrun.dev/v1alpha1/namespaces/{self.namespace}/rlruns/{name}")

    def create_model(self, **spec: Any) -> None:
        body = {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": "RLModel",
            "metadata": {"name": self.namespace},
            "spec": {
                "id": f"tests/{self.namespace}",
                "source": "s3://rlrun/models/tiny",
                "seqLen": 256,
                "trainer": {"gpus": 0},
                "inference": {"gpus": 0},
                **spec,
            },
        }
        self.call("POST", "/apis/rlrun.dev/v1alpha1/rlmodels", body)

    def make_pods(self, name: str = "reverse") -> None:
        """Plays the controllers and the node: every ReplicaSet, Deployment and Job gets a pod that is ready."""
        for plural in KINDS_OF:
            api = "apis/batch/v1" if plural == "jobs" else "apis/apps/v1"
            for owner in self.items(api, plural):
                template = owner["spec"]["template"]
                pod = {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {
                        "name": f"{owner['metadata']['name']}-0",
                        "labels": template["metadata"]["labels"],
                        "ownerReferences": [
                            {
                                "apiVersion": owner["apiVersion"]
                                if "apiVersion" in owner
                                else api.removeprefix("apis/"),
                                "kind": KINDS_OF[plural],
                                "name": owner["metadata"]["name"],
                                "uid": owner["metadata"]["uid"],
                                "controller": True,
                            }
                        ],
                    },
                    "spec": template["spec"],
                }
                try:
                    self.call("POST", f"/api/v1/namespaces/{self.namespace}/pods", pod)
                except client.ApiException as error:
                    if error.status != 409:
                        raise
                    continue
                self.set_pod(f"{owner['metadata']['name']}-0", ready=True)

    def set_pod(
        self, name: str, ready: bool = False, phase: str = "Running", statuses: list[Obj] | None = None
    ) -> None:
        status: Obj = {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        }
        if statuses is not None:
            status["containerStatuses"] = statuses
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        self.call("PATCH", path, {"status": status}, "application/merge-patch+json")

    @staticmethod
    def container(name: str, state: Obj, restarts: int = 0, last: Obj | None = None) -> Obj:
        """The status of one container."""
        held = {"name": name, "image": "x", "imageID": "x", "ready": False, "restartCount": restarts, "state": state}
        return held | ({"lastState": last} if last else {})

    def bind(self, pod: str) -> None:
        """Gives the pod a node, which nobody plays: told to end, it stays until it is killed."""
        target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": target}
        self.call("POST", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/binding", body)

    def kill_pods(self) -> None:
        """No kubelet confirms the end of pods here."""
        self.call("DELETE", f"/api/v1/namespaces/{self.namespace}/pods", {"gracePeriodSeconds": 0})

    def columns(self, name: str = "reverse") -> dict[str, Any]:
        """What `kubectl get rlrun` shows."""
        response = self.api.call_api(
            f"/apis/rlrun.dev/v1alpha1/namespaces/{self.namespace}/rlruns/{name}",
            "GET",
            header_params={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"},
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
        )
        table = json.loads(response.data)
        names = [column["name"] for column in table["columnDefinitions"]]
        return dict(zip(names, table["rows"][0]["cells"], strict=True))

    def seen(self, name: str = "reverse") -> bool:
        """Whether the operator has judged the newest spec."""
        run = self.run(name)
        return bool(run["status"].get("observedGeneration") == run["metadata"]["generation"])

    def place(self, step: int, name: str = "reverse") -> S3Uri:
        """Where the checkpoint of that step is."""
        return RunLayout.of(self.s3.bucket, "", self.namespace, self.run(name)["metadata"]["uid"]).checkpoint(step)

    def tell(self, name: str = "reverse", **status: Any) -> None:
        self.orchestrators.answers[(self.namespace, name)] = {"phase": "Running", "maxSteps": 10, **status}

    def upload(self, kind: str, step: int, name: str = "reverse") -> S3Uri:
        layout = RunLayout.of(self.s3.bucket, "", self.namespace, self.run(name)["metadata"]["uid"])
        uri = layout.checkpoint(step) if kind == "checkpoint" else layout.adapter(step)
        files = {"adapter_model.safetensors": b"weights"}
        self.s3.store().upload_artifact(files, uri, ArtifactKind(kind.capitalize()), step=step, policy_version=step)
        return uri

    def condition(self, kind: str, name: str = "reverse") -> Obj:
        conditions = self.run(name).get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def phase(self, name: str = "reverse") -> str | None:
        found: str | None = self.run(name).get("status", {}).get("phase")
        return found

    def wait(self, what: str, look: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                logs = "\n".join(p.log.read_text()[-3000:] for p in self.processes)
                runs = self.items("apis/rlrun.dev/v1alpha1", "rlruns")
                statuses = json.dumps({r["metadata"]["name"]: r.get("status") for r in runs}, indent=1)
                pytest.fail(f"not within {seconds} s: {what}\n{statuses}\n{logs}")
            time.sleep(0.2)

    def wait_until_unchanged(self, seconds: float) -> None:
        """Return once nothing has been written to the run for so long; fail if that does not come."""
        seen, since = "", time.monotonic()

        def unchanged() -> bool:
            nonlocal seen, since
            version = self.run()["metadata"]["resourceVersion"]
            if version != seen:
                seen, since = version, time.monotonic()
            return time.monotonic() - since >= seconds

        self.wait(f"{seconds} s without a change of the run", unchanged)


SHARED_NAMESPACES = 40
RESYNC_SECONDS = 5
SHARED_RESYNC_SECONDS = 60
"""Resync of the shared operator, which lists four kinds in each of its namespaces. Each worker has one."""


def write_settings(
    path: Path,
    control_plane: ControlPlane,
    s3: S3Server,
    orchestrators: Orchestrators,
    namespaces: list[str],
    resync_seconds: int = RESYNC_SECONDS,
) -> Path:
    """Settings of an operator that serves these namespaces; the first holds its lease and the platform's S3 Secret."""
    home = namespaces[0]
    path.write_text(
        yaml.safe_dump(
            {
                "s3": {
                    "endpoint": s3.endpoint,
                    "bucket": s3.bucket,
                    "credentialsSecret": {"namespace": home, "name": "s3-source"},
                },
                "kubeconfig": str(control_plane.kubeconfig),
                "watchNamespaces": namespaces,
                "leaseNamespace": home,
                # Two pytest workers share the cores with the API server.
                "leaseSeconds": 30,
                "statusUrlTemplate": f"http://127.0.0.1:{orchestrators.port}/{{namespace}}/{{name}}",
                "servingUrlTemplate": f"http://127.0.0.1:{orchestrators.port}/sidecars/{{namespace}}/{{name}}",
                "httpPort": 0,
                "pollSeconds": 0.5,
                "resyncSeconds": resync_seconds,
                "artifactSweepSeconds": 1,
                "workers": 2,
                "priorityClasses": ["system-cluster-critical"],
            }
        )
    )
    return path


def make_home(api: client.ApiClient, s3: S3Server) -> str:
    """A new namespace with the platform's S3 Secret."""
    home = f"test-{uuid.uuid4().hex[:8]}"
    core = client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": home}})
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    data = {key: base64.b64encode(s3.environment[key].encode()).decode() for key in keys}
    core.create_namespaced_secret(home, {"metadata": {"name": "s3-source"}, "data": data})
    return home


def scope_of_operator(fixture_name: str, config: pytest.Config) -> Literal["session", "function"]:
    """Return the scope of the shared operator. tests.proofs removes a field from processes that start afterwards."""
    return "function" if os.environ.get("RLRUN_REMOVED_FROM") else "session"


@pytest.fixture(scope=scope_of_operator)
def shared_operator(
    api: client.ApiClient,
    control_plane: ControlPlane,
    s3_server: S3Server,
    orchestrators: Orchestrators,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Process, list[str]]]:
    """One operator for all tests that do nothing to it, and namespaces that it serves, one for each test."""
    home = make_home(api, s3_server)
    namespaces = [f"{home}-{i}" for i in range(SHARED_NAMESPACES)]
    for name in namespaces:
        client.CoreV1Api(api).create_namespace({"metadata": {"name": name}})
    folder = tmp_path_factory.mktemp("operator")
    served = [home, *namespaces]
    path = folder / "settings.yaml"
    settings = write_settings(path, control_plane, s3_server, orchestrators, served, SHARED_RESYNC_SECONDS)
    process = Process(settings, folder / "operator.log")
    yield process, namespaces
    assert process.running, f"the operator ended by itself:\n{process.log.read_text()[-3000:]}"
    process.kill()


@pytest.fixture
def bench(
    api: client.ApiClient,
    shared_operator: tuple[Process, list[str]],
    s3_server: S3Server,
    orchestrators: Orchestrators,
    tmp_path: Path,
) -> Bench:
    """A namespace of the shared operator."""
    process, namespaces = shared_operator
    return Bench(api, namespaces.pop(), tmp_path / "unused", tmp_path, s3_server, orchestrators, [process])


@pytest.fixture
def own_bench(
    api: client.ApiClient,
    control_plane: ControlPlane,
    s3_server: S3Server,
    orchestrators: Orchestrators,
    tmp_path: Path,
) -> Iterator[Bench]:
    """A namespace without an operator: the test starts and ends its own."""
    home = make_home(api, s3_server)
    settings = write_settings(tmp_path / "settings.yaml", control_plane, s3_server, orchestrators, [home])
    found = Bench(api, home, settings, tmp_path, s3_server, orchestrators)
    yield found
    for process in found.processes:
        if process.running:
            process.kill()
