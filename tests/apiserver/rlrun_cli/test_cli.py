"""The command line against a real API server: what is stored, what is refused, and in which words."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from rlrun_cli.remote.context import CliContext

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.support.command_line import Answer, Rlrun, call
from tests.support.source_tree import PYTHONPATH

GROUP, VERSION = "rlrun.dev", "v1alpha1"
TOML = """
name = "Reverse text"
model = "me/tiny"
max_steps = 4
batch_size = 8
rollouts_per_example = 4
[sampling]
max_tokens = 16
[[env]]
id = "me/reverse"
"""


@pytest.fixture
def rlrun(control_plane: ControlPlane, namespace: str) -> Rlrun:
    """Commands as administrator, in the test's own namespace."""

    def invoke(
        *args: object,
        kubeconfig: Path = control_plane.kubeconfig,
        env: dict[str, str] | None = None,
        obj: CliContext | None = None,
    ) -> Answer:
        options = ["--kubeconfig", str(kubeconfig), "-n", namespace]
        return call(*options, *args, context=obj, env=env)

    return invoke


@pytest.fixture
def custom(api: client.ApiClient) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(api)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    file = tmp_path / "rl.toml"
    file.write_text(TOML)
    return file


def write_status(custom: client.CustomObjectsApi, namespace: str, plural: str, name: str, **status: Any) -> None:
    custom.patch_namespaced_custom_object_status(
        GROUP, VERSION, namespace, plural, name, {"status": status}, _content_type="application/merge-patch+json"
    )


def progress(step: int, reward: float) -> dict[str, Any]:
    return {"step": step, "maxSteps": 4, "reward": reward, "etaSeconds": 10.0}


def test_create_list_get_stop_delete(rlrun: Rlrun, custom: client.CustomObjectsApi, namespace: str, toml: Path) -> None:
    assert rlrun("run", toml, "--name", "first").out == "rlruns.rlrun.dev/first created\n"
    stored = json.loads(rlrun("get", "first", "-o", "json").out)
    assert stored["spec"]["learningRate"] == 1e-4, "defaults come from the API server"
    write_status(custom, namespace, "rlruns", "first", phase="Running", progress=progress(2, 0.5))
    _, row = rlrun("list").out.splitlines()
    assert row.split()[:6] == ["first", "Running", "2", "4", "0.500", "10s"]
    _, of_whole_objects = rlrun("list", "--sort-by", ".metadata.name").out.splitlines()
    assert row.split()[:8] == of_whole_objects.split()[:8], "the columns before DISPLAY and AGE"
    assert "first" in rlrun("list", "-A").out
    assert rlrun("stop", "first").code == 0
    assert yaml.safe_load(rlrun("get", "first", "-o", "yaml").out)["spec"]["stop"] is True
    assert rlrun("delete", "first", "--yes").code == 0
    gone = rlrun("get", "first")
    assert gone.code == 1
    assert "does not exist" in gone.err


def test_a_run_names_the_user_whom_the_admission_policy_knows(
    rlrun: Rlrun, api: client.ApiClient, namespace: str, control_plane: ControlPlane, tmp_path: Path, toml: Path
) -> None:
    """An account with no other right than to create runs: usage is counted by the name."""
    core, rbac = client.CoreV1Api(api), client.RbacAuthorizationV1Api(api)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "ann"}})
    asked = {"spec": {"expirationSeconds": 600}}
    token = core.create_namespaced_service_account_token("ann", namespace, asked).status.token
    rules = [{"apiGroups": [GROUP], "resources": ["rlruns"], "verbs": ["create"]}]
    rbac.create_namespaced_role(namespace, {"metadata": {"name": "runs"}, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "runs"}
    subject = {"kind": "ServiceAccount", "name": "ann", "namespace": namespace}
    rbac.create_namespaced_role_binding(
        namespace, {"metadata": {"name": "runs"}, "roleRef": role, "subjects": [subject]}
    )
    kubeconfig = kubeconfig_with(control_plane.kubeconfig, tmp_path / "ann", token=token)
    end = time.monotonic() + 60
    # The API server learns of the role by a watch.
    while (answer := rlrun("run", toml, "--name", "hers", kubeconfig=kubeconfig)).code and time.monotonic() < end:
        time.sleep(0.2)
    assert answer.code == 0, answer.err
    stored = json.loads(rlrun("get", "hers", "-o", "json").out)
    assert stored["metadata"]["annotations"]["rlrun.dev/user"] == f"system:serviceaccount:{namespace}:ann"
    other = yaml.safe_load(rlrun("run", toml, "--name", "his", "--dry-run").out)
    other["metadata"]["annotations"] = {"rlrun.dev/user": "bob"}
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(other))
    refused = rlrun("run", file, kubeconfig=kubeconfig)
    assert refused.code == 1
    assert "rlrun.dev/user must be the user who creates the run" in refused.err


def test_an_existing_name_is_rejected(rlrun: Rlrun, toml: Path) -> None:
    rlrun("run", toml, "--name", "first")
    again = rlrun("run", toml, "--name", "first")
    assert again.code == 1
    assert "an object with this name already exists" in again.err
    assert "--name" in again.err


def test_the_secret_belongs_to_the_run_and_goes_with_it(
    rlrun: Rlrun, api: client.ApiClient, namespace: str, toml: Path
) -> None:
    answer = rlrun("run", toml, "--name", "first", "-e", "TOKEN=hunter2", "-e", "KEY", env={"KEY": "hunter3"})
    assert answer.code == 0
    assert "hunter" not in answer.out + answer.err
    core = client.CoreV1Api(api)
    secret = core.read_namespaced_secret("first-env", namespace)
    assert base64.b64decode(secret.data["TOKEN"]) == b"hunter2"
    run = json.loads(rlrun("get", "first", "-o", "json").out)
    assert secret.metadata.owner_references[0].uid == run["metadata"]["uid"]
    assert run["spec"]["envFrom"] == [{"secretRef": {"name": "first-env"}}]
    rlrun("delete", "first", "--yes")
    # The garbage collector of a new cluster looks for new kinds every 30 s.
    deadline = time.monotonic() + 240
    while any(s.metadata.name == "first-env" for s in core.list_namespaced_secret(namespace).items):
        assert time.monotonic() < deadline, "the garbage collector left the Secret"
        time.sleep(0.2)


def test_refused_by_the_server_with_the_field_and_without_leftovers(
    rlrun: Rlrun, api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    # What only the API server judges: it is not part of the project's own schema.
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RLRun",
        "metadata": {"name": "first", "labels": {"team": "not a label"}},
        "spec": {"model": "me/tiny", "sampling": {"maxTokens": 4}, "env": [{"id": "me/reverse"}]},
    }
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(body))
    answer = rlrun("run", file, "-e", "A=1")
    assert answer.code == 1
    assert "the API server rejected the object" in answer.err
    assert "  - metadata.labels: " in answer.err
    assert client.CoreV1Api(api).list_namespaced_secret(namespace).items == []


def test_follow_to_the_end(rlrun: Rlrun, custom: client.CustomObjectsApi, namespace: str, toml: Path) -> None:
    def operate() -> Iterator[None]:
        for step in (1, 2, 3):
            yield write_status(
                custom, namespace, "rlruns", "first", phase="Running", progress=progress(step, step / 10)
            )
        yield write_status(custom, namespace, "rlruns", "first", phase="Completed", progress=progress(4, 0.4))

    operator = operate()
    # The state changes before each poll of the command.
    answer = rlrun("run", toml, "--name", "first", "--follow", obj=CliContext(sleep=lambda _: next(operator, None)))
    assert answer.code == 0, answer.err
    for step in (1, 2, 3, 4):
        assert f"step {step}/4" in answer.out
    assert "rlrun adapters first" in answer.err


def test_models_checkpoints_adapters(rlrun: Rlrun, custom: client.CustomObjectsApi, namespace: str, toml: Path) -> None:
    model = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RLModel", "metadata": {"name": f"tiny-{namespace}"}}
    custom.create_cluster_custom_object(
        GROUP, VERSION, "rlmodels", model | {"spec": {"id": f"me/{namespace}", "source": "s3://b/tiny"}}
    )
    assert f"me/{namespace}" in rlrun("models").out
    rlrun("run", toml, "--name", "first")
    for kind, plural in (("RLCheckpoint", "rlcheckpoints"), ("RLAdapter", "rladapters")):
        spec = {"runName": "first", "runUid": "u", "model": "me/tiny", "step": 4, "uri": "s3://b/x/step-000004"}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": kind, "metadata": {"name": "first-4"}, "spec": spec}
        custom.create_namespaced_custom_object(GROUP, VERSION, namespace, plural, body)
        write_status(custom, namespace, plural, "first-4", phase="Ready", sizeBytes=2048, reward=0.75)
    for command in ("checkpoints", "adapters"):
        _, row = rlrun(command, "first").out.splitlines()
        assert row.split()[:5] == ["first-4", "first", "4", "Ready", "0.750"]
        assert rlrun(command, "frist").code == 1


def test_logs_before_there_is_a_pod(rlrun: Rlrun, toml: Path) -> None:
    rlrun("run", toml, "--name", "first")
    answer = rlrun("logs", "first")
    assert answer.code == 1
    assert "no orchestrator pod" in answer.err


def kubeconfig_with(original: Path, target: Path, *, server: str | None = None, token: str | None = None) -> Path:
    found = yaml.safe_load(original.read_text())
    if server:
        found["clusters"][0]["cluster"]["server"] = server
    if token:
        found["users"][0]["user"] = {"token": token}
    target.write_text(yaml.safe_dump(found))
    return target


def test_forbidden_requests_name_the_role_that_grants_them(
    rlrun: Rlrun, api: client.ApiClient, control_plane: ControlPlane, namespace: str, toml: Path, tmp_path: Path
) -> None:
    core = client.CoreV1Api(api)
    core.create_namespaced_service_account(namespace, {"metadata": {"name": "nobody"}})
    token = core.create_namespaced_service_account_token(
        "nobody", namespace, {"spec": {"expirationSeconds": 600}}
    ).status.token
    kubeconfig = kubeconfig_with(control_plane.kubeconfig, tmp_path / "nobody", token=token)
    for command in (["list"], ["run", toml], ["models"]):
        answer = rlrun(*command, kubeconfig=kubeconfig)
        assert answer.code == 1
        assert "forbidden" in answer.err
        assert "the `edit` role" in answer.err
    stranger = kubeconfig_with(control_plane.kubeconfig, tmp_path / "stranger", token="nonsense")
    assert "rejected your credentials" in rlrun("list", kubeconfig=stranger).err


def test_a_server_that_is_not_there(rlrun: Rlrun, control_plane: ControlPlane, tmp_path: Path) -> None:
    kubeconfig = kubeconfig_with(control_plane.kubeconfig, tmp_path / "nowhere", server="https://127.0.0.1:1")
    answer = rlrun("list", kubeconfig=kubeconfig)
    assert answer.code == 1
    assert "https://127.0.0.1:1 does not respond" in answer.err
    assert "Traceback" not in answer.err


def test_a_kubeconfig_that_is_not_there(rlrun: Rlrun, tmp_path: Path) -> None:
    assert rlrun("list", kubeconfig=tmp_path / "none").code == 2


def test_a_context_that_is_not_there(rlrun: Rlrun) -> None:
    answer = rlrun("list", "--context", "none")
    assert answer.code == 2
    assert "no context 'none'" in answer.err


SECONDS = 60


def test_a_watch_prints_changes_and_ends_with_the_deletion(
    rlrun: Rlrun, control_plane: ControlPlane, custom: client.CustomObjectsApi, namespace: str, toml: Path
) -> None:
    assert rlrun("run", toml, "--name", "watched").code == 0
    command = [sys.executable, "-m", "rlrun_cli", "--kubeconfig", str(control_plane.kubeconfig), "-n", namespace]
    process = subprocess.Popen(
        [*command, "get", "watched", "-w", "-o", "table"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:2] == ["NAME", "PHASE"]
        assert process.stdout.readline().split()[:2] == ["watched", "Pending"]
        write_status(custom, namespace, "rlruns", "watched", phase="Running")
        assert process.stdout.readline().split()[:2] == ["watched", "Running"]
        assert rlrun("delete", "watched", "--yes").code == 0
        _, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "watched was deleted" in errors


def test_labels_and_order(rlrun: Rlrun, custom: client.CustomObjectsApi, namespace: str, toml: Path) -> None:
    for name, stage in (("b", "test"), ("a", "test"), ("c", "other")):
        assert rlrun("run", toml, "--name", name).code == 0
        labels = {"metadata": {"labels": {"stage": stage}}}
        custom.patch_namespaced_custom_object(GROUP, VERSION, namespace, "rlruns", name, labels)
    found = rlrun("list", "-l", "stage in (test)", "--sort-by", ".metadata.name", "-o", "name").out
    assert found.split() == ["rlruns.rlrun.dev/a", "rlruns.rlrun.dev/b"]


def test_suspend_resume_and_the_refusal_of_a_second_resume(rlrun: Rlrun, toml: Path) -> None:
    rlrun("run", toml, "--name", "first")
    assert rlrun("suspend", "first").code == 0
    assert rlrun("resume", "first").code == 0
    refused = rlrun("resume", "first")
    assert refused.code == 1
    assert "not suspended" in refused.err


def test_secrets_are_set_changed_and_deleted(
    rlrun: Rlrun, api: client.ApiClient, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "s.env").write_text("A=1\nB=2\n")
    assert rlrun("secret", "set", "judge", "--env-file", tmp_path / "s.env").code == 0
    assert rlrun("secret", "set", "judge", "--from-file", f"C={tmp_path / 's.env'}").code == 0
    assert rlrun("secret", "delete", "judge", "A", "--yes").code == 0
    found = client.CoreV1Api(api).read_namespaced_secret("judge", namespace)
    assert sorted(found.data) == ["B", "C"]
    assert rlrun("secret", "delete", "judge", "--yes").code == 0
    assert rlrun("secret", "list", "-o", "name").out == ""


def test_doctor_asks_the_api_server_for_kinds_and_rights(rlrun: Rlrun) -> None:
    answer = rlrun("doctor")
    assert answer.code == 1
    found = {line.split()[1]: line.split()[0] for line in answer.out.splitlines() if not line.startswith(" ")}
    assert (found["kinds:"], found["rights:"], found["capacity:"]) == ("ok", "ok", "ok")
    assert found["operator:"] == found["rlrun-server:"] == "wrong", "neither is installed"


def test_doctor_reads_gpus_classes_and_volumes_as_administrator(
    rlrun: Rlrun, api: client.ApiClient, namespace: str
) -> None:
    core, name = client.CoreV1Api(api), f"gpu-{namespace}"
    metadata = {"name": name, "labels": {"nvidia.com/cuda.driver.major": "550"}}
    core.create_node({"metadata": metadata, "spec": {"taints": [{"key": "test", "effect": "NoSchedule"}]}})
    try:
        offered = {"nvidia.com/gpu": "8", "nvidia.com/mig-1g.10gb": "7"}
        core.patch_node_status(name, {"status": {"capacity": offered, "allocatable": offered}})
        answer = rlrun("doctor", "--gpu")
    finally:
        core.delete_node(name)
    assert answer.code == 1
    lines = {line.split(":")[0].split(maxsplit=1)[1]: line for line in answer.out.splitlines() if line[:1] != " "}
    assert f"8 nvidia.com/gpu on {name}, 7 nvidia.com/mig-1g.10gb on {name}" in lines["gpus"]
    assert f"{name} has 550" in lines["driver"]
    assert all(lines[check].startswith("ok") for check in ("runtime classes", "pull secrets", "volumes")), answer.out
    assert "no operator settings were found" in lines["network"]
