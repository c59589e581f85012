"""All pods of chart and runs under OpenShift's constraint restricted-v2, which a policy of the API server plays."""

import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client
from kubernetes.client.exceptions import ApiException
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.protocol.serving import DesiredAdapters
from rlrun_operator.config.settings import OperatorSettings, parse_settings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.children import children
from rlrun_operator.resources.platform import resolve
from rlrun_operator.resources.serving_pool import PoolCredentials, PoolIdentity, pool_children

from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.apiserver.rlrun_operator.test_children import FULL_MODEL, FULL_RUN, MODEL, RUN
from tests.support.security_constraints import ANNOTATIONS, policy
from tests.unit.chart.conftest import CHART, KUBERNETES
from tests.unit.chart.test_pods import ALL
from tests.unit.chart.test_render import pod_templates

Obj = dict[str, Any]
CONSTRAINT = yaml.safe_load((Path(__file__).parents[2] / "fixtures" / "restricted-v2.yaml").read_text())
OPENSHIFT = CHART / "values-openshift.yaml"
WAIT_SECONDS = 60
POD: Obj = {"containers": [{"name": "a", "image": "a", "securityContext": {"allowPrivilegeEscalation": False}}]}


@pytest.fixture(scope="module")
def namespace(api: client.ApiClient) -> Iterator[str]:
    """A namespace with the annotations of OpenShift, where the constraint is in force."""
    name = f"openshift-{uuid.uuid4().hex[:8]}"
    labels = {"rlrun.dev/constraint": name}
    rules = client.AdmissionregistrationV1Api(api)
    made, binding = policy(CONSTRAINT, name, labels)
    rules.create_validating_admission_policy(made)
    rules.create_validating_admission_policy_binding(binding)
    core = client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": name, "labels": labels, "annotations": ANNOTATIONS}})
    deadline = time.monotonic() + WAIT_SECONDS
    while not problems(api, name, {**POD, "hostNetwork": True}):
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.2)
    yield name
    rules.delete_validating_admission_policy_binding(name)
    rules.delete_validating_admission_policy(name)


def problems(api: client.ApiClient, namespace: str, spec: Obj) -> str:
    """Return why the API server refuses the pod, or an empty text."""
    pod = {"metadata": {"generateName": "pod-"}, "spec": {**spec, "priorityClassName": None}}
    try:
        client.CoreV1Api(api).create_namespaced_pod(namespace, pod, dry_run="All")
    except ApiException as error:
        return str(error.body)
    return ""


def chart(*files: Path) -> list[Obj]:
    """Return the objects of the chart with all its workloads, and these values last."""
    with tempfile.TemporaryDirectory() as home:
        own = Path(home) / "values.yaml"
        own.write_text(yaml.safe_dump(ALL))
        layers = [part for file in (own, *files) for part in ("-f", str(file))]
        command = [ensure_program("helm", paths()), "template", "rlrun", CHART, "--kube-version", KUBERNETES, *layers]
        done = subprocess.run(
            command,
            env={"HOME": home, "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]


def pods(objects: list[Obj], namespace: str) -> dict[str, Obj]:
    """Return the specs of all pods: of the chart, and of runs and a serving pool with its settings."""
    (text,) = [o["data"]["settings.yaml"] for o in objects if o["metadata"]["name"] == "rlrun-settings"]
    settings = parse_settings(text)
    found = {name: template["spec"] for name, template in pod_templates(objects).items()}
    models = {"s3": MODEL, "hub": {**MODEL, "source": f"hf://a/b@{'0' * 40}"}, "claim": FULL_MODEL}
    for name, model in models.items():
        run = FULL_RUN if name == "claim" else RUN
        for child in run_children(settings, namespace, name, run, model):
            if child["kind"] in ("ReplicaSet", "Job"):
                found[f"{name}/{child['metadata']['name']}"] = child["spec"]["template"]["spec"]
    for child in pool(settings, namespace):
        if child["kind"] == "Deployment":
            found[f"pool/{child['metadata']['name']}"] = child["spec"]["template"]["spec"]
    return found


def run_children(settings: OperatorSettings, namespace: str, name: str, run: Obj, model: Obj) -> list[Obj]:
    identity = RunIdentity(namespace, name, "uid-1", 1, 1)
    resolved = resolve(identity, settings, RLRunSpec.model_validate(run), RLModelSpec.model_validate(model), None)
    return children(identity, settings, resolved, b"a key that signs grants")


def pool(settings: OperatorSettings, namespace: str) -> list[Obj]:
    model = RLModelSpec.model_validate(MODEL)
    identity = PoolIdentity(namespace, model.id)
    storage = StorageAccess(settings, b"k" * 32, identity.namespace, identity.name)
    keys = PoolCredentials("token", "key", "server")
    return pool_children(identity, settings, model, DesiredAdapters(base=model.id, adapters=[]), storage, keys)


def test_every_pod_is_admitted_with_the_values_for_openshift(api: client.ApiClient, namespace: str) -> None:
    found = pods(chart(OPENSHIFT), namespace)
    assert len(found) > 20
    assert {name: text for name, spec in found.items() if (text := problems(api, namespace, spec))} == {}


def test_without_these_values_every_pod_is_refused_for_its_user_and_its_group(
    api: client.ApiClient, namespace: str
) -> None:
    for name, spec in pods(chart(), namespace).items():
        assert "runAsUser of the pod is not in the range of the namespace" in problems(api, namespace, spec), name
        own = {key: value for key, value in spec["securityContext"].items() if key != "runAsUser"}
        assert "fsGroup is not that of the namespace" in problems(api, namespace, {**spec, "securityContext": own}), (
            name
        )


@pytest.mark.parametrize(
    ("pod", "container", "said"),
    [
        ({}, {}, ""),
        ({"securityContext": {"runAsUser": 1000650000, "fsGroup": 1000650000}}, {}, ""),
        ({"securityContext": {"runAsUser": 1000659999}}, {}, ""),
        ({"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}, {}, ""),
        (
            {},
            {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["NET_BIND_SERVICE"]}}},
            "",
        ),
        ({"securityContext": {"runAsUser": 1000660000}}, {}, "runAsUser of the pod"),
        ({"securityContext": {"fsGroup": 1000650001}}, {}, "fsGroup"),
        ({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}, {}, "seccompProfile of the pod"),
        ({"securityContext": {"seLinuxOptions": {"level": "s0"}}}, {}, "seLinuxOptions"),
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({"hostPID": True}, {}, "hostPID"),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, {}, "a volume has a kind"),
        ({"volumes": [{"name": "a", "nfs": {"path": "/", "server": "a"}}]}, {}, "a volume has a kind"),
        ({}, {"securityContext": {"allowPrivilegeEscalation": False, "runAsUser": 1}}, "runAsUser is not in the range"),
        ({}, {"securityContext": {"privileged": True}}, "is privileged"),
        ({}, {"securityContext": {}}, "allowPrivilegeEscalation is not false"),
        ({}, {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"add": ["SYS_ADMIN"]}}}, "added"),
        ({}, {"ports": [{"containerPort": 80, "hostPort": 80}]}, "port of its node"),
    ],
)
def test_the_policy_refuses_what_the_constraint_refuses(
    api: client.ApiClient, namespace: str, pod: Obj, container: Obj, said: str
) -> None:
    spec = {**POD, **pod, "containers": [{**POD["containers"][0], **container}]}
    found = problems(api, namespace, spec)
    assert bool(found) is bool(said), found
    assert said in found


def test_policies_of_runs_open_the_port_of_openshift_s_dns(namespace: str) -> None:
    (text,) = [o["data"]["settings.yaml"] for o in chart(OPENSHIFT) if o["metadata"]["name"] == "rlrun-settings"]
    made = run_children(parse_settings(text), namespace, "s3", RUN, MODEL)
    (policy_of_run,) = [c for c in made if c["metadata"]["name"].endswith("user-code")]
    dns = policy_of_run["spec"]["egress"][1]
    assert dns["ports"] == [{"port": 5353, "protocol": "UDP"}, {"port": 5353, "protocol": "TCP"}]
    (peer,) = dns["to"]
    assert peer["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}
    assert peer["podSelector"] == {"matchLabels": {"dns.operator.openshift.io/daemonset-dns": "default"}}
