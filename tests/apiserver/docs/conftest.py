"""A world for the guides: the operator's process, a real API server and S3; the test plays nodes, trainer and
orchestrator."""

import json
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from rlrun.garbage_collection.installation import write_mark
from rlrun.kube.kinds import CHILDREN, ResourceKind
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import FunctionReward

from local_cluster.control_plane.without_nodes import ControlPlane
from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.apiserver.rlrun_operator.conftest import Bench, orchestrators, own_bench
from tests.support.guide import Runner, install_commands
from tests.support.sample_records import record
from tests.support.seaweedfs import S3Server
from tests.support.signing_server import ObjectsOf, SigningServer, key_secret, reviews_of, signing_server
from tests.support.tombstones import lacks_tombstone

__all__ = ["orchestrators", "own_bench"]

ROOT = Path(__file__).parents[3]
RLRUN = "apis/rlrun.dev/v1alpha1"
FILES = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}


@dataclass
class World:
    """What the steps of a guide do at this level."""

    bench: Bench

    @property
    def guide_folder(self) -> Path:
        """Working folder of the commands."""
        folder = self.bench.folder / "guide"
        folder.mkdir(exist_ok=True)
        return folder

    def layout(self, name: str) -> RunLayout:
        return RunLayout.of(self.bench.s3.bucket, "", self.bench.namespace, self.bench.run(name)["metadata"]["uid"])

    def start(self, name: str) -> None:
        """The example's run under that name."""
        run = yaml.safe_load((ROOT / "examples/reverse-text.yaml").read_text())
        run["metadata"]["name"] = name
        self.bench.call("POST", f"/{RLRUN}/namespaces/{self.bench.namespace}/rlruns", run)

    def loses(self, name: str) -> None:
        """The cluster was built again while no operator ran: it has forgotten the run and its artifacts, S3 has not."""
        bench, store = self.bench, self.bench.s3.store()
        bench.processes[-1].terminate()
        objects = f"/{RLRUN}/namespaces/{bench.namespace}"
        merge = "application/merge-patch+json"
        bench.call("PATCH", f"{objects}/rlruns/{name}", {"metadata": {"finalizers": None}}, merge)
        bench.delete_run(name)
        bench.wait("the end of the run", lambda: not bench.run(name))
        for plural in ("rlcheckpoints", "rladapters"):
            bench.call("DELETE", f"{objects}/{plural}")
            bench.wait(f"no {plural}", lambda plural=plural: not bench.items(RLRUN, plural))
        write_mark(store, S3Uri(bench.s3.bucket, ""), "uid-of-the-cluster-before", replace=True)
        bench.start_operator()
        # The garbage collector of a new cluster looks for new kinds every 30 s.
        for kind in CHILDREN:
            self.bench.wait(f"no {kind.plural}", lambda kind=kind: not self._children(kind, name))

    def buries(self, _: str) -> None:
        """The operator has seen the deletion of all artifacts that have no object."""
        bench, store = self.bench, self.bench.s3.store()
        kept = {o["spec"]["uri"] for plural in ("rlcheckpoints", "rladapters") for o in bench.items(RLRUN, plural)}
        root = S3Uri(bench.s3.bucket, "")
        bench.wait("the tombstones", lambda: not lacks_tombstone(store, root, bench.namespace, kept))

    def trains(self, name: str, text: str) -> None:
        """The run has done so many steps: its pods are there, and what they write is in S3."""
        step, bench = int(text), self.bench
        status = bench.run(name).get("status") or {}
        done = int((status.get("progress") or {}).get("step") or 0)
        bench.tell(name, step=step, maxSteps=30, reward=0.5)
        bench.wait("the Job of the run", lambda: self._has_job(name))
        bench.make_pods(name)
        bench.wait(f"{name} to run", lambda: self._runs(name, step))
        self.writes(name, done, step)

    def writes(self, name: str, done: int, step: int) -> None:
        """What trainer, orchestrator and operator leave in S3 between two steps."""
        layout, store = self.layout(name), self.bench.s3.store()
        for at in range(done + 1, step + 1):
            line = {"step": at, "time": "2026-01-01T00:00:00+00:00", "progress/step": at, "reward/mean": at / 30}
            store.put_bytes(layout.metrics(f"part-{at:05d}"), json.dumps(line).encode() + b"\n")
            reward = {"reversed_similarity": FunctionReward(value=0.5, weight=1.0)}
            rollout = record(step=at, environment="reverse-text", rewards=reward)
            store.put_bytes(layout.rollouts(at), encode_samples(at, rollout.split, [[rollout]]).data)
            if at % 10 == 0:
                self.saves(name, at)
            if at % 15 == 0:
                self.saves(name, at, ArtifactKind.adapter)
        log = layout.log(1, f"{name}-orchestrator-a1-x", "orchestrator")
        store.put_bytes(log, f"step {step} done\n".encode())
        self.settles(name)

    def saves(self, name: str, step: int, kind: ArtifactKind = ArtifactKind.checkpoint) -> None:
        layout, run = self.layout(name), self.bench.run(name)
        uri = layout.checkpoint(step) if kind is ArtifactKind.checkpoint else layout.adapter(step)
        facts = {"run_name": name, "run_uid": run["metadata"]["uid"], "model": run["spec"]["model"]}
        self.bench.s3.store().upload_artifact(FILES, uri, kind, step=step, **facts)

    def settles(self, name: str) -> None:
        """Every artifact in S3 has its object, as soon as the operator has looked; pods that go are gone."""
        store, layout = self.bench.s3.store(), self.layout(name)
        if self.bench.phase(name) in ("Suspended", "Stopped"):
            # No kubelet confirms the end of pods here.
            self.bench.call("DELETE", f"/api/v1/namespaces/{self.bench.namespace}/pods", {"gracePeriodSeconds": 0})
        for plural, folder in (("rlcheckpoints", layout.checkpoints), ("rladapters", layout.adapters)):
            uris = {str(folder / leaf) for leaf in store.list_folders(folder)}
            self.bench.wait(f"{plural} of {name}", lambda plural=plural, uris=uris: uris <= self._ready(plural))

    def _children(self, kind: ResourceKind, run: str) -> list[str]:
        api = f"{'apis' if kind.group else 'api'}/{kind.api_version}"
        labels = [o["metadata"].get("labels") or {} for o in self.bench.items(api, kind.plural)]
        return [run for each in labels if each.get("rlrun.dev/run") == run]

    def _ready(self, plural: str) -> set[str]:
        found = self.bench.items(RLRUN, plural)
        return {o["spec"]["uri"] for o in found if (o.get("status") or {}).get("phase") == "Ready"}

    def _has_job(self, name: str) -> bool:
        return any(j["metadata"]["name"].startswith(f"{name}-orch") for j in self.bench.items("apis/batch/v1", "jobs"))

    def _runs(self, name: str, step: int) -> bool:
        # Pods of an attempt that begins now may come later than its Job.
        self.bench.make_pods(name)
        status = self.bench.run(name).get("status") or {}
        return bool(status.get("phase") == "Running" and (status.get("progress") or {}).get("step") == step)


@pytest.fixture
def s3_server(s3_server: S3Server) -> S3Server:
    """A bucket of its own: the mark of a cluster is one for all that share the bucket."""
    return s3_server.with_bucket(f"docs-{secrets.token_hex(4)}")


@pytest.fixture
def world(own_bench: Bench) -> World:
    own_bench.start_operator()
    model = yaml.safe_load((ROOT / "examples/models/reverse-text-tiny.yaml").read_text())
    try:
        own_bench.call("POST", f"/{RLRUN}/rlmodels", model)
    except client.ApiException as error:
        if error.status != 409:
            raise
    return World(own_bench)


@pytest.fixture
def server(world: World, api: client.ApiClient) -> Iterator[SigningServer]:
    """rlrun-server, and the account whose tokens stand for the users of the world's namespace."""
    namespace = world.bench.namespace
    client.CoreV1Api(api).create_namespaced_service_account(namespace, {"metadata": {"name": "rlrun-user"}})
    client.RbacAuthorizationV1Api(api).create_namespaced_role_binding(
        namespace,
        {
            "metadata": {"name": "rlrun-user"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "rlrun-user", "namespace": namespace}],
        },
    )
    client.CoreV1Api(api).create_namespaced_secret(namespace, key_secret(namespace))
    with signing_server(
        world.bench.s3,
        world.bench.folder,
        create=reviews_of(api),
        cluster=ObjectsOf(api),
        platform_namespace=namespace,
    ) as running:
        yield running


@pytest.fixture
def pip(tmp_path: Path) -> None:
    """A pip that installs nothing, because the checkout is the installation."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    (tmp_path / "bin" / "pip").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "pip").chmod(0o755)


@pytest.fixture
def follow(world: World, server: SigningServer, control_plane: ControlPlane, tmp_path: Path) -> Callable[..., int]:
    """Runs a guide in a folder of its own, as administrator, in the world's namespace."""
    kubeconfig = tmp_path / "kubeconfig"
    found = yaml.safe_load(control_plane.kubeconfig.read_text())
    found["contexts"][0]["context"]["namespace"] = world.bench.namespace
    kubeconfig.write_text(yaml.safe_dump(found))
    folder = world.guide_folder
    shutil.copytree(ROOT / "examples", folder / "examples")
    environment = {
        "PATH": install_commands(tmp_path / "bin", sys.executable, ensure_program("kubectl", paths())),
        "KUBECONFIG": str(kubeconfig),
        "HOME": str(tmp_path),
        "RLRUN_SERVER": server.url,
        "RLRUN_S3_BUCKET": world.bench.s3.bucket,
        **world.bench.s3.environment,
    }

    def run(name: str, **steps: Callable[..., Any]) -> int:
        known = {"trains": world.trains, "settles": world.settles, **steps}
        return Runner(ROOT / "docs" / "guides" / name, folder, environment, known).run()

    return run
