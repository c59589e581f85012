"""The probe of the pods' network, on a cluster in memory that plays kubelet and network."""

import itertools
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLMODEL
from rlrun.kube.objects import Obj
from rlrun_cli.commands.doctor import DOCTOR_EPILOG
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.checks import CHECK_SECONDS
from rlrun_cli.remote.diagnosis.network_probe import (
    ANSWER_SECONDS,
    CONNECTOR,
    LIFETIME_SECONDS,
    LISTENER,
    LONGEST_SECONDS,
    PORT,
    START_SECONDS,
    NetworkProbe,
    hub_endpoint,
    image_reference,
)
from rlrun_operator.config.settings import OperatorSettings, ProxySettings
from rlrun_operator.resources.base.outgoing import proxy_variables

from tests.support.fake_cluster import FakeCluster
from tests.support.hub_stub import HubStub, hub_stub
from tests.support.ports import claimed_ports
from tests.unit.rlrun_cli.conftest import custom_object
from tests.unit.rlrun_cli.remote.diagnosis.test_gpu_checks import settings

REVIEW = "create SelfSubjectAccessReview *"
IMAGE = {"repository": "registry/rlrun-orchestrator", "tag": "sha256:1"}


@dataclass
class Node:
    """Kubelet and network, which work at each pause of the probe."""

    api: FakeCluster
    hub: str = "reached"
    starts: bool = True
    connects: bool = True
    enforces: bool = True

    def step(self, seconds: float) -> None:
        for pod in self.api.all("Pod"):
            name = pod["metadata"]["name"]
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
            status = {"phase": "Pending", "containerStatuses": [{"state": waiting}]}
            self.api.put({**pod, "status": {"phase": "Running", "podIP": "10.0.0.9"} if self.starts else status})
            is_open = self.connects and not (self.enforces and self.api.all("NetworkPolicy"))
            text = f"hub {self.hub}\n" if name.endswith("listener") else f"{'open' if is_open else 'closed'}\n"
            self.api.logs[f"{name}/probe"] = text.encode()


@pytest.fixture
def node(api: FakeCluster) -> Node:
    api.answers[REVIEW] = [{"status": {"allowed": True}}]
    settings(api, images={"orchestrator": IMAGE}, imagePullSecrets=["registry"])
    api.put(custom_object(RLMODEL, "m", spec={"id": "a/m", "source": "hf://o/m@1"}))
    return Node(api)


def probe(remote: RemoteCluster, node: Node) -> dict[str, tuple[bool, str]]:
    clock = itertools.count(0.0, 1.0)
    findings = NetworkProbe(remote, node.step, lambda: float(next(clock))).findings()
    assert node.api.all("Pod", "NetworkPolicy") == [], "nothing stays"
    return {finding.name: (finding.is_problem, finding.text) for finding in findings}


def test_all_is_well(remote: RemoteCluster, node: Node) -> None:
    created: list[Obj] = []
    node.api.answers = dict(node.api.answers)
    found = probe(remote, node)
    assert {name: is_problem for name, (is_problem, _) in found.items()} == {
        "images": False,
        "hub": False,
        "network policies": False,
    }
    created += [r.body for r in node.api.requests if r.body and r.body.get("kind") == "Pod"]
    assert [pod["spec"]["imagePullSecrets"] for pod in created] == [[{"name": "registry"}]] * 2
    assert {c["image"] for pod in created for c in pod["spec"]["containers"]} == {
        "registry/rlrun-orchestrator@sha256:1"
    }


@pytest.mark.parametrize(
    ("change", "name", "text"),
    [
        ({"enforces": False}, "network policies", "not enforced"),
        ({"connects": False}, "network policies", "did not reach each other within 90 s"),
        ({"hub": "URLError: timed out"}, "hub", "cannot reach https://huggingface.co: URLError: timed out"),
        ({"starts": False}, "images", "ImagePullBackOff: no such image"),
    ],
)
def test_what_does_not_work_is_named(
    remote: RemoteCluster, node: Node, change: dict[str, Any], name: str, text: str
) -> None:
    for key, value in change.items():
        setattr(node, key, value)
    is_problem, found = probe(remote, node)[name]
    assert is_problem
    assert text in found


def test_missing_rights_are_named_before_anything_is_created(remote: RemoteCluster, node: Node) -> None:
    node.api.answers[REVIEW] = [{"status": {"allowed": True}}, {"status": {"allowed": False}}]
    is_problem, text = probe(remote, node)["network"]
    assert is_problem
    missing = "get pods, delete pods, get pods/log, create networkpolicies, delete networkpolicies"
    assert f"you lack the rights to {missing}" in text


def test_the_pods_are_deleted_after_an_error_of_the_api_server(remote: RemoteCluster, node: Node) -> None:
    failed = FakeCluster.create

    async def create(request: Any) -> Obj:
        if request.kind.kind == "NetworkPolicy":
            raise ApiError(403, "Forbidden", "no policies here")
        return await failed(node.api, request)

    node.api.create = create  # type: ignore[method-assign]
    is_problem, text = probe(remote, node)["network"]
    assert (is_problem, "no policies here" in text) == (True, True)


def test_each_object_is_deleted_and_what_is_left_is_named(remote: RemoteCluster, node: Node) -> None:
    delete = FakeCluster.delete

    async def refuse(request: Any) -> Obj:
        if request.name.endswith("-listener"):
            raise ApiError(500, "InternalError", "etcd is down", action="delete the pod")
        return await delete(node.api, request)

    node.api.delete = refuse  # type: ignore[method-assign]
    *found, left = NetworkProbe(remote, node.step).findings()
    assert [finding.name for finding in found] == ["images", "hub", "network policies"]
    (pod,) = node.api.all("Pod", "NetworkPolicy")
    assert "etcd is down" in left.text
    assert left.hint == f"delete them: kubectl -n {remote.namespace} delete pod/{pod['metadata']['name']}"


def test_a_pod_that_the_rules_of_the_namespace_refuse_is_no_missing_right(remote: RemoteCluster, node: Node) -> None:
    async def create(request: Any) -> Obj:
        raise ApiError(403, "Forbidden", "unable to validate against any security context constraint", action="create")

    node.api.create = create  # type: ignore[method-assign]
    (finding,) = NetworkProbe(remote, node.step).findings()
    assert "unable to validate against any security context constraint" in finding.text
    assert "runs.securityContext" in finding.hint
    assert "role" not in finding.hint


def pods_of(remote: RemoteCluster, node: Node, **content: Any) -> list[Obj]:
    """Return the pods of a probe with these settings of the operator."""
    settings(node.api, images={"orchestrator": IMAGE}, **content)
    probe(remote, node)
    return [r.body for r in node.api.requests if r.body and r.body.get("kind") == "Pod"]


@pytest.mark.parametrize(
    ("content", "context"),
    [
        ({}, {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "seccompProfile": {"type": "RuntimeDefault"}}),
        ({"securityContext": {"runAsUser": 2000}}, {"runAsUser": 2000}),
        ({"securityContext": {"runAsUser": None, "seccompProfile": {"type": "RuntimeDefault"}}},
         {"seccompProfile": {"type": "RuntimeDefault"}}),
    ],
    ids=["default", "own", "openshift"],
)  # fmt: skip
def test_the_pods_have_the_security_context_of_runs(
    remote: RemoteCluster, node: Node, content: dict[str, Any], context: dict[str, Any]
) -> None:
    assert (
        content
        or context
        == OperatorSettings.model_fields["security_context"].get_default(call_default_factory=True).to_json_dict()
    )
    for pod in pods_of(remote, node, **content):
        assert pod["spec"]["securityContext"] == {**context, "runAsNonRoot": True}
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"], "as in runs"


def test_the_pods_are_placed_as_orchestrators(remote: RemoteCluster, node: Node) -> None:
    placement = {
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "runtimeClassName": "kata",
    }
    shape = {
        **placement,
        "affinity": {},
        "labels": {"cost": "rl"},
        "annotations": {"a": "b"},
        "volumes": [{"name": "v"}],
    }
    for pod in pods_of(remote, node, orchestrator=shape):
        assert placement.items() <= pod["spec"].items()
        assert not {"affinity", "volumes"} & pod["spec"].keys()
        assert pod["metadata"]["labels"]["cost"] == "rl"
        assert pod["metadata"]["labels"]["rlrun.dev/doctor"] == pod["metadata"]["name"]
        assert pod["metadata"]["annotations"] == {"a": "b"}


def test_the_hub_is_asked_through_the_proxy_of_the_platform(remote: RemoteCluster, node: Node) -> None:
    proxy = {"httpsProxy": "http://proxy:3128", "httpProxy": "", "noProxy": [".svc", "10.0.0.0/8"]}
    listener, _ = pods_of(remote, node, proxy=proxy)
    (container,) = listener["spec"]["containers"]
    variables = proxy_variables(ProxySettings(https_proxy="http://proxy:3128", no_proxy=[".svc", "10.0.0.0/8"]))
    assert variables.items() <= {v["name"]: v["value"] for v in container["env"]}.items()


@pytest.mark.parametrize(
    "said", ["self-signed certificate in certificate chain", "unable to get local issuer certificate"]
)
def test_a_private_authority_is_named(remote: RemoteCluster, node: Node, said: str) -> None:
    node.hub = f"URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: {said}>"
    is_problem, text = probe(remote, node)["hub"]
    assert is_problem
    settings(node.api, images={"orchestrator": IMAGE}, caBundleFile="/etc/rlrun-ca/ca-bundle.crt")
    is_problem, text = probe(remote, node)["hub"]
    assert not is_problem
    assert "not checked" in text
    node.hub = "URLError: <urlopen error [SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired>"
    assert probe(remote, node)["hub"][0]


def test_the_probe_ends_before_its_pods_and_within_what_the_help_says(remote: RemoteCluster, node: Node) -> None:
    waited = 0.0
    late = {"listener": START_SECONDS, "connector": START_SECONDS + ANSWER_SECONDS + START_SECONDS}
    node.enforces = False

    def sleep(seconds: float) -> None:
        """Let time pass. Each pod answers at the last moment."""
        nonlocal waited
        waited += seconds
        if any(pod["metadata"]["name"].endswith(role) and waited >= late[role]
               for pod in node.api.all("Pod") for role in late):  # fmt: skip
            node.step(seconds)

    findings = NetworkProbe(remote, sleep, lambda: waited).findings()
    assert [f.name for f in findings if f.is_problem] == ["network policies"], "the longest way"
    assert waited <= LONGEST_SECONDS <= LIFETIME_SECONDS
    assert LONGEST_SECONDS + 4 * CHECK_SECONDS <= 5 * 60
    assert "five minutes" in DOCTOR_EPILOG


@pytest.mark.slow
def test_the_programs_of_the_pods() -> None:
    def start(program: str, port: int, **env: str) -> "subprocess.Popen[str]":
        text = program.replace(str(PORT), str(port))
        return subprocess.Popen([sys.executable, "-c", text], env=env, stdout=subprocess.PIPE, text=True)

    with claimed_ports(1) as (port,), hub_stub(HubStub("o/m", "1", {})) as hub:
        connector = start(CONNECTOR, port, PEER="127.0.0.1")
        assert connector.stdout is not None
        listener = None
        try:
            assert connector.stdout.readline() == "closed\n"
            listener = start(LISTENER, port, HUB=hub.url)
            assert listener.stdout is not None
            assert listener.stdout.readline() == "hub reached\n", "any answer of a hub is one"
            assert "open\n" in iter(connector.stdout.readline, "")
            listener.kill()
            assert "closed\n" in iter(connector.stdout.readline, "")
            listener.wait(60)
            listener = start(LISTENER, port, HUB="http://127.0.0.1:9")
            assert listener.stdout is not None
            assert "refused" in listener.stdout.readline()
            listener.kill()
            listener.wait(60)
            listener = start(LISTENER, port, HUB="http://hub.invalid", http_proxy=hub.url)
            assert listener.stdout is not None
            assert listener.stdout.readline() == "hub reached\n", "the proxy resolves the name"
        finally:
            for process in filter(None, (connector, listener)):
                process.kill()
                process.communicate(timeout=60)


def test_the_hub_is_that_of_the_models() -> None:
    env = {"trainer": {"env": [{"name": "HF_ENDPOINT", "value": "https://mirror/"}]}}
    models: list[Obj] = [{"spec": {"source": "s3://b/m"}}, {"spec": {"source": "hf://o/m@1", **env}}]
    assert hub_endpoint(models) == "https://mirror"
    assert hub_endpoint(models[:1]) == ""
    assert image_reference({"repository": "r"}) == "r:latest"
