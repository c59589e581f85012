"""Starting from a checkpoint: each thing that can be wrong has its own reason on the run, and goes away when mended."""

import json
from typing import Any

import pytest
from kubernetes import client
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind

from tests.apiserver.rlrun_operator.conftest import Bench
from tests.support.expectations import present

RLRUN = "apis/rlrun.dev/v1alpha1"


def checkpoints(namespace: str) -> str:
    return f"/{RLRUN}/namespaces/{namespace}/rlcheckpoints"


def create_checkpoint(bench: Bench, name: str, namespace: str = "", phase: str | None = "Ready", **spec: Any) -> str:
    """An RLCheckpoint of a run that is gone, with its files; the uri of these."""
    namespace = namespace or bench.namespace
    uri = RunLayout.of("rlrun", "", namespace, f"gone-{name}").checkpoint(5)
    bench.s3.store().upload_artifact({"trainer.pt": b"state"}, uri, ArtifactKind.checkpoint, step=5)
    body = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLCheckpoint",
        "metadata": {"name": name},
        "spec": {
            "runName": "gone",
            "runUid": f"gone-{name}",
            "model": f"tests/{bench.namespace}",
            "step": 5,
            "uri": str(uri),
            **spec,
        },
    }
    bench.call("POST", checkpoints(namespace), body)
    if phase:
        path = f"{checkpoints(namespace)}/{name}/status"
        bench.call("PATCH", path, {"status": {"phase": phase}}, "application/merge-patch+json")
    return str(uri)


def refused(bench: Bench, run: str, reason: str) -> str:
    """Waits until the run says that reason; its message."""
    bench.wait(f"{run}: {reason}", lambda: bench.condition("Validated", run).get("reason") == reason)
    return str(bench.condition("Validated", run)["message"])


@pytest.mark.proves("checkpointId")
def test_every_obstacle_has_its_own_reason_and_can_be_mended(bench: Bench) -> None:
    bench.create_model()
    elsewhere = f"{bench.namespace}-b"
    client.CoreV1Api(bench.api).create_namespace({"metadata": {"name": elsewhere}})
    uris = {
        "uploading": create_checkpoint(bench, "uploading", phase=None),
        "foreign": create_checkpoint(bench, "foreign", model="tests/other"),
        "private": create_checkpoint(bench, "private", namespace=elsewhere),
        "hollow": create_checkpoint(bench, "hollow"),
    }
    bench.s3.store().delete_prefix(RunLayout.of("rlrun", "", bench.namespace, "gone-hollow").checkpoint(5))
    wanted = {
        "none": ("nowhere", "CheckpointNotFound", "does not exist"),
        "early": ("uploading", "CheckpointNotReady", "not Ready"),
        "other": ("foreign", "CheckpointModelMismatch", "tests/other"),
        "alien": (f"{elsewhere}/private", "CheckpointNotFound", bench.namespace),
        "empty": ("hollow", "CheckpointIncomplete", "manifest.json"),
    }
    for run, (checkpoint, _, _) in wanted.items():
        bench.create_run(run, checkpointId=checkpoint)
    for run, (_, reason, hint) in wanted.items():
        assert hint in refused(bench, run, reason)
        assert bench.phase(run) == "Pending"
        assert bench.get("apis/apps/v1", "replicasets", f"{run}-trainer") is None

    patch = "application/merge-patch+json"
    bench.call("PATCH", f"{checkpoints(elsewhere)}/private", {"spec": {"sharedWith": [bench.namespace]}}, patch)
    bench.call("PATCH", f"{checkpoints(bench.namespace)}/uploading/status", {"status": {"phase": "Ready"}}, patch)
    for run, name in (("alien", "private"), ("early", "uploading")):
        bench.wait(f"{run} to start", lambda run=run: bench.get("api/v1", "configmaps", f"{run}-config"))
        config = present(bench.get("api/v1", "configmaps", f"{run}-config"))
        assert json.loads(config["data"]["run.json"])["warmStartFrom"] == uris[name]
