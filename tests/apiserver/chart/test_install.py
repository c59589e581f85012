"""`helm install` on a real API server: the order of kinds, the rights that come out, the catalogue, the way back.

There is no node, so nothing runs: hooks are left out, and what they run is run here.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config, utils
from kubernetes.client.exceptions import ApiException
from rlrun_operator.cluster.tenants import role_binding
from rlrun_operator.config.settings import TenantRole

from local_cluster.control_plane.without_nodes import ControlPlane
from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.support.source_tree import PYTHONPATH

CHART = Path(__file__).parents[3] / "charts" / "rlrun"
SYSTEM = "rlrun-system"
CRDS = ["rladapters.rlrun.dev", "rlcheckpoints.rlrun.dev", "rlmodels.rlrun.dev", "rlruns.rlrun.dev"]
OPERATOR = f"system:serviceaccount:{SYSTEM}:rlrun"
RUN: dict[str, Any] = {
    "apiVersion": "rlrun.dev/v1alpha1",
    "kind": "RLRun",
    "metadata": {"name": "first"},
    "spec": {"model": "me/tiny", "sampling": {"maxTokens": 4}, "env": [{"id": "me/reverse"}]},
}
APPLY = "application/apply-patch+yaml"

Helm = Callable[..., str]
Client = Callable[[str], client.ApiClient]


@pytest.fixture(scope="module")
def empty() -> Iterator[ControlPlane]:
    """A cluster that has never heard of the project, and checks who may own whose children."""
    flags = ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]
    with ControlPlane(api_server_flags=flags) as started:
        yield started


@pytest.fixture(scope="module")
def helm(empty: ControlPlane) -> Helm:
    return helm_of(empty)


def helm_of(cluster: ControlPlane) -> Helm:
    """Return helm for a cluster. It returns what it printed."""
    program = ensure_program("helm", paths())

    def run(*args: str, namespace: str = SYSTEM) -> str:
        done = subprocess.run(
            [program, *args, "--kubeconfig", cluster.kubeconfig, "-n", namespace],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="module")
def installed(empty: ControlPlane, helm: Helm) -> str:
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks"]
    said = helm("install", "rlrun", str(CHART), "--create-namespace", *values)
    admin = config.new_client_from_config(str(empty.kubeconfig))
    labels = {"rlrun.dev/tenant": "true"}
    client.CoreV1Api(admin).create_namespace({"metadata": {"name": "tenant", "labels": labels}})
    # As the operator, which does not run here.
    role = TenantRole(cluster_role="rlrun-operator-tenant", account="rlrun")
    utils.create_from_dict(admin, role_binding(role, "tenant", SYSTEM))
    return said


@pytest.fixture(scope="module")
def as_user(empty: ControlPlane, installed: str) -> Client:
    """A client that acts as somebody else."""

    def make(user: str) -> client.ApiClient:
        found = config.new_client_from_config(str(empty.kubeconfig))
        if user:
            found.set_default_header("Impersonate-User", user)
        return found

    return make


def may(api: client.ApiClient, verb: str, group: str, resource: str, namespace: str = "tenant", name: str = "") -> bool:
    attributes = {"verb": verb, "group": group, "resource": resource, "namespace": namespace, "name": name}
    review = client.AuthorizationV1Api(api).create_self_subject_access_review(
        {"spec": {"resourceAttributes": attributes}}
    )
    return bool(review.status.allowed)


def test_one_install_brings_kinds_and_operator(as_user: Client, installed: str) -> None:
    admin = as_user("")
    definitions = client.ApiextensionsV1Api(admin).list_custom_resource_definition().items
    assert sorted(d.metadata.name for d in definitions) == CRDS
    deployment = client.AppsV1Api(admin).read_namespaced_deployment("rlrun-operator", SYSTEM)
    assert deployment.spec.template.spec.containers[0].image == "localhost/rlrun-operator:local"
    assert "s3://rlrun/" in installed
    assert "kubectl get rlmodels" in installed


def test_the_operator_account_has_only_its_required_permissions(as_user: Client) -> None:
    operator = as_user(OPERATOR)
    for group, resource in [
        ("", "configmaps"), ("", "services"), ("", "serviceaccounts"), ("apps", "replicasets"), ("apps", "deployments"),
        ("batch", "jobs"), ("networking.k8s.io", "networkpolicies"), ("rlrun.dev", "rlcheckpoints"),
        ("rlrun.dev", "rladapters"),
    ]:  # fmt: skip
        for verb in ("list", "watch", "create", "patch", "delete"):
            assert may(operator, verb, group, resource), (verb, resource)
    assert may(operator, "get", "", "secrets")
    assert may(operator, "get", "rlrun.dev", "rlcheckpoints")
    assert may(operator, "get", "", "pods/log")
    assert may(operator, "update", "coordination.k8s.io", "leases", SYSTEM, "rlrun-operator")
    for verb, group, resource in [
        ("list", "", "secrets"), ("watch", "", "secrets"), ("create", "", "pods"), ("create", "", "pods/exec"),
        ("list", "", "pods/log"), ("create", "rbac.authorization.k8s.io", "roles"), ("delete", "", "namespaces"),
        ("update", "coordination.k8s.io", "leases"), ("update", "", "configmaps"), ("update", "apps", "replicasets"),
        ("watch", "", "pods/log"), ("get", "", "configmaps"), ("get", "apps", "replicasets"),
        ("create", "rlrun.dev", "rlruns"), ("update", "rlrun.dev", "rlmodels"), ("patch", "", "namespaces"),
    ]:  # fmt: skip
        assert not may(operator, verb, group, resource), (verb, resource)
    assert not may(operator, "update", "coordination.k8s.io", "leases", SYSTEM, "of-another")
    for verb, group, resource in [
        ("get", "", "secrets"), ("create", "batch", "jobs"), ("create", "apps", "deployments"), ("delete", "", "pods"),
        ("create", "", "serviceaccounts"), ("get", "", "pods/log"), ("patch", "", "configmaps"),
    ]:  # fmt: skip
        assert not may(operator, verb, group, resource, "default"), f"{verb} {resource} where no tenant is"


def test_the_operator_may_own_children_with_blocking(as_user: Client) -> None:
    run = client.CustomObjectsApi(as_user("")).create_namespaced_custom_object(
        "rlrun.dev", "v1alpha1", "tenant", "rlruns", RUN
    )
    owner = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLRun",
        "name": "first",
        "uid": run["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "first-config",
            "labels": {"app.kubernetes.io/managed-by": "rlrun-operator"},
            "ownerReferences": [owner],
        },
    }
    made = client.CoreV1Api(as_user(OPERATOR)).patch_namespaced_config_map(
        "first-config", "tenant", body, field_manager="rlrun-operator", _content_type=APPLY
    )
    assert made.metadata.owner_references[0].uid == owner["uid"]


@pytest.mark.parametrize(
    ("role", "verb", "resource", "allowed"),
    [
        ("rlrun-editor", "create", "rlruns", True),
        ("rlrun-editor", "delete", "rlcheckpoints", True),
        ("rlrun-editor", "create", "rlcheckpoints", False),
        ("rlrun-editor", "patch", "rlruns/status", False),
        ("rlrun-viewer", "watch", "rladapters", True),
        ("rlrun-viewer", "delete", "rlruns", False),
    ],
)
def test_users(as_user: Client, role: str, verb: str, resource: str, allowed: bool) -> None:
    user = f"{role}-{verb}-{resource.replace('/', '-')}"
    client.RbacAuthorizationV1Api(as_user("")).create_namespaced_role_binding(
        "default",
        {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        },
    )
    assert may(as_user(user), verb, "rlrun.dev", resource, "default") is allowed


def test_catalogue_is_applied_changed_and_trimmed(empty: ControlPlane, as_user: Client, tmp_path: Path) -> None:
    custom = client.CustomObjectsApi(as_user(""))

    def run(*models: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
        file = tmp_path / "models.json"
        file.write_text(json.dumps(models))
        return subprocess.run(
            [sys.executable, CHART / "files" / "apply_models.py"],
            env=os.environ | {"MODELS": str(file), "RELEASE": "rlrun", "KUBECONFIG": str(empty.kubeconfig)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def model(name: str, **spec: Any) -> dict[str, Any]:
        return {
            "apiVersion": "rlrun.dev/v1alpha1",
            "kind": "RLModel",
            "metadata": {"name": name, "labels": {"rlrun.dev/catalogue-of": "rlrun"}},
            "spec": {"id": f"me/{name}", "source": "s3://b/x", **spec},
        }

    by_hand = model("by-hand")
    del by_hand["metadata"]["labels"]
    custom.create_cluster_custom_object("rlrun.dev", "v1alpha1", "rlmodels", by_hand)
    assert run(model("one"), model("two")).returncode == 0
    uid = custom.get_cluster_custom_object("rlrun.dev", "v1alpha1", "rlmodels", "one")["metadata"]["uid"]
    assert run(model("one", seqLen=64)).returncode == 0
    items = custom.list_cluster_custom_object("rlrun.dev", "v1alpha1", "rlmodels")["items"]
    assert sorted(i["metadata"]["name"] for i in items) == ["by-hand", "one"]
    one = next(i for i in items if i["metadata"]["name"] == "one")
    assert one["spec"]["seqLen"] == 64
    assert one["metadata"]["uid"] == uid, "changed in place, not made again"
    refused = run(model("one", seqLen=-1))
    assert refused.returncode != 0
    assert "spec.seqLen" in refused.stderr


def test_upgrades_have_the_job_of_the_catalogue_until_its_last_model_is_gone(helm: Helm, as_user: Client) -> None:
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks"]
    custom, core = client.CustomObjectsApi(as_user("")), client.CoreV1Api(as_user(""))
    kind = ("rlrun.dev", "v1alpha1", "rlmodels")
    own = {"name": "last", "labels": {"rlrun.dev/catalogue-of": "rlrun"}}
    spec = {"id": "me/last", "source": "s3://b/x"}
    last = {"apiVersion": "rlrun.dev/v1alpha1", "kind": "RLModel", "metadata": own, "spec": spec}
    custom.create_cluster_custom_object(*kind, last)
    for models in (["[]"], []):
        helm("upgrade", "rlrun", str(CHART), *values)
        maps = core.list_namespaced_config_map(SYSTEM).items
        assert [m.data["models.json"].strip() for m in maps if m.metadata.name == "rlrun-models"] == models
        custom.delete_collection_cluster_custom_object(*kind, label_selector="rlrun.dev/catalogue-of=rlrun")


def test_api_keys_survive_every_kind_of_upgrade(helm: Helm, as_user: Client) -> None:
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks"]
    core = client.CoreV1Api(as_user(""))
    name, keep = "rlrun-server-api-keys", {"helm.sh/resource-policy": "keep"}
    # As version 0.1.0 left it.
    metadata = {"name": name, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    core.create_namespaced_secret(SYSTEM, {"metadata": metadata, "stringData": {"id": "digest"}})
    with pytest.raises(AssertionError, match=rf"would delete all API keys: first type kubectl annotate .* {name} "):
        helm("upgrade", "rlrun", str(CHART), *values)
    core.patch_namespaced_secret(name, SYSTEM, {"metadata": {"annotations": keep}})
    for options in ([], ["--force"]):
        helm("upgrade", "rlrun", str(CHART), *values, *options)
        assert core.read_namespaced_secret(name, SYSTEM).data


def test_rights_for_kueue_exist_with_kueue_only(helm: Helm, as_user: Client) -> None:
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks"]
    operator, kueue = as_user(OPERATOR), as_user("system:serviceaccount:kueue-system:kueue-controller-manager")
    for enabled in (True, False):
        helm("upgrade", "rlrun", str(CHART), *values, "--set", f"kueue.enabled={str(enabled).lower()}")
        for verb in ("list", "watch", "create", "patch", "delete"):
            assert may(operator, verb, "kueue.x-k8s.io", "workloads") is enabled, verb
        assert may(operator, "patch", "kueue.x-k8s.io", "workloads/status") is enabled
        assert may(operator, "get", "kueue.x-k8s.io", "resourceflavors") is enabled
        assert not may(operator, "list", "kueue.x-k8s.io", "resourceflavors")
        assert not may(operator, "patch", "kueue.x-k8s.io", "clusterqueues")
        assert may(kueue, "get", "rlrun.dev", "rlruns") is enabled
        assert not may(kueue, "patch", "rlrun.dev", "rlruns")


def test_a_spec_of_any_size_is_refused_but_its_run_can_be_deleted(as_user: Client) -> None:
    custom = client.CustomObjectsApi(as_user(""))
    place = ("rlrun.dev", "v1alpha1", "default", "rlruns")

    def create(name: str, args: dict[str, Any], wrong: dict[str, Any] | None = None, **fields: Any) -> Any:
        spec = {**RUN["spec"], "env": [{"id": "me/reverse", "args": args}], **(wrong or {})}
        run = {**RUN, "metadata": {"name": name, **fields}, "spec": spec}
        return custom.create_namespaced_custom_object(*place, run)

    def refused(args: dict[str, Any]) -> bool:
        try:
            create("large", args)
        except ApiException as error:
            if error.status != 422 or "spec is larger than 256 KiB" not in error.body:
                raise
            return True
        custom.delete_namespaced_custom_object(*place, "large")
        return False

    policies = client.AdmissionregistrationV1Api(as_user(""))
    # The API server reads a new policy within seconds.
    deadline = time.monotonic() + 60
    while not refused({"text": "x" * 1_300_000}):
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.2)
    for args in (
        {"numbers": list(range(100_000))},
        {"text": "\u20ac" * 90_000},
        {"deep": {"deeper": [{"deepest": [["x" * 200_000, "y" * 100_000]]}]}},
        {str(number): "z" * 5_000 for number in range(60)},
    ):
        assert refused(args), args.keys()
    create("usual", {"text": "x" * 120_000, "numbers": list(range(1000)), "none": None, "yes": True, "part": 0.5})

    name = "rlruns.rlrun.dev"
    binding = policies.read_validating_admission_policy_binding(name)
    policies.delete_validating_admission_policy_binding(name)
    while refused({"text": "x" * 1_300_000}):
        assert time.monotonic() < deadline + 60, "the policy is still in force"
        time.sleep(0.2)
    create("earlier", {"text": "x" * 600_000}, {"batchSize": 7}, finalizers=["others.example/x"])
    binding.metadata = client.V1ObjectMeta(
        name=name, labels=binding.metadata.labels, annotations=binding.metadata.annotations
    )
    policies.create_validating_admission_policy_binding(binding)
    while not refused({"text": "x" * 1_300_000}):
        assert time.monotonic() < deadline + 120, "the policy is not in force again"
        time.sleep(0.2)
    custom.patch_namespaced_custom_object(*place, "earlier", {"spec": {"stop": True}})
    custom.patch_namespaced_custom_object(*place, "earlier", {"metadata": {"finalizers": None}})
    for run in ("earlier", "usual"):
        custom.delete_namespaced_custom_object(*place, run)


def test_upgrade_then_uninstall_keeps_the_kinds_and_the_runs(helm: Helm, as_user: Client) -> None:
    admin = as_user("")
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks", "--set", "s3.bucket=another"]
    helm("upgrade", "rlrun", str(CHART), *values)
    settings = client.CoreV1Api(admin).read_namespaced_config_map("rlrun-settings", SYSTEM)
    assert 'bucket: "another"' in settings.data["settings.yaml"]
    helm("uninstall", "rlrun", "--no-hooks")
    with pytest.raises(ApiException):
        client.AppsV1Api(admin).read_namespaced_deployment("rlrun-operator", SYSTEM)
    definitions = client.ApiextensionsV1Api(admin).list_custom_resource_definition().items
    assert sorted(d.metadata.name for d in definitions) == CRDS
    helm("install", "rlrun", str(CHART), *values)


def test_after_an_uninstallation_runs_can_be_deleted(
    empty: ControlPlane, helm: Helm, as_user: Client, tmp_path: Path
) -> None:
    admin = as_user("")
    custom = client.CustomObjectsApi(admin)
    for name, finalizers in (("deleted", []), ("kept", ["others.example/x"])):
        run = {**RUN, "spec": {**RUN["spec"], "artifactPolicy": "Delete"}}
        run["metadata"] = {"name": name, "finalizers": ["rlrun.dev/artifacts", *finalizers]}
        custom.create_namespaced_custom_object("rlrun.dev", "v1alpha1", "default", "rlruns", run)
    custom.delete_namespaced_custom_object("rlrun.dev", "v1alpha1", "default", "rlruns", "deleted")

    hooks = [o for o in yaml.safe_load_all(helm("get", "hooks", "rlrun")) if o and is_post_delete(o)]
    helm("uninstall", "rlrun", "--no-hooks")
    assert "deleted" in runs_of(custom), "it waits for an operator"
    (job,) = (o for o in hooks if o["kind"] == "Job")
    for hook in hooks:
        if hook is not job:
            utils.create_from_dict(admin, hook)
    spec = job["spec"]["template"]["spec"]
    account = spec["serviceAccountName"]
    kubeconfig = kubeconfig_of(account, empty, admin, tmp_path)
    (container,) = spec["containers"]

    def start() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *container["command"][1:], *container["args"]],
            env=os.environ | {"KUBECONFIG": kubeconfig, "PYTHONPATH": PYTHONPATH},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = start()
    assert done.returncode == 0, done.stderr
    assert "Run default/deleted: finalizer removed; its files are kept at s3://" in done.stderr
    assert "Finalizers removed: 2." in done.stderr
    left = runs_of(custom)
    assert "deleted" not in left
    assert left["kept"] == ["others.example/x"]
    again = start()
    assert again.returncode == 0, again.stderr
    assert "Finalizers removed: 0." in again.stderr
    for verb, resource in (("delete", "rlruns"), ("patch", "rlcheckpoints"), ("patch", "rlruns/status")):
        assert not may(as_user(f"system:serviceaccount:{SYSTEM}:{account}"), verb, "rlrun.dev", resource)
    helm("install", "rlrun", str(CHART), "-f", str(CHART / "values-local.yaml"), "--no-hooks")


def test_the_run_of_helm_test_is_made_and_removed_with_rights_of_its_own(
    empty: ControlPlane, helm: Helm, as_user: Client, tmp_path: Path
) -> None:
    admin = as_user("")
    custom = client.CustomObjectsApi(admin)
    client.CoreV1Api(admin).create_namespace({"metadata": {"name": "checks"}})
    place = ("rlrun.dev", "v1alpha1", "checks", "rlruns")
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks", "--set", "tests.run.namespace=checks"]
    helm("upgrade", "rlrun", str(CHART), *values, "--set-json", f"tests.run.spec={json.dumps(RUN['spec'])}")
    hooks = [o for o in yaml.safe_load_all(helm("get", "hooks", "rlrun")) if o]
    tests = [o for o in hooks if o["metadata"]["annotations"]["helm.sh/hook"] == "test"]
    for hook in tests:
        if hook["kind"] != "Pod":
            utils.create_from_dict(admin, hook)
    (spec,) = [o["spec"] for o in tests if o["metadata"]["name"] == "rlrun-test-run"]
    variables = {v["name"]: v["value"] for v in spec["containers"][0]["env"]}
    kubeconfig = kubeconfig_of(spec["serviceAccountName"], empty, admin, tmp_path)

    def start(seconds: int) -> "subprocess.Popen[str]":
        own = {
            "KUBECONFIG": kubeconfig,
            "PYTHONPATH": PYTHONPATH,
            "RUN": variables["RUN"],
            "CHECK_SECONDS": str(seconds),
        }
        command = [sys.executable, "-m", "rlrun.installation.checks", "run"]
        return subprocess.Popen(command, env=os.environ | own, stderr=subprocess.PIPE, text=True)

    with start(1) as without_operator:
        _, error = without_operator.communicate(timeout=120)
    assert without_operator.returncode == 1
    assert "had not ended after 1 s (tests.run.timeoutSeconds): no status" in error
    assert custom.list_namespaced_custom_object(*place)["items"] == []

    with start(120) as completed:
        deadline = time.monotonic() + 60
        while not (items := custom.list_namespaced_custom_object(*place)["items"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        name = items[0]["metadata"]["name"]
        custom.patch_namespaced_custom_object_status(*place, name, {"status": {"phase": "Completed"}})
        _, error = completed.communicate(timeout=120)
    assert (completed.returncode, error) == (0, "")
    assert custom.list_namespaced_custom_object(*place)["items"] == []


def test_the_kinds_that_an_uninstallation_left_move_to_another_namespace(helm: Helm, as_user: Client) -> None:
    values = ["-f", str(CHART / "values-local.yaml"), "--no-hooks", "--create-namespace"]
    kinds = client.ApiextensionsV1Api(as_user(""))

    def owner() -> set[str]:
        items = kinds.list_custom_resource_definition().items
        return {item.metadata.annotations["meta.helm.sh/release-namespace"] for item in items}

    uids = {item.metadata.uid for item in kinds.list_custom_resource_definition().items}
    helm("uninstall", "rlrun", "--no-hooks")
    with pytest.raises(
        AssertionError, match=r'release-namespace" must equal "elsewhere": current value is "rlrun-system"'
    ):
        helm("install", "rlrun", str(CHART), *values, namespace="elsewhere")
    assert owner() == {SYSTEM}
    helm("install", "rlrun", str(CHART), *values, "--take-ownership", namespace="elsewhere")
    assert owner() == {"elsewhere"}
    assert {item.metadata.uid for item in kinds.list_custom_resource_definition().items} == uids, "the runs are kept"
    assert client.AppsV1Api(as_user("")).read_namespaced_deployment("rlrun-operator", "elsewhere")
    helm("uninstall", "rlrun", "--no-hooks", namespace="elsewhere")
    helm("install", "rlrun", str(CHART), *values, "--take-ownership")


def is_post_delete(obj: dict[str, Any]) -> bool:
    return bool(obj["metadata"].get("annotations", {}).get("helm.sh/hook") == "post-delete")


def kubeconfig_of(account: str, cluster: ControlPlane, admin: client.ApiClient, folder: Path) -> str:
    """Write a kubeconfig with the rights of a ServiceAccount of the release, and return its path."""
    body = {"spec": {"expirationSeconds": 600}}
    token = client.CoreV1Api(admin).create_namespaced_service_account_token(account, SYSTEM, body)
    kubeconfig = yaml.safe_load(cluster.kubeconfig.read_text())
    kubeconfig["users"][0]["user"] = {"token": token.status.token}
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    return str(folder / "kubeconfig")


def runs_of(custom: client.CustomObjectsApi) -> dict[str, list[str]]:
    """Finalizers of the runs in the namespace `default`, by name."""
    items = custom.list_namespaced_custom_object("rlrun.dev", "v1alpha1", "default", "rlruns")["items"]
    return {i["metadata"]["name"]: i["metadata"].get("finalizers", []) for i in items}
