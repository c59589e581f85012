import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import pytest
import yaml
from jsonschema_rs import Draft7Validator
from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel
from rlrun.api.base.address_rules import AddressRules
from rlrun.api.base.names import EgressHost, ModelId
from rlrun.api.base.pod_shape import PodShape
from rlrun.api.base.s3_connection import S3Connection
from rlrun.api.model import RLModel, RLModelSpec
from rlrun.api.run_sections.infrastructure import ComputeSize
from rlrun.kube.kinds import ALL, ARTIFACTS, CHILDREN, SECRET
from rlrun_operator.cluster import finalizer_removal
from rlrun_operator.config.settings import (
    ClusterDns,
    GarbageSettings,
    NamespaceQueue,
    OperatorSettings,
    QueueSettings,
    S3Settings,
    parse_settings,
)
from rlrun_operator.resources.access.run_tokens import key_secret_name
from rlrun_operator.resources.access.storage_access import grant_key_secret_name
from rlrun_server.signing.user_permissions import FOLDERS, PACKAGES

from tests.unit.chart.conftest import CHART, LOCAL, VERSION, Helm, Object, Render, Rendered

CRDS = CHART / "files" / "crds"
OF_KINDS = ("CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
"""Kinds of the objects in `files/crds/`."""
NAME_LABEL = "kubernetes.io/metadata.name"
MINIMAL: Object = {"s3": {"bucket": "artifacts", "credentials": {"existingSecret": "s3"}}}
EVERYTHING: Object = {
    **MINIMAL,
    "images": {"registry": "registry.example.com/ml/", "operator": {"digest": f"sha256:{'a' * 64}"}},
    "imagePullSecrets": [{"name": "pull"}],
    "pods": {"nodeSelector": {"pool": "system"}},
    "operator": {
        "replicas": 2,
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
        "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy"}],
        "watchNamespaces": ["one", "two"],
    },
    "runs": {"imagePullSecrets": ["pull"], "computeSizes": {"M": {"cpu": 2, "memory": "4Gi", "workers": 3}}},
    "queue": {
        "maxRuns": 100,
        "namespaces": {"team-a": {"maxRuns": 4, "weight": 2}},
        "capacity": {"nvidia.com/gpu": 64},
    },
    "models": [
        {
            "name": "qwen3-4b",
            "spec": {"id": "Qwen/Qwen3-4B", "source": f"hf://Qwen/Qwen3-4B@{'0' * 40}", "seqLen": 1048576},
        }
    ],
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prom"}}, "podMonitor": {"enabled": True}},
    "podDisruptionBudget": {"enabled": True},
    "gc": {"enabled": True, "delete": True, "olderThan": "7d"},
    "egress": {
        "enabled": True,
        "allowed": ["*.example.com"],
        "privateAddresses": ["10.1.0.0/16", "10.9.9.9", "judge.corp"],
    },
    "tinker": {"enabled": True},
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
}


@pytest.mark.parametrize("values", [MINIMAL, EVERYTHING])
def test_lint(helm: Helm, tmp_path: Path, values: Object) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    done = helm("lint", "--strict", CHART, "-f", file)
    assert done.returncode == 0, done.stdout


def of_kinds(rendered: Rendered) -> list[Object]:
    """Return CRDs with the admission policy of RLRun, without that of the operator's account."""
    found = [o for kind in OF_KINDS for o in rendered.of(kind)]
    return [o for o in found if o["metadata"]["name"] != "rlrun-operator"]


@pytest.mark.parametrize("keep", [True, False])
def test_crds_survive_the_template_unchanged(render: Render, keep: bool) -> None:
    rendered = {(o["kind"], o["metadata"]["name"]): o for o in of_kinds(render({"crds": {"keep": keep}}))}
    originals = [yaml.safe_load(p.read_text()) for p in CRDS.glob("*.yaml")]
    assert sorted(rendered) == sorted((o["kind"], o["metadata"]["name"]) for o in originals)
    for original in originals:
        found = rendered[original["kind"], original["metadata"]["name"]]
        assert found["spec"] == original["spec"]
        assert (found["metadata"].get("annotations", {}).get("helm.sh/resource-policy") == "keep") is keep


def test_crds_can_be_left_out(render: Render) -> None:
    assert of_kinds(render({"crds": {"enabled": False}})) == []


def test_local_settings_are_what_the_operator_reads(render: Render) -> None:
    settings = parse_settings(render().settings)
    assert settings.s3.bucket == "rlrun"
    assert settings.s3.endpoint == "http://s3.rlrun-system.svc:8333"
    assert settings.s3.credentials_secret.model_dump() == {"namespace": "rlrun-system", "name": "s3-credentials"}
    assert settings.images.inference.reference == "localhost/rlrun-inference-cpu:local"
    assert settings.images.trainer.pull_policy == "Never"
    assert settings.lease_namespace == "rlrun-system"
    assert settings.poll_seconds == 1
    assert settings.private_addresses == ["teacher"]


def test_gpu_settings(render: Render) -> None:
    settings = parse_settings(render(MINIMAL, base=None).settings)
    assert settings.images.inference.repository == "vllm/vllm-openai"
    assert settings.images.trainer.reference == f"rlrun-trainer:{VERSION}"
    assert settings.s3.endpoint == ""
    assert settings.compute_sizes[ComputeSize.medium].workers == 4


def test_all_settings_arrive(render: Render) -> None:
    settings = parse_settings(render(EVERYTHING, base=None).settings)
    assert settings.images.trainer.reference == f"registry.example.com/ml/rlrun-trainer:{VERSION}"
    assert settings.images.inference.reference.startswith("registry.example.com/ml/vllm/vllm-openai:")
    assert settings.image_pull_secrets == ["pull"]
    assert settings.watch_namespaces == ["one", "two"]
    assert settings.compute_sizes[ComputeSize.medium].model_dump() == {
        "cpu": "2",
        "memory": "4Gi",
        "cpu_limit": None,
        "workers": 3,
        "ephemeral_storage": "20Gi",
    }


def test_chart_and_operator_have_the_same_defaults(render: Render) -> None:
    rendered = parse_settings(render(MINIMAL, base=None).settings)
    own = OperatorSettings(s3=rendered.s3)
    sections = ("compute_sizes", "ephemeral_storage", "orchestrator", "environments", "serving", "dns")
    others = ("gpu_read_only_root_filesystem", "lease_seconds", "security_context", "termination_grace_period_seconds")
    for field in (*sections, *others):
        assert getattr(rendered, field) == getattr(own, field), field


def test_empty_values_remove_limits_of_storage(render: Render) -> None:
    values = {
        "computeSizes": {"M": {"ephemeralStorage": ""}},
        "ephemeralStorage": {"request": "", "orchestrator": "", "model": ""},
    }
    settings = parse_settings(render({"runs": values}).settings)
    assert settings.ephemeral_storage.model_dump() == {"request": None, "orchestrator": None, "model": None}
    assert settings.compute_sizes[ComputeSize.medium].ephemeral_storage is None
    assert settings.compute_sizes[ComputeSize.large].ephemeral_storage == "50Gi"


def test_a_limit_of_cpu_for_environments_arrives(render: Render) -> None:
    settings = parse_settings(render({"runs": {"computeSizes": {"M": {"cpuLimit": "4"}}}}).settings)
    assert settings.compute_sizes[ComputeSize.medium].cpu_limit == "4"
    assert settings.compute_sizes[ComputeSize.large].cpu_limit is None


def test_isolation_of_environments_and_dns_servers_arrive(render: Render) -> None:
    values = {
        "gpuReadOnlyRootFilesystem": True,
        "environments": {"hostUsers": False, "runtimeClassName": "kata"},
        "dns": {
            "namespaceLabels": {NAME_LABEL: "openshift-dns"},
            "podLabels": {"k8s-app": None, "dns": "default"},
            "cidrs": ["169.254.20.10/32", "fd00::a/128"],
            "port": 5353,
        },
    }
    settings = parse_settings(render({"runs": values}).settings)
    assert settings.gpu_read_only_root_filesystem
    assert (settings.environments.host_users, settings.environments.runtime_class_name) == (False, "kata")
    assert settings.dns.namespace_labels == {NAME_LABEL: "openshift-dns"}
    assert settings.dns.pod_labels == {"dns": "default"}
    assert settings.dns.cidrs == ["169.254.20.10/32", "fd00::a/128"]
    assert settings.dns.port == 5353


def test_shapes_of_pods_arrive(render: Render) -> None:
    shape = {
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "team", "operator": "Exists", "tolerationSeconds": 60}],
        "affinity": {"nodeAffinity": {}},
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "runtimeClassName": "kata",
        "schedulerName": "gang",
        "priorityClassName": "low",
        "labels": {"team": "rl"},
        "annotations": {"note": "true"},
        "meshInjection": "Refused",
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    assert {to_camel(field) for field in PodShape.model_fields} == shape.keys()
    settings = parse_settings(
        render({"runs": {"orchestrator": shape, "environments": shape}, "serving": shape}).settings
    )
    expected = PodShape.model_validate(shape)
    for found in settings.orchestrator, settings.environments, settings.serving:
        assert PodShape.model_validate(found.model_dump(include=set(PodShape.model_fields))) == expected


def test_settings_without_values_of_this_version_have_their_defaults(render: Render) -> None:
    """`helm upgrade --reuse-values` renders the templates with the values of the version before."""
    missing = {
        "computeSizes": {"M": {"ephemeralStorage": None}},
        "ephemeralStorage": None,
        "orchestrator": None,
        "environments": None,
        "dns": None,
        "securityContext": None,
    }
    sections = {"jobs": None, "pods": None, "tests": None, "caBundle": None, "proxy": None, "commonLabels": None}
    server = {"ingress": None, "httpRoute": None, "tls": {"certificate": None}}
    values = {"runs": missing, "operator": {"leaseSeconds": None}, "server": server, **sections}
    settings = parse_settings(render(values).settings)
    assert settings.lease_seconds == 15
    assert settings.compute_sizes[ComputeSize.medium].ephemeral_storage == "20Gi"
    assert settings.ephemeral_storage.model == "2Ti"
    assert settings.environments.host_users
    assert settings.dns.pod_labels == {"k8s-app": "kube-dns"}


def pod_templates(objects: list[Object]) -> dict[str, Object]:
    """Return the pod templates of workloads, and pods, by the name of their object."""
    found = {}
    for item in objects:
        name = item["metadata"]["name"]
        if item["kind"] == "Pod":
            found[name] = item
        elif item["kind"] in ("Deployment", "Job"):
            found[name] = item["spec"]["template"]
    return found


def pod_specs(objects: list[Object]) -> list[Object]:
    return [template["spec"] for template in pod_templates(objects).values()]


def test_every_pod_is_restricted(render: Render) -> None:
    specs = pod_specs(render(EVERYTHING).objects)
    assert len(specs) == 9, "operator, server, rlrun-tinker, egress proxy, models, uninstallation, three tests"
    for spec in specs:
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 1000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["nodeSelector"] == {"pool": "system"}
        assert spec["imagePullSecrets"] == [{"name": "pull"}]
        assert all(v["emptyDir"]["sizeLimit"] for v in spec.get("volumes", []) if "emptyDir" in v)
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]
            own = "orchestrator:local" if container["name"] == "egress-proxy" else f"operator@sha256:{'a' * 64}"
            assert container["image"] == f"registry.example.com/ml/rlrun-{own}"


def test_operator_deployment(render: Render) -> None:
    deployment = render(EVERYTHING).one("Deployment", "rlrun-operator")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 2
    assert container["command"] == ["python", "-m", "rlrun_operator"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
    assert {"name": "HTTPS_PROXY", "value": "http://proxy"} in container["env"]
    selector = deployment["spec"]["selector"]["matchLabels"].items()
    assert selector <= deployment["spec"]["template"]["metadata"]["labels"].items()
    assert deployment["metadata"]["labels"]["app.kubernetes.io/instance"] == "rlrun"


def test_new_settings_make_a_new_pod_and_nothing_else_does(render: Render) -> None:
    def template(values: Object) -> Any:
        return render(values).one("Deployment", "rlrun-operator")["spec"]["template"]

    before = template({})
    assert template({"s3": {"bucket": "another"}}) != before
    assert template({"metrics": {"serviceMonitor": {"enabled": True}}, "rbac": {"userRoles": False}}) == before


def allowed(rules: list[Object], group: str, resource: str, verb: str) -> bool:
    return any(group in r["apiGroups"] and resource in r["resources"] and verb in r["verbs"] for r in rules)


FEWER_VERBS = {
    "PersistentVolumeClaim": ("list", "create", "patch", "delete"),
    "RLRun": ("get", "list", "watch", "patch", "delete"),
    "RLModel": ("list", "watch"),
    "Namespace": ("get", "list", "watch"),
    "Node": ("get",),
    "PriorityClass": (),
    "SelfSubjectReview": (),
    "Workload": (),
    "ResourceFlavor": (),
    "WorkloadPriorityClass": (),
    "ResourceQuota": (),
    "StorageClass": (),
    "RuntimeClass": (),
    "SelfSubjectAccessReview": (),
}
"""Verbs for kinds that the operator does not make, or, as those of Kueue, only with another value; and
of Deployments, which are listed. The last four are read by the command line."""
READ_BY_NAME = ("RLRun", "RLCheckpoint", "Namespace", "Node")
"""Kinds of which the operator gets single objects. It lists the others."""


def test_operator_roles_allow_the_requests_of_the_operator_and_few_others(render: Render) -> None:
    rendered = render()
    everywhere = rendered.one("ClusterRole", "rlrun-operator")["rules"]
    rules = [*everywhere, *rendered.one("ClusterRole", "rlrun-operator-tenant")["rules"]]
    leader = rendered.one("Role", "rlrun-leader")["rules"]
    for kind in ALL.values():
        group = kind.group
        if kind.kind in ("TokenReview", "SubjectAccessReview"):
            assert not allowed(rules, group, kind.plural, "create"), "rlrun-server reviews tokens and rights"
            of_server = rendered.one("ClusterRole", "rlrun-server")["rules"]
            assert {"apiGroups": [group], "resources": [kind.plural], "verbs": ["create"]} in of_server
            for ours in (["rlruns", "rlcheckpoints", "rladapters"], ["rlmodels"]):
                assert {"apiGroups": ["rlrun.dev"], "resources": ours, "verbs": ["list", "watch"]} in of_server
            assert {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]} in of_server
            assert len(of_server) == 5
            account = {"apiGroups": [""], "resources": ["serviceaccounts"], "resourceNames": ["rlrun-user"]}
            assert rendered.one("ClusterRole", "rlrun-server-tenant")["rules"] == [
                {**account, "verbs": ["get"]},
                {**account, "resources": ["serviceaccounts/token"], "verbs": ["create"]},
            ]
        elif kind.kind == "RoleBinding":
            assert all(allowed(everywhere, group, kind.plural, verb) for verb in ("list", "create"))
            assert not any(allowed(rules, group, kind.plural, verb) for verb in ("patch", "update"))
        elif kind.kind == "Lease":
            assert all(allowed(leader, group, kind.plural, verb) for verb in ("get", "create", "update"))
            assert not allowed(rules, group, kind.plural, "get"), "leases of others are none of its business"
        elif kind.kind == "Event":
            assert allowed(rules, group, kind.plural, "create")
        elif kind.kind == "Pod":
            assert all(allowed(rules, group, "pods", verb) for verb in ("list", "watch", "patch", "delete"))
            assert not any(allowed(rules, group, "pods", verb) for verb in ("create", "update"))
            assert allowed(rules, group, "pods/log", "get")
        elif kind.kind == "Secret":
            assert all(allowed(rules, group, "secrets", verb) for verb in ("get", "create", "patch", "delete"))
            assert not any(allowed(rules, group, "secrets", verb) for verb in ("list", "watch"))
        else:
            verbs = FEWER_VERBS.get(kind.kind, ("list", "watch", "create", "patch", "delete"))
            assert all(allowed(rules, group, kind.plural, verb) for verb in verbs), kind
            assert allowed(rules, group, kind.plural, "watch") is ("watch" in verbs), kind
            assert allowed(rules, group, kind.plural, "get") is (kind.kind in READ_BY_NAME), kind
            assert not allowed(rules, group, kind.plural, "update"), kind
    for plural in ("rlruns", "rlcheckpoints", "rladapters", "rlmodels"):
        assert allowed(rules, "rlrun.dev", f"{plural}/status", "patch")
    assert allowed(rules, "rlrun.dev", "rlruns/finalizers", "update"), "needed to own children with blocking"
    assert not any("*" in r["verbs"] + r["resources"] + r["apiGroups"] for r in rules)
    assert not any(r in ("pods/exec", "roles") for rule in rules for r in rule["resources"])
    names = ["rlrun-operator-tenant", "rlrun-server-tenant"]
    assert [(r["verbs"], r["resourceNames"]) for r in rules if "clusterroles" in r["resources"]] == [(["bind"], names)]


def test_outside_of_tenants_the_operator_reads_no_secrets_and_writes_to_nothing_but_runs(render: Render) -> None:
    rules = render().one("ClusterRole", "rlrun-operator")["rules"]
    assert not any(r.startswith(("secrets", "pods/")) for rule in rules for r in rule["resources"])
    written = {(r, v) for rule in rules for r in rule["resources"] for v in rule["verbs"]} - {
        (r, v) for rule in rules for r in rule["resources"] for v in ("get", "list", "watch")
    }
    assert written == {
        ("rlruns", "patch"),
        ("rlruns/status", "patch"),
        ("rladapters/status", "patch"),
        ("rlmodels/status", "patch"),
        ("events", "create"),
        ("rolebindings", "create"),
        ("rolebindings", "delete"),
        ("clusterroles", "bind"),
    }


def test_operator_chart_and_policy_agree_about_tenants(render: Render) -> None:
    choices: list[Object] = [{}, {"operator": {"namespaceLabel": "example.com/kind=rl"}}, {"fullnameOverride": "x"}]
    for values in choices:
        rendered = render(values)
        settings = parse_settings(rendered.settings)
        (published,) = [o["data"] for o in rendered.of("ConfigMap") if o["metadata"]["namespace"] == "kube-public"]
        assert published["namespaceLabel"] == settings.namespace_label
        prefix = values.get("fullnameOverride", "rlrun")
        policy = rendered.one("ValidatingAdmissionPolicy", f"{prefix}-operator")
        text = str(policy["spec"])
        ((key, value),) = settings.tenant_labels.items()
        assert f"'{key}' in namespaceObject.metadata.labels" in text
        assert f"labels['{key}'] == '{value}'" in text
        for role in settings.tenant_roles:
            assert rendered.one("ClusterRole", role.cluster_role)
            assert f'"{role.cluster_role}":"{role.account}"' in text
            accounts = [o["metadata"]["name"] for o in rendered.of("ServiceAccount")]
            assert role.account in accounts
        binding = rendered.one("ValidatingAdmissionPolicyBinding", f"{prefix}-operator")
        assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_the_policy_names_the_keys_that_the_operator_makes(render: Render) -> None:
    rendered = render()
    settings = parse_settings(rendered.settings)
    assert settings.egress is not None
    assert settings.storage_server_certificate is not None
    assert settings.api_keys is not None
    made = {
        key_secret_name(settings.lease_name),
        grant_key_secret_name(settings.lease_name),
        settings.egress.key_secret.name,
        settings.storage_server_certificate.secret.name,
        settings.api_keys.secret.name,
    }
    policy = str(rendered.one("ValidatingAdmissionPolicy", "rlrun-operator")["spec"])
    assert all(f'"{name}"' in policy for name in made)
    read = rendered.one("Role", "rlrun-operator-secrets")["rules"][0]
    assert {*read["resourceNames"]} == {*made, settings.s3.credentials_secret.name}


@pytest.mark.parametrize("value", ["apiKeysMayWrite", "apiKeys"])
def test_without_keys_that_write_the_server_makes_no_tokens(render: Render, value: str) -> None:
    rendered = render({"users": {value: False}})
    rules = [rule for role in rendered.of("ClusterRole") for rule in role["rules"] or ()]
    assert not any("serviceaccounts/token" in rule["resources"] for rule in rules)
    server = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["containers"][0]
    assert "RLRUN_SERVER_API_KEYS_MAY_WRITE" not in [variable["name"] for variable in server["env"]]


@pytest.mark.parametrize("delete", [False, True])
def test_the_operator_collects_garbage_only_when_told_to(render: Render, delete: bool) -> None:
    assert parse_settings(render().settings).gc is None
    rendered = render({"gc": {"enabled": True, "delete": delete, "interval": "7d", "olderThan": "90m"}})
    assert parse_settings(rendered.settings).gc == GarbageSettings(interval="7d", older_than="90m", delete=delete)
    reads, tenants = (rendered.one("ClusterRole", f"rlrun-operator{suffix}")["rules"] for suffix in ("", "-tenant"))
    for kind in (*CHILDREN, *ARTIFACTS):
        assert allowed(reads, kind.group, kind.plural, "list") is (kind is not SECRET)
        assert allowed(tenants, kind.group, kind.plural, "delete")
        assert not allowed(reads, kind.group, kind.plural, "delete"), "only in namespaces of tenants"


def test_garbage_collection_knows_the_artifacts_of_all_namespaces(render: Render) -> None:
    watched = {"watchNamespaces": ["one", "two"]}
    for enabled in (False, True):
        rules = render({"gc": {"enabled": enabled}, "operator": watched}).one("ClusterRole", "rlrun-operator")["rules"]
        for kind in ARTIFACTS:
            assert allowed(rules, kind.group, kind.plural, "list") is enabled
        assert allowed(rules, "rlrun.dev", "rlruns", "list")


@pytest.mark.parametrize("value", ["schedule", "serviceAccount", "resources", "tolerations"])
def test_values_of_the_former_job_are_refused_by_name(template: Helm, value: str) -> None:
    done = template({"gc": {value: "x"}})
    assert done.returncode != 0
    assert f"additional properties '{value}' not allowed" in done.stderr


def test_all_processes_find_the_bucket_in_the_host_name(render: Render) -> None:
    rendered = render({"s3": {"addressingStyle": "virtual"}})
    assert parse_settings(rendered.settings).s3.addressing_style == "virtual"
    containers = [
        c for spec in pod_specs(rendered.of("Deployment")) for c in spec["containers"] if c["name"] == "server"
    ]
    [given] = [e["value"] for c in containers for e in c["env"] if e["name"] == "RLRUN_S3_CONNECTION"]
    assert S3Connection.model_validate_json(given).addressing_style == "virtual"


@pytest.mark.parametrize("endpoint", ["", "https://s3.example.com"])
def test_a_dotted_bucket_has_no_virtual_host_with_tls(template: Helm, endpoint: str) -> None:
    s3 = {"addressingStyle": "virtual", "bucket": "my.bucket", "endpoint": endpoint}
    done = template({"s3": s3})
    assert done.returncode != 0
    assert "s3.addressingStyle is virtual, but wildcard certificates" in done.stderr
    assert template({"s3": s3 | {"endpoint": "http://s3.example.com"}}).returncode == 0


def test_a_workload_identity_needs_no_secret(render: Render) -> None:
    credentials = {"existingSecret": "", "workloadIdentity": True}
    annotations = {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/rlrun"}
    account = {"annotations": annotations}
    rendered = render(
        {
            "s3": {"credentials": credentials},
            "serviceAccount": account,
            "server": {"serviceAccount": account},
        }
    )
    assert parse_settings(rendered.settings).s3.credentials_secret is None
    for name in ("rlrun", "rlrun-server"):
        assert rendered.one("ServiceAccount", name)["metadata"]["annotations"] == annotations
    for spec in pod_specs(rendered.objects):
        assert "AWS_ACCESS_KEY_ID" not in str(spec)
        assert "/etc/rlrun-server/s3" not in str(spec)
    with pytest.raises(AssertionError, match="set one of workloadIdentity, existingSecret and create"):
        render({"s3": {"credentials": {"existingSecret": "s3", "workloadIdentity": True}}})


def uninstall_hooks(rendered: Rendered) -> list[Object]:
    found = [o for o in rendered.objects if "post-delete" in str((o["metadata"].get("annotations") or {}).values())]
    return sorted(found, key=lambda o: int(o["metadata"]["annotations"].get("helm.sh/hook-weight", "0")))


def test_uninstallation_removes_the_finalizers_of_runs_with_an_account_of_its_own(render: Render) -> None:
    hooks = uninstall_hooks(render({"s3": {"prefix": "prod"}, "operator": {"watchNamespaces": ["one"]}}))
    kinds = [o["kind"] for o in hooks]
    assert sorted(kinds[:-1]) == ["ClusterRole", "Role", "RoleBinding", "RoleBinding", "ServiceAccount"]
    (of_runs,) = [o for o in hooks if o["kind"] == "RoleBinding" and o["roleRef"]["kind"] == "ClusterRole"]
    assert of_runs["metadata"]["namespace"] == "one", "runs of other namespaces are none of its business"
    assert "ClusterRoleBinding" in [o["kind"] for o in uninstall_hooks(render())]
    assert kinds[-1] == "Job", "Helm has deleted the operator's account and roles by then"
    policies = {o["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for o in hooks}
    assert policies == {"before-hook-creation,hook-succeeded"}, "nothing of it is left, and it can be repeated"
    job = hooks[-1]["spec"]
    (spec,) = pod_specs(hooks[-1:])
    (container,) = spec["containers"]
    assert container["command"] == ["python", "-m", "rlrun_operator.cluster.finalizer_removal"]
    options = finalizer_removal.arguments(container["args"])
    settings = parse_settings(render({"s3": {"prefix": "prod"}}).settings)
    assert (options.lease_namespace, options.lease_name) == (settings.lease_namespace, settings.lease_name)
    assert (options.bucket, options.prefix, options.namespace) == (settings.s3.bucket, "prod", ["one"])
    assert job["activeDeadlineSeconds"] < 300, "Helm's default timeout"
    assert job["activeDeadlineSeconds"] > (job["backoffLimit"] + 1) * finalizer_removal.WAIT_SECONDS
    rules = {o["kind"]: o["rules"] for o in hooks if o["kind"] in ("ClusterRole", "Role")}
    assert rules["ClusterRole"] == [{"apiGroups": ["rlrun.dev"], "resources": ["rlruns"], "verbs": ["list", "patch"]}]
    assert [r["resources"] for r in rules["Role"]] == [["leases"]]
    accounts = {o["subjects"][0]["name"] for o in hooks if o["kind"].endswith("Binding")}
    assert accounts == {spec["serviceAccountName"]}


def test_uninstallation_can_leave_the_finalizers(render: Render) -> None:
    assert uninstall_hooks(render({"uninstall": {"removeFinalizers": False}})) == []
    kinds = [o["kind"] for o in uninstall_hooks(render({"rbac": {"create": False}}))]
    assert sorted(kinds) == ["Job", "ServiceAccount"], "the account gets its permissions from elsewhere"


def test_user_roles(render: Render) -> None:
    rendered = render()
    editor, viewer = rendered.one("ClusterRole", "rlrun-editor"), rendered.one("ClusterRole", "rlrun-viewer")
    assert editor["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert editor["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert allowed(editor["rules"], "rlrun.dev", "rlruns", "create")
    assert not allowed(editor["rules"], "rlrun.dev", "rlcheckpoints", "create")
    assert not allowed(editor["rules"], "rlrun.dev", "rlruns/status", "patch")
    assert not any({"create", "patch", "delete", "update"} & set(r["verbs"]) for r in viewer["rules"])
    for resource, subresource in FOLDERS.values():
        for role in (editor, viewer):
            assert allowed(role["rules"], "rlrun.dev", f"{resource}/{subresource}", "get")
    assert all(allowed(editor["rules"], "rlrun.dev", PACKAGES, verb) for verb in ("get", "create", "delete"))
    assert allowed(viewer["rules"], "rlrun.dev", PACKAGES, "get")
    assert render({"rbac": {"userRoles": False}, "uninstall": {"removeFinalizers": False}}).of("ClusterRole") == [
        rendered.one("ClusterRole", name)
        for name in ("rlrun-operator", "rlrun-operator-tenant", "rlrun-server", "rlrun-server-tenant")
    ]


def test_users_find_the_server_and_reach_that_service_only(render: Render) -> None:
    rendered = render()
    found = rendered.one("ConfigMap", "rlrun-server")
    assert found["metadata"]["namespace"] == "kube-public"
    assert found["data"].pop("namespaceLabel") == "rlrun.dev/tenant=true"
    assert found["data"] == {"url": "", "service": "rlrun-system/https:rlrun-server:https"}
    roles = {
        o["metadata"]["namespace"]: o["rules"] for o in rendered.of("Role") if "server-user" in o["metadata"]["name"]
    }
    assert roles["kube-public"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["rlrun-server"], "verbs": ["get"]}
    ]
    assert roles["rlrun-system"] == [
        {
            "apiGroups": [""],
            "resources": ["services/proxy"],
            "resourceNames": ["https:rlrun-server:https"],
            "verbs": ["get", "create"],
        }
    ]
    others = render({"rbac": {"userRoles": False}}).of("Role")
    assert "rlrun-server-user" not in [o["metadata"]["name"] for o in others]


@pytest.mark.parametrize(
    "values",
    [
        {"users": {"serverUrl": "https://rlrun.example.com"}},
        {"server": {"ingress": {"enabled": True, "host": "rlrun.example.com"}}},
        {"server": {"httpRoute": {"enabled": True, "parentRefs": [{"name": "a"}], "hostnames": ["rlrun.example.com"]}}},
    ],
)
def test_where_the_server_has_a_url_no_user_reaches_it_past_its_network_policy(render: Render, values: Object) -> None:
    rendered = render(values)
    assert rendered.one("ConfigMap", "rlrun-server")["data"]["url"] == "https://rlrun.example.com"
    granted = [r for o in rendered.objects for rule in o.get("rules", ()) for r in rule.get("resources", ())]
    assert "services/proxy" not in granted
    readers = [o for o in rendered.of("Role") if o["metadata"]["name"] == "rlrun-server-user"]
    assert [o["metadata"]["namespace"] for o in readers] == ["kube-public"]


def test_api_keys_change_nothing_unless_the_platform_says_so(render: Render) -> None:
    rendered = render(MINIMAL, base=None)
    rules = [rule for role in rendered.of("ClusterRole") for rule in role["rules"] or ()]
    assert not any("serviceaccounts/token" in rule["resources"] for rule in rules)


def test_operator_and_server_have_network_policies_that_close_unused_ports(render: Render) -> None:
    rendered = render(MINIMAL, base=None)
    policies = {o["metadata"]["name"]: o["spec"] for o in rendered.of("NetworkPolicy")}
    assert policies.keys() == {"rlrun-operator", "rlrun-server"}
    for name, spec in policies.items():
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        pod = rendered.one("Deployment", name)["spec"]["template"]
        assert spec["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        (container,) = pod["spec"]["containers"]
        opened = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
        assert opened == {port["name"] for port in container["ports"]}
        # The API server, S3 and the pods of runs may be anywhere.
        assert {} in spec["egress"]
    assert render({**MINIMAL, "networkPolicy": {"enabled": False}}, base=None).of("NetworkPolicy") == []


@pytest.mark.parametrize(
    ("tls", "url", "secret", "creates"),
    [
        ({}, "https://rlrun-server.rlrun-system.svc:8443", "rlrun-operator-server-certificate", True),
        ({"existingSecret": "ours"}, "https://rlrun-server.rlrun-system.svc:8443", "ours", False),
        ({"enabled": False}, "http://rlrun-server.rlrun-system.svc:8080", None, False),
    ],
)
def test_the_server_has_a_certificate(
    render: Render, tls: dict[str, object], url: str, secret: str | None, creates: bool
) -> None:
    rendered = render({"server": {"tls": tls}, "networkPolicy": {"enabled": True}})
    settings = parse_settings(rendered.settings)
    assert settings.storage_server == url
    certificate = settings.storage_server_certificate
    assert (certificate and certificate.secret.name) == secret
    assert bool(certificate and certificate.create) == creates
    (container,) = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["containers"]
    port = "http" if secret is None else "https"
    assert {p["name"]: p["containerPort"] for p in container["ports"]}[port] == urlsplit(url).port
    (service_port,) = rendered.one("Service", "rlrun-server")["spec"]["ports"]
    assert (service_port["name"], service_port["port"], service_port["targetPort"]) == (port, urlsplit(url).port, port)
    assert rendered.one("NetworkPolicy", "rlrun-server")["spec"]["ingress"][0]["ports"][0]["port"] == port
    volumes = {v["name"]: v for v in rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["volumes"]}
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    folder = {v["name"]: v.get("value") for v in container["env"]}.get("RLRUN_SERVER_TLS")
    assert mounts.get("tls") == folder
    assert volumes.get("tls", {}).get("secret", {}).get("secretName") == secret


@pytest.mark.parametrize("is_on", [True, False])
def test_the_page_can_be_turned_off(render: Render, is_on: bool) -> None:
    rendered = render({"server": {"page": is_on}})
    (container,) = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["containers"]
    assert {"name": "RLRUN_SERVER_PAGE", "value": str(is_on).lower()} in container["env"]


def test_the_server_uses_one_secret_of_its_namespace_for_api_keys(render: Render) -> None:
    with_keys, without = render(), render({"users": {"apiKeys": False}})
    name = "rlrun-server-api-keys"
    rules = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get", "update"]}]
    assert with_keys.one("Role", "rlrun-server")["rules"] == rules
    for rendered, enabled in ((with_keys, True), (without, False)):
        assert name not in [o["metadata"]["name"] for o in rendered.of("Secret")], "--force would empty it"
        settings = parse_settings(rendered.settings).api_keys
        assert settings is not None
        assert (settings.secret.namespace, settings.secret.name) == ("rlrun-system", name)
        assert settings.enabled is enabled
    assert "rlrun-server" not in [o["metadata"]["name"] for o in without.of("Role")]
    assert not without.one("ClusterRole", "rlrun-server-tenant")["rules"]
    for rendered, place in ((with_keys, f"rlrun-system/{name}"), (without, None)):
        (container,) = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["containers"]
        variables = {v["name"]: v.get("value") for v in container["env"]}
        assert variables.get("RLRUN_SERVER_API_KEY_SECRET") == place


def test_operator_and_server_of_some_namespaces_have_their_rights_there_only(render: Render) -> None:
    names = ["one", "two"]
    rendered = render({"kueue": {"enabled": True}, "operator": {"watchNamespaces": names}})
    cluster = rendered.one("ClusterRole", "rlrun-operator")["rules"]
    for resource in ("secrets", "deployments", "jobs", "pods", "pods/log", "configmaps", "rolebindings", "workloads"):
        assert not any(resource in rule["resources"] for rule in cluster), resource
    assert [rule["verbs"] for rule in cluster if "rlruns" in rule["resources"]] == [["list"]]
    everywhere = render({"kueue": {"enabled": True}}).one("ClusterRole", "rlrun-operator-tenant")["rules"]
    assert rendered.one("ClusterRole", "rlrun-operator-tenant")["rules"] == everywhere
    of_server = rendered.one("ClusterRole", "rlrun-server")["rules"]
    assert not any({"rlruns", "serviceaccounts", "serviceaccounts/token"} & {*rule["resources"]} for rule in of_server)
    assert {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": names, "verbs": ["get"]} in of_server
    in_tenants = rendered.one("ClusterRole", "rlrun-server-tenant")["rules"]
    followed = ("rlruns", "rlcheckpoints", "rladapters")
    assert all(allowed(in_tenants, "rlrun.dev", plural, "watch") for plural in followed)
    for role, account in (("rlrun-operator-tenant", "rlrun"), ("rlrun-server-tenant", "rlrun-server")):
        bindings = [b for b in rendered.of("RoleBinding") if b["metadata"]["name"] == role]
        assert [b["metadata"]["namespace"] for b in bindings] == names
        assert {(b["roleRef"]["kind"], b["roleRef"]["name"]) for b in bindings} == {("ClusterRole", role)}
        assert {b["subjects"][0]["name"] for b in bindings} == {account}
    (container,) = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["containers"]
    variables = {v["name"]: v.get("value") for v in container["env"]}
    assert json.loads(variables["RLRUN_SERVER_NAMESPACES"]) == names
    assert parse_settings(rendered.settings).tenant_labels == {}
    policy = rendered.one("ValidatingAdmissionPolicy", "rlrun-operator")["spec"]
    (tenant,) = [v["expression"] for v in policy["variables"] if v["name"] == "isTenant"]
    assert tenant == 'variables.place in ["one","two"]'


@pytest.mark.parametrize("namespaces", [[], ["one", "two"]])
def test_the_operator_creates_pods_in_its_own_namespace_only(render: Render, namespaces: list[str]) -> None:
    rendered = render({**MINIMAL, "operator": {"watchNamespaces": namespaces}}, base=None)
    roles = [o for o in rendered.objects if o["kind"] in ("Role", "ClusterRole")]
    creators = [
        r for r in roles if "egress" not in r["metadata"]["name"] and allowed(r["rules"] or [], "", "pods", "create")
    ]
    assert [(r["kind"], r["metadata"]["name"], r["metadata"]["namespace"]) for r in creators] == [
        ("Role", "rlrun-leader", "rlrun-system")
    ]


def _is_named(obj: Any, name: str) -> bool:
    return bool(obj["metadata"]["name"] == name)


def test_no_rights_without_rbac(render: Render) -> None:
    rendered = render({"rbac": {"create": False, "userRoles": False}})
    assert not any(rendered.of(kind) for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"))


def test_catalogue(render: Render) -> None:
    rendered = render(EVERYTHING)
    job = rendered.one("Job", "rlrun-models")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    (model,) = json.loads(rendered.one("ConfigMap", "rlrun-models")["data"]["models.json"])
    assert (model["kind"], model["metadata"]["name"]) == ("RLModel", "qwen3-4b")
    assert model["spec"] == {"id": "Qwen/Qwen3-4B", "source": f"hf://Qwen/Qwen3-4B@{'0' * 40}", "seqLen": 1048576}
    script = rendered.one("ConfigMap", "rlrun-models")["data"]["apply_models.py"]
    assert script.strip() == (CHART / "files" / "apply_models.py").read_text().strip()
    assert "rlrun-models" not in [job["metadata"]["name"] for job in render().of("Job")]


SECRETS = {"name": "secrets", "singularName": "secret", "namespaced": True, "kind": "Secret", "verbs": ["get"]}


@contextmanager
def serving_models(*models: Object) -> Iterator[list[str]]:
    """Yield the options for `helm template` of an upgrade of a cluster with these RLModels."""
    kind = {"name": "rlmodels", "singularName": "rlmodel", "namespaced": False, "kind": "RLModel", "verbs": ["list"]}
    version = "rlrun.dev/v1alpha1"
    items = [{"apiVersion": version, "kind": "RLModel", "metadata": model} for model in models]
    answers = {
        f"/apis/{version}": {"kind": "APIResourceList", "groupVersion": version, "resources": [kind]},
        f"/apis/{version}/rlmodels": {"kind": "RLModelList", "apiVersion": version, "items": items},
        "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": [SECRETS]},
    }
    missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(urlsplit(self.path).path, missing)
            content = json.dumps(answer).encode()
            self.send_response(answer.get("code", 200))
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        known = ["--api-versions", f"{version}/RLModel"]
        yield ["--is-upgrade", "--dry-run=server", "--kube-apiserver", url, *known]
        server.shutdown()


def test_an_upgrade_deletes_the_last_models_of_the_catalogue(render: Render) -> None:
    with serving_models({"name": "one", "labels": {"rlrun.dev/catalogue-of": "rlrun"}}) as upgrade:
        rendered = render(None, *upgrade)
        without_rights = render({"rbac": {"create": False}}, *upgrade)
    assert rendered.one("Job", "rlrun-models")
    assert json.loads(rendered.one("ConfigMap", "rlrun-models")["data"]["models.json"]) == []
    assert not [role for role in without_rights.of("ClusterRole") if _is_named(role, "rlrun-models")]


def test_an_upgrade_without_a_model_of_the_catalogue_has_no_job_for_it(render: Render) -> None:
    of_another = {"name": "two", "labels": {"rlrun.dev/catalogue-of": "other"}}
    with serving_models({"name": "by-hand"}, of_another) as upgrade:
        rendered = render(None, *upgrade)
    for objects in (rendered.objects, render(None, "--is-upgrade").objects):
        assert not [obj for obj in objects if _is_named(obj, "rlrun-models")]


def test_a_variable_from_a_secret_reaches_the_model(render: Render) -> None:
    env = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}}]
    spec = {"id": "a/b", "source": f"hf://a/b@{'0' * 40}", "trainer": {"env": env}, "inference": {"env": env}}
    rendered = render({"models": [{"name": "one", "spec": spec}]})
    (model,) = json.loads(rendered.one("ConfigMap", "rlrun-models")["data"]["models.json"])
    assert model["spec"] == spec
    assert RLModel.from_object(model).spec.trainer.env[0].value_from is not None


def test_credentials_from_values(render: Render) -> None:
    values = {
        "s3": {"credentials": {"create": True, "existingSecret": "", "accessKeyId": "id", "secretAccessKey": "k"}}
    }
    rendered = render(values)
    secret = rendered.one("Secret", "rlrun-s3")
    assert secret["stringData"]["AWS_ACCESS_KEY_ID"] == "id"
    assert parse_settings(rendered.settings).s3.credentials_secret.name == secret["metadata"]["name"]
    assert "rlrun-s3" not in [o["metadata"]["name"] for o in render().of("Secret")]


def test_options(render: Render) -> None:
    required = {"egress": {"enabled": False}, "tinker": {"enabled": False}}
    everything, plain = render({**EVERYTHING, **required}), render(required)
    for kind, of_both in (("ServiceMonitor", 1), ("PodMonitor", 2), ("PodDisruptionBudget", 2)):
        assert len(everything.of(kind)) == of_both, kind
        assert plain.of(kind) == []
    for service, deployment in (("rlrun-metrics", "rlrun-operator"), ("rlrun-server", "rlrun-server")):
        labels = plain.one("Deployment", deployment)["spec"]["template"]["metadata"]["labels"]
        assert plain.one("Service", service)["spec"]["selector"].items() <= labels.items()


def test_names_follow_the_release(render: Render) -> None:
    assert render(release="prod").one("Deployment", "prod-rlrun-operator")
    assert render({"fullnameOverride": "x"}).one("Deployment", "x-operator")
    rendered = render(EVERYTHING, release="prod")
    assert rendered.one("Pod", "prod-rlrun-test-readyz")["spec"]["containers"][0]["args"] == [
        f"http://{rendered.one('Service', name)['metadata']['name']}.rlrun-system.svc:8080/{path}"
        for name, path in (
            ("prod-rlrun-metrics", "readyz"),
            ("prod-rlrun-server-metrics", "storez"),
            ("prod-rlrun-tinker-metrics", "readyz"),
        )
    ]


BAD: list[tuple[Object, str]] = [
    ({"s3": {"bucket": "A_b"}}, "/s3/bucket"),
    ({"s3": {"endpoint": "s3.local"}}, "/s3/endpoint"),
    ({"s3": {"prefix": "/x"}}, "/s3/prefix"),
    ({"s3": {"bukket": "x"}}, "bukket"),
    ({"s3": {"addressingStyle": "auto"}}, "/s3/addressingStyle"),
    ({"nonsense": 1}, "nonsense"),
    ({"operator": {"replicas": -1}}, "/operator/replicas"),
    ({"operator": {"replicas": "2"}}, "/operator/replicas"),
    ({"operator": {"pollSeconds": 0}}, "/operator/pollSeconds"),
    ({"operator": {"logLevel": "LOUD"}}, "/operator/logLevel"),
    ({"operator": {"resources": {"limits": {"memory": "1 GB"}}}}, "/operator/resources/limits/memory"),
    ({"operator": {"watchNamespaces": ["A"]}}, "/operator/watchNamespaces/0"),
    ({"operator": {"tolerations": [{"effect": "Never"}]}}, "/operator/tolerations/0/effect"),
    ({"images": {"trainer": {"pullPolicy": "Sometimes"}}}, "/images/trainer/pullPolicy"),
    ({"images": {"trainer": {"repository": "a:b"}}}, "/images/trainer/repository"),
    ({"images": {"operator": {"digest": "abc"}}}, "/images/operator/digest"),
    ({"imagePullSecrets": ["x"]}, "/imagePullSecrets/0"),
    ({"runs": {"computeSizes": {"XL": {"cpu": 1, "memory": "1Gi", "workers": 1}}}}, "XL"),
    ({"runs": {"computeSizes": {"S": {"workers": 0}}}}, "/runs/computeSizes/S/workers"),
    ({"runs": {"shmSize": "lots"}}, "/runs/shmSize"),
    ({"runs": {"gpuReadOnlyRootFilesystem": "no"}}, "/runs/gpuReadOnlyRootFilesystem"),
    ({"runs": {"computeSizes": {"S": {"ephemeralStorage": "lots"}}}}, "/runs/computeSizes/S/ephemeralStorage"),
    ({"runs": {"ephemeralStorage": {"model": "lots"}}}, "/runs/ephemeralStorage/model"),
    ({"runs": {"ephemeralStorage": {"trainer": "1Ti"}}}, "trainer"),
    ({"runs": {"terminationGracePeriodSeconds": {"trainer": 5}}}, "/runs/terminationGracePeriodSeconds/trainer"),
    ({"runs": {"terminationGracePeriodSeconds": {"proxy": 5}}}, "proxy"),
    ({"runs": {"environments": {"hostUsers": "no"}}}, "/runs/environments/hostUsers"),
    ({"runs": {"environments": {"runtimeClassName": "G Visor"}}}, "/runs/environments/runtimeClassName"),
    ({"runs": {"orchestrator": {"volumes": [{"emptyDir": {}}]}}}, "/runs/orchestrator/volumes/0"),
    ({"runs": {"orchestrator": {"image": "a"}}}, "/runs/orchestrator"),
    ({"runs": {"environments": {"meshInjection": "No"}}}, "/runs/environments/meshInjection"),
    ({"serving": {"tolerations": [{"effect": "Never"}]}}, "/serving/tolerations/0/effect"),
    ({"runs": {"dns": {"cidrs": ["169.254.20.10"]}}}, "/runs/dns/cidrs/0"),
    ({"runs": {"dns": {"namespaceLabels": None}}}, "namespaceLabels"),
    ({"runs": {"dns": {"namespaceLabels": {NAME_LABEL: None}}}}, "/runs/dns/namespaceLabels"),
    ({"runs": {"defaults": {"checkpointInterval": 0}}}, "/runs/defaults/checkpointInterval"),
    ({"models": [{"name": "x", "spec": {"id": "a/b"}}]}, "source"),
    ({"models": [{"name": "X", "spec": {"id": "a/b", "source": f"hf://a/b@{'0' * 40}"}}]}, "/models/0/name"),
    ({"models": [{"name": "x", "spec": {"id": "a/b", "source": "/disk"}}]}, "/models/0/spec/source"),
    ({"models": [{"name": "x", "spec": {"id": "a/b", "source": "hf://a/b"}}]}, "/models/0/spec/source"),
    ({"egress": {"allowed": ["api.example.com:65536"]}}, "/egress/allowed/0"),
    ({"caBundle": {"pem": "company-ca.crt"}}, "/caBundle/pem"),
    ({"caBundle": {"configMap": {"name": "A b"}}}, "/caBundle/configMap/name"),
    ({"proxy": {"httpsProxy": "http://user:password@proxy:3128"}}, "/proxy/httpsProxy"),
    ({"proxy": {"noProxy": ["a,b"]}}, "/proxy/noProxy/0"),
    ({"queue": {"capacity": {"cpu": "0"}}}, "/queue/capacity/cpu"),
    ({"queue": {"capacity": {"a b": 1}}}, "/queue/capacity"),
    ({"gc": {"interval": "0h"}}, "/gc/interval"),
    ({"gc": {"olderThan": "1w"}}, "/gc/olderThan"),
    ({"crds": {"keep": "yes"}}, "/crds/keep"),
    ({"uninstall": {"removeFinalizers": "no"}}, "/uninstall/removeFinalizers"),
    ({"metrics": {"service": {"port": 0}}}, "/metrics/service/port"),
    ({"metrics": {"podMonitor": {"interval": "often"}}}, "/metrics/podMonitor/interval"),
    ({"podDisruptionBudget": {"maxUnavailable": "one"}}, "/podDisruptionBudget/maxUnavailable"),
]


@pytest.mark.parametrize(("values", "field"), BAD, ids=[field for _, field in BAD])
def test_bad_values_are_refused_by_name(template: Helm, values: Object, field: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert field in done.stderr


@pytest.mark.parametrize(
    ("values", "base", "said"),
    [
        ({}, None, "s3.bucket is required"),
        ({"s3": {"bucket": "artifacts"}}, None, "s3.credentials.existingSecret"),
        ({"s3": {"credentials": {"create": True, "accessKeyId": "x"}}}, LOCAL, "s3.credentials.secretAccessKey"),
        ({"serviceAccount": {"create": False}}, LOCAL, "serviceAccount.name"),
        (
            {"server": {"allowFrom": [{"namespaceSelector": {}}]}, "networkPolicy": {"enabled": False}},
            LOCAL,
            "server.allowFrom needs networkPolicy.enabled",
        ),
    ],
)
def test_unguessable_answers_are_prompted_for(template: Helm, values: Object, base: Path | None, said: str) -> None:
    done = template(values, base=base)
    assert done.returncode != 0
    assert said in done.stderr


def test_every_value_is_in_the_schema() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def walk(value: Any, node: Object, path: str) -> None:
        while "allOf" in node or "$ref" in node:
            reference = node.get("$ref") or node["allOf"][0]["$ref"]
            node = reduce(lambda part, key: part[key], reference.split("/")[1:], schema)
        if isinstance(value, dict) and "properties" in node:
            for key, below in value.items():
                assert key in node["properties"], f"{path}.{key} is not in values.schema.json"
                walk(below, node["properties"][key], f"{path}.{key}")

    walk(values, schema, "")


def test_labels_of_monitors_replace_those_of_all_objects(render: Render) -> None:
    metrics = {
        "serviceMonitor": {"enabled": True, "labels": {"release": "own"}},
        "podMonitor": {"enabled": True, "labels": {"release": "own"}},
        "alerts": {"enabled": True, "labels": {"release": "own"}},
        "dashboards": {"enabled": True, "labels": {"release": "own"}},
    }
    done = render({**MINIMAL, "commonLabels": {"release": "all"}, "metrics": metrics}, base=None)
    kinds = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
    monitors = [o for o in done.objects if o["kind"] in kinds or "dashboard" in o["metadata"]["name"]]
    assert len(monitors) == 7
    assert {o["metadata"]["labels"]["release"] for o in monitors} == {"own"}


def test_services_have_both_families_of_addresses_where_the_cluster_does(render: Render) -> None:
    services = render(EVERYTHING, base=None).of("Service")
    assert len(services) == 7
    assert {s["spec"].get("ipFamilyPolicy") for s in services} == {"PreferDualStack"}


def test_the_operator_lists_events_and_does_not_watch_them(render: Render) -> None:
    for values in (MINIMAL, {**MINIMAL, "operator": {"watchNamespaces": ["team"]}}):
        names = ("rlrun-operator", "rlrun-operator-tenant")
        roles = [render(values, base=None).one("ClusterRole", name) for name in names]
        rules = [rule for role in roles for rule in role["rules"]]
        verbs = {verb for rule in rules if rule["resources"] == ["events"] for verb in rule["verbs"]}
        assert verbs == {"create", "list"}


COMMIT = "0123456789abcdef0123456789abcdef01234567"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
LONG = "a" * 1100
PrivateAddress = Annotated[str, AfterValidator(lambda value: AddressRules.parse([value]))]
ADDRESSES = [
    *("teacher", "Teacher.models.svc.", "*.models.svc", "te*er.models.svc", "a_b.svc", "-a.svc", "a-.svc", "*", "a.*"),
    *("", ".", "a..b", "http://a.svc", "a.svc:80", "a,b", "a b", " a", "127.1", "a.1", "0x7f.0x1", "10.*", "1a"),
    *("10.1.2.3", "10.1.2.3.", "256.1.2.3", "01.2.3.4", "10.1.2.3/32", "10.0.0.1/8", "10.0.0.0/8", "10.0.0.0/33"),
    *("10.0.0.0/08", "10.0.0.0/255.0.0.0", "0.0.0.0/0", "127.0.0.1", "127.0.0.1/32", "127.0.0.0/8", "127.1.2.3/31"),
    *("126.0.0.0/7", "0.0.0.0/8", "0.0.0.0/7", "169.254.1.1", "169.254.0.0/16", "169.254.1.0/24", "169.252.0.0/14"),
    *("224.0.0.0/4", "239.1.0.0/16", "224.0.0.0/3", "240.0.0.0/4", "100.100.100.200", "255.255.255.255"),
    *("fd00::/8", "fd00::1/8", "::/0", "::1", "::1/128", "::", "fe80::1", "fe80::/10", "fe80::/9", "FEBF::/64"),
    *("fec0::/10", "ff02::1", "ff00::/8", "ff00::/7", "ff02::/16", "fd00:ec2::254", "fd00:ec2::/32", "fd00:0ec2::/48"),
    *("fd00:ec2::/31", "fd20:ce::254", "fd20:ce::/64", "fe80::1%eth0", "::ffff:10.0.0.1", "1:2:3:4:5:6:7:8", "1:2:3"),
    *("fd00:::1", "2001:db8::/129", "2001:db8::/32", "64:ff9b::10.0.0.1", "::1.2.3.4", "::10.0.0.0/104"),
]
RULES: list[tuple[str, Callable[[str], Any], Callable[[str], Any], list[str]]] = [
    (
        "models/[]/spec/source",
        str,
        lambda value: RLModelSpec(id="a/b", source=value),
        ["hf://a/b", f"hf://a/b@{COMMIT}", "hf://a/b@main", f"hf://a/b@{COMMIT[1:]}", f"hf://a/b@{COMMIT}0",
         f"hf://a/b@{COMMIT.upper()}", f"hf://b@{COMMIT}", f"hf://a/b/c@{COMMIT}", f"hf://-a/b@{COMMIT}", "hf:///",
         "s3://bucket", "s3://bucket/a", "s3:///a", "s3://b c", "pvc://claim/a", "pvc://c",
         f"oci://r/a@{DIGEST}", f"oci://r:5000/a/b@{DIGEST}/c/d", "oci://r/a:1",
         f"oci://a@{DIGEST}", f"oci://r/a@{DIGEST[:-1]}", f"oci://r/a@{DIGEST}/", f"oci://r/A@{DIGEST}",
         "file://a/b", "/disk",
         f"s3://{LONG}", "s3://", "s3://b/c d"],
    ),
    (
        "models/[]/spec/id",
        str,
        TypeAdapter(ModelId).validate_python,
        ["a", "a/b", "Qwen/Qwen3-4B", "a/b/c", "/a", "", "-a", "a" * 200, "a" * 201, "a b"],
    ),
    (
        "egress/allowed/[]",
        str,
        TypeAdapter(EgressHost).validate_python,
        ["api.example.com", "*.example.com", "a.b:1", "a.b:65535", "a.b:65536", "a.b:99999", "a.b:0", "a.b:", "a",
         "A.b", "http://a.b", "*.b", "a.*", f"{'a.' * 127}abcdef", f"{'a.' * 128}abcdef"],
    ),
    (
        "runs/dns/cidrs/[]",
        str,
        lambda value: ClusterDns(cidrs=[value]),
        ["169.254.20.10/32", "10.0.0.0/8", "0.0.0.0/0", "256.0.0.0/8", "10.0.0.0/33", "10.0.0/8", "10.0.0.0",
         "fd00::/8", "::/0", "fd00::1/128", "fd00::/129", "1/8", "a/8", "01.0.0.0/8", "10.0.0.1/8", "fd00::1/8",
         "10.0.0.0/08", "10.0.0.0/255.0.0.0", "fd00:::1/64", "12345::/16", "1:2/8", ":/8", "fe80::%1/64", "10.0.0.0/",
         "1:2:3:4:5:6:7:8/128", "1:2:3:4:5:6:7:8:9/128", "1:2:3:4:5:6:7::/112", "::2:3:4:5:6:7:8/128", "1::8/1",
         "1:2:3:4::5:6:7:8/128", "::1.2.3.4/128", "1:2:3:4:5:6:1.2.3.4/128", "1:2:3:4:5::1.2.3.4/128",
         "1::5:1.2.3.4/128", "1:2:3:4:5:6:7:1.2.3.4/128", " 10.0.0.0/8", "10.0.0.0/8.", "::1::/16",
         "::ffff:10.0.0.0/104"],
    ),
    ("runs/privateAddresses/[]", str, TypeAdapter(PrivateAddress).validate_python, ADDRESSES),
    ("egress/privateAddresses/[]", str, TypeAdapter(PrivateAddress).validate_python, ADDRESSES),
    (
        "queue/capacity",
        lambda value: {"cpu": value},
        lambda value: QueueSettings(capacity={"cpu": value}),
        ["1", "500m", "0", "-1", "0.0", ".0", "0Gi", "0e3", "+0", "+1", "0.5", ".5", "1e3", "05", "", "lots"],
    ),
    (
        "queue/capacity",
        lambda value: {value: "1"},
        lambda value: QueueSettings(capacity={value: "1"}),
        ["cpu", "nvidia.com/gpu", "a b", "", "a/b/c", "A.com/gpu", "-cpu"],
    ),
    (
        "queue/namespaces",
        lambda value: {value: {}},
        lambda value: QueueSettings(namespaces={value: NamespaceQueue()}),
        ["team-a", "Team", "-a", "a_b", "", "a", "a" * 63, "a" * 64, "a.b", "a-"],
    ),
    (
        "runs/secretLabel",
        str,
        lambda value: OperatorSettings(s3=S3Settings(bucket="abc"), secret_label=value),
        ["", "a", "a=b", "example.com/a=b", "a=b=c", "a b", "="],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("place", "write", "read", "values"), RULES, ids=[place for place, *_ in RULES])
def test_chart_and_operator_accept_the_same_values(
    place: str, write: Callable[[str], Any], read: Callable[[str], Any], values: list[str]
) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    node = schema
    for part in place.split("/"):
        node = node["items"] if part == "[]" else node["properties"][part]
    validator = Draft7Validator({**node, "definitions": schema["definitions"]})

    def reads(value: str) -> bool:
        try:
            read(value)
        except ValidationError:
            return False
        return True

    written = {value[:60]: validator.is_valid(write(value)) for value in values}
    assert written == {value[:60]: reads(value) for value in values}
    assert set(written.values()) == {True, False}
