"""The hosted service's own clients, unmodified, drive a run from `models` to `delete`.

API server, S3, operator, rlrun-server and clients are real; the test plays nodes, trainer and orchestrator.
"""

import shutil
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.docs.conftest import World, orchestrators, own_bench, world
from tests.apiserver.rlrun_operator.conftest import Bench
from tests.apiserver.rlrun_operator.test_serving import start_pods
from tests.apiserver.rlrun_server.test_users import RBAC, Accounts, chart_objects
from tests.support.hosted_client import DEDICATED, VERSIONS, HostedClient, hosted_client
from tests.support.server_process import server_process
from tests.support.signing_server import KEY_SECRET, key_secret

__all__ = ["orchestrators", "own_bench", "world"]

ROOT = Path(__file__).parents[3]
MODEL = "rlrun/reverse-text-tiny"
CONFIG = """
model = "{model}"
name = "first [/try]"
max_steps = 30
batch_size = 16
rollouts_per_example = 8
learning_rate = 1e-4

[sampling]
max_tokens = 32

[[env]]
id = "{environment}"
"""
DEDICATED_CONFIG = """
name = "first [/try]"
max_steps = 30

[model]
name = "{model}"

[orchestrator]
batch_size = 16
group_size = 8

[orchestrator.train.sampling]
max_completion_tokens = 32

[[orchestrator.train.source]]
[orchestrator.train.source.env.taskset]
id = "{environment}"

[trainer.optim]
lr = 1e-4

[trainer.model.lora]
rank = 8

[ckpt]
interval = 10
"""
AS_EDIT: list[dict[str, Any]] = [
    {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list", "create", "update", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "deletecollection"]},
    {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
]
"""Rights of the cluster's role `edit`, which no controller aggregates here."""


@pytest.fixture
def users_role(api: client.ApiClient) -> str:
    """Role of `rlrun-user`: the chart's editor, and what `edit` has beside it."""
    (editor,) = [o for o in chart_objects("any", "user-roles.yaml") if o["metadata"]["name"] == "rlrun-editor"]
    name = f"user-{uuid.uuid4().hex[:6]}"
    body = {"metadata": {"name": name}, "rules": [*editor["rules"], *AS_EDIT]}
    client.RbacAuthorizationV1Api(api).create_cluster_role(body)
    return name


@pytest.fixture
def server(world: World, api: client.ApiClient, control_plane: ControlPlane) -> Iterator[str]:
    """URL of rlrun-server, with the rights that the chart gives it."""
    home = world.bench.namespace
    rbac, rules = client.RbacAuthorizationV1Api(api), []
    for found in chart_objects(home, "server.yaml", "users.apiKeysMayWrite=true"):
        if found["kind"] in ("ClusterRole", "Role"):
            rules += found["rules"]
    name = f"server-{home}"
    rbac.create_cluster_role({"metadata": {"name": name}, "rules": rules})
    token = Accounts(api).make(home, "rlrun-server")
    reference = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
    subject = {"kind": "ServiceAccount", "name": "rlrun-server", "namespace": home}
    rbac.create_cluster_role_binding({"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    client.CoreV1Api(api).create_namespaced_secret(home, key_secret(home))
    with server_process(
        world.bench.folder / "server",
        control_plane.kubeconfig,
        world.bench.s3,
        token,
        api_key_secret=f"{home}/{KEY_SECRET}",
        api_keys_may_write="true",
    ) as url:
        yield url


def api_key(api: client.ApiClient, url: str, namespace: str, role: str) -> str:
    """Return a new API key of the namespace."""
    accounts = Accounts(api)
    accounts.make(namespace, "rlrun-user", role)
    admin = accounts.make(namespace, "admin", "cluster-admin")
    headers = {"Authorization": f"Bearer {admin}"}
    made = httpx.post(f"{url}/rlrun/v1/namespaces/{namespace}/keys", json={}, headers=headers, trust_env=False)
    assert made.status_code == 201, made.text
    return str(made.json()["key"])


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_drives_a_run_from_models_to_delete(
    version: str, world: World, server: str, api: client.ApiClient, users_role: str, tmp_path: Path
) -> None:
    namespace, bench = world.bench.namespace, world.bench
    prime = hosted_client(version, server, api_key(api, server, namespace, users_role), tmp_path / "home")

    # --- account, models, secrets, environments
    assert namespace in prime.run("whoami")
    assert namespace in prime.run("teams", "list")
    assert MODEL in prime.run("train", "models")
    secret = prime.read("secret", "create", "-n", "JUDGE_KEY", "-v", "value [/hidden]", "-o", "json")
    assert prime.read("secret", "list", "-o", "json")["secrets"][0]["name"] == "JUDGE_KEY", secret
    identity = prime.read("secret", "list", "-o", "json")["secrets"][0]["id"]
    prime.run("secret", "update", identity, "-v", "changed")
    assert "JUDGE_KEY" in prime.run("secret", "get", identity)
    environment = push(prime, namespace)
    assert "0.1.0" in prime.run("env", "version", "list", environment)
    assert environment in prime.run("env", "info", environment)
    prime.run("env", "status", environment)
    assert "reverse-text" in prime.run("env", "list", "--owner", namespace)
    prime.run("env", "secret", "link", identity, environment)
    assert "JUDGE_KEY" in prime.run("env", "secret", "list", environment)
    linked = client.CoreV1Api(api).read_namespaced_secret(f"env.{namespace}.reverse-text", namespace)
    assert linked.data == {"JUDGE_KEY": "Y2hhbmdlZA=="}
    prime.run("env", "secret", "unlink", identity, environment, "-y")
    prime.run("secret", "delete", identity, "-y")

    # --- a run
    variable = "HF_TOKEN" if prime.is_dedicated else "TOKEN"
    name = prime.create(config_of(prime, MODEL, environment), f"{variable}=secret")
    created = bench.run(name)
    assert [source["secretRef"]["name"] for source in created["spec"]["envFrom"]] == [f"{name}-env"]
    stored = client.CoreV1Api(api).read_namespaced_secret(f"{name}-env", namespace)
    assert stored.data == {variable: "c2VjcmV0"}
    assert stored.metadata.owner_references[0].uid == created["metadata"]["uid"]
    if version == "0.6.0":  # the others wait for three minutes
        assert "not" in prime.run("train", "logs", name)
    listed = prime.read("train", "list", "-o", "json")
    assert [(run["id"], run["status"]) for run in listed["runs"]] == [(name, "PENDING")]
    world.trains(name, "15")
    got = prime.read("train", "get", name, "-o", "json")["run"]
    assert (got["status"], got["base_model"], got["seq_len"], got["batch_size"]) == ("RUNNING", MODEL, 128, 16)
    assert got["name"] == "first (/try)"
    assert "reverse-text" in prime.run("train", "get", name)
    assert "reverse-text" in prime.run("train", "components", name)
    metrics = prime.read("train", "metrics", name, "--min-step", "3", "--max-step", "9", "-n", "4")["metrics"]
    assert [row["step"] for row in metrics] == [6, 7, 8, 9]
    rollouts = prime.read("train", "rollouts", name, "-s", "5")
    assert (rollouts["total"], rollouts["samples"][0]["reward"]) == (1, 0.5)
    progress = prime.read("train", "progress", name)
    assert (progress["latest_step"], len(progress["steps_with_samples"])) == (15, 15)
    followed = prime.start("train", "logs", name, "-f")
    assert followed.stdout is not None
    while "Watching orchestrator logs" not in (line := followed.stdout.readline()):
        assert line, "the client ended before it followed the logs"
    followed.send_signal(signal.SIGINT)
    assert "Stopped watching logs" in prime.end(followed)
    # Numbers beyond the last step select nothing.
    assert prime.read("train", "metrics", name, "--min-step", "99999999") == {"metrics": []}
    assert prime.read("train", "rollouts", name, "-s", "99999999")["samples"] == []
    distribution = prime.read("train", "distributions", name)
    assert (distribution["step"], sum(each["count"] for each in distribution["bins"])) == (15, 1)
    (checkpoint,) = prime.read("train", "checkpoints", name, "-s", "READY", "-o", "json")["checkpoints"]
    assert (checkpoint["step"], checkpoint["rft_run_id"]) == (10, name)
    assert "record_count" in str(prime.read("train", "usage", name, "-o", "json"))

    # --- changes
    before = {pod["metadata"]["uid"] for pod in bench.items("api/v1", "pods")}
    prime.run("train", "restart", name, "-f")
    bench.kill_pods()
    bench.wait("pods to leave", lambda: not before & {p["metadata"]["uid"] for p in bench.items("api/v1", "pods")})
    if not prime.is_dedicated:
        deploys_an_adapter(prime, bench, name, checkpoint["id"])
    stopping = prime.start("train", "stop", name, "-f")
    bench.wait("the end", lambda: ends(bench, name))
    prime.end(stopping)
    bench.wait("STOPPED", lambda: status(prime, name) == "STOPPED")
    assert "Only a run that is RUNNING" in " ".join(prime.run("train", "restart", name, "-f", code=1).split())
    assert "step 15 done" in prime.run("train", "logs", name, "-n", "5")
    prime.run("train", "logs", name, "-r")
    prime.run("train", "delete", name, "-f")
    bench.wait("the end of the run", lambda: not bench.run(name))
    assert name in prime.run("train", "get", name, code=1)
    assert prime.read("train", "list", "-o", "json")["runs"] == []


def deploys_an_adapter(prime: HostedClient, bench: Bench, name: str, checkpoint: str) -> None:
    (adapter,) = prime.read("deployments", "list", "-o", "json")["models"]
    assert (adapter["rft_run_id"], adapter["step"], adapter["deployment_status"]) == (name, 15, "NOT_DEPLOYED")
    prime.run("deployments", "create", adapter["id"], "-y")
    assert (bench.get("apis/rlrun.dev/v1alpha1", "rladapters", adapter["id"]) or {})["spec"]["deployed"] is True
    assert "DEPLOYING" in prime.run("deployments", "delete", adapter["id"], code=1)

    def deployment() -> str:
        return str(prime.read("deployments", "list", "-o", "json")["models"][0]["deployment_status"])

    start_pods(bench, MODEL)
    bench.wait("a pool that serves it", lambda: deployment() == "DEPLOYED")
    prime.run("deployments", "delete", adapter["id"])
    assert deployment() in ("UNLOADING", "NOT_DEPLOYED")
    if prime.version == "0.12.0":
        refused = prime.run("deployments", "create", "--checkpoint-id", checkpoint, "-y", code=1)
        assert "has no ready adapter for step 10" in " ".join(refused.split())


@pytest.mark.slow
def test_a_dedicated_run_is_paused_and_resumed_as_a_new_run(
    world: World, server: str, api: client.ApiClient, users_role: str, tmp_path: Path
) -> None:
    namespace, bench = world.bench.namespace, world.bench
    prime = hosted_client(DEDICATED, server, api_key(api, server, namespace, users_role), tmp_path / "home")
    # As in prime-rl's own files, the environment has no owner: it is one of the namespace.
    push(prime, namespace)
    first = prime.create(config_of(prime, MODEL, "reverse-text"))
    world.trains(first, "15")
    refused = prime.run("train", "resume", first, "-y", code=1)
    assert "Only a run that is PAUSED can be resumed" in " ".join(refused.split())
    assert "PAUSING" in prime.run("train", "pause", first, "-f")
    bench.wait("PAUSED", lambda: ends(bench, first, "Suspended") and status(prime, first) == "PAUSED")
    second = str(prime.read("train", "resume", first, "-y", "-o", "json")["run"]["runId"])
    spec, checkpoint = bench.run(second)["spec"], bench.run(first)["status"]["lastCheckpoint"]
    assert (spec["checkpointId"], spec["maxSteps"]) == (checkpoint, 20)
    assert not spec.get("suspend")
    world.trains(second, "5")
    assert status(prime, first) == "PAUSED"
    assert "No" in prime.run("train", "gpus")


def test_problems_are_told(world: World, server: str, api: client.ApiClient, users_role: str, tmp_path: Path) -> None:
    namespace = world.bench.namespace
    key = api_key(api, server, namespace, users_role)
    for version in VERSIONS:
        prime = hosted_client(version, server, key, tmp_path / version)
        file = prime.folder / "rl.toml"
        file.write_text(config_of(prime, "no/model", "nobody/nothing"))
        printed = " ".join(prime.run("train", "run", "rl.toml", "-y", code=1).split())
        entry = "source.0.env.taskset" if prime.is_dedicated else "environments.0"
        assert "model.name: does not exist; models of this platform" in printed
        assert f"{entry}.id: nobody/nothing does not exist" in printed
        file.write_text(config_of(prime, MODEL, "a/b").replace("= 16", "= 15"))
        printed = " ".join(prime.run("train", "run", "rl.toml", "-y", code=1).split())
        assert "batch_size: batch_size must be a multiple" in printed, printed
        assert prime.read("train", "list", "-o", "json")["runs"] == []
        assert "does not exist" in prime.run("train", "get", "nothing", code=1)
        stranger = hosted_client(version, server, "rlk_" + "a" * 12 + "_" + "b" * 43, tmp_path / "stranger")
        assert "key" in stranger.run("train", "list", code=1).lower()


def test_a_key_sees_nothing_of_another_tenant(
    world: World, server: str, api: client.ApiClient, users_role: str, tmp_path: Path
) -> None:
    namespace, other = world.bench.namespace, f"other-{uuid.uuid4().hex[:8]}"
    client.CoreV1Api(api).create_namespace({"metadata": {"name": other}})
    owner = api_key(api, server, namespace, users_role)
    stranger = api_key(api, server, other, users_role)
    world.start("hidden")
    world.trains("hidden", "15")
    for version in VERSIONS:
        assert "hidden" in hosted_client(version, server, owner, tmp_path / f"owner-{version}").run("train", "list")
        prime = hosted_client(version, server, stranger, tmp_path / f"stranger-{version}")
        assert prime.read("train", "list", "-o", "json")["runs"] == []
        if not prime.is_dedicated:
            assert prime.read("deployments", "list", "-o", "json")["models"] == []
        for words in ("get", "metrics", "progress", "checkpoints", "usage", "components"):
            assert "does not exist" in prime.run("train", words, "hidden", code=1), words
        for words in ("stop", "restart", "delete"):
            assert "does not exist" in prime.run("train", words, "hidden", "-f", code=1), words
        team = prime.run("train", "list", code=1, PRIME_TEAM_ID=namespace)
        assert "does not belong" in " ".join(team.split())
    assert world.bench.run("hidden")["spec"].get("stop") is not True


def ends(bench: Bench, name: str, phase: str = "Stopped") -> bool:
    """Play the kubelet, which confirms the end of pods, and return whether the run has this phase."""
    bench.kill_pods()
    return bench.phase(name) == phase


def status(prime: HostedClient, name: str) -> str:
    return str(prime.read("train", "get", name, "-o", "json")["run"]["status"])


def config_of(prime: HostedClient, model: str, environment: str) -> str:
    """Return a configuration in the form that the client accepts."""
    return (DEDICATED_CONFIG if prime.is_dedicated else CONFIG).format(model=model, environment=environment)


def push(prime: HostedClient, namespace: str) -> str:
    """Push the example's environment and return its id."""
    folder = prime.folder / "reverse_text"
    shutil.copytree(ROOT / "examples/environments/reverse_text", folder)
    printed = prime.run("env", "push", "--path", str(folder), "--owner", namespace)
    assert f"{namespace}/reverse-text" in printed, printed
    return f"{namespace}/reverse-text"
