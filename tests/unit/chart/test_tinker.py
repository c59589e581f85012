"""Chart values of rlrun-tinker, the API of the Tinker SDK."""

import json
from typing import Any

import pytest
from rlrun.constants import INFERENCE_PORT, SERVER_TLS_PORT, SIDECAR_PORT, TRAINER_PORT
from rlrun_operator.config.settings import parse_settings

from tests.support.network_policies import Outside, Pod, is_allowed
from tests.unit.chart.conftest import Helm, Object, Render, Rendered
from tests.unit.chart.test_monitors import numbered
from tests.unit.chart.test_render import EVERYTHING, MINIMAL, pod_templates

NAME = "rlrun-tinker"
ON: Object = {**MINIMAL, "tinker": {"enabled": True}}
INGRESS = {
    "enabled": True,
    "className": "nginx",
    "host": "rl.example.com",
    "tlsSecret": "rl",
    "annotations": {"a": "b"},
}
ROUTE = {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["rl.example.com"]}
SHARED = {"rlrun.dev/serving": "pool", "rlrun.dev/role": "trainer"}


def pod(rendered: Rendered, name: str = NAME) -> Pod:
    labels = pod_templates(rendered.objects)[name]["metadata"]["labels"]
    return Pod("rlrun-system", labels)


def test_by_default_nothing_of_it_is_installed(render: Render) -> None:
    assert "tinker" not in json.dumps(render(MINIMAL, base=None).objects).replace("docs/guides/tinker", "")


def test_it_has_no_right_no_key_and_no_state(render: Render) -> None:
    rendered = render({**EVERYTHING, "s3": MINIMAL["s3"]}, base=None)
    spec = pod_templates(rendered.objects)[NAME]["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    secrets = [volume["secret"] for volume in spec["volumes"] if "secret" in volume]
    assert [secret["items"] for secret in secrets] == [[{"key": "ca.crt", "path": "ca.crt"}]]
    (container,) = spec["containers"]
    assert not [variable for variable in container["env"] if "valueFrom" in variable]
    assert not any(volume.keys() & {"persistentVolumeClaim", "hostPath"} for volume in spec["volumes"])
    assert NAME not in json.dumps([o for kind in ("Role", "ClusterRole", "RoleBinding") for o in rendered.of(kind)])


@pytest.mark.parametrize("tls", [True, False])
def test_it_knows_the_url_and_the_authority_of_rlrun_server(render: Render, tls: bool) -> None:
    rendered = render({**ON, "server": {"tls": {"enabled": tls}}}, base=None)
    spec = pod_templates(rendered.objects)[NAME]["spec"]
    (container,) = spec["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    settings = parse_settings(rendered.settings)
    assert variables["RLRUN_TINKER_SERVER"] == settings.storage_server
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert variables.get("RLRUN_TINKER_SERVER_AUTHORITY") == (f"{mounts['server']}/ca.crt" if tls else None)
    secrets = [volume["secret"]["secretName"] for volume in spec["volumes"] if volume["name"] == "server"]
    certificate = settings.storage_server_certificate
    assert secrets == ([certificate.secret.name] if certificate else [])


def test_requests_of_a_client_reach_the_same_replica(render: Render) -> None:
    rendered = render(ON, base=None)
    service = rendered.one("Service", NAME)["spec"]
    assert service["sessionAffinity"] == "ClientIP"
    assert service["selector"].items() <= pod(rendered).labels.items()


def test_it_reaches_rlrun_server_and_the_pods_of_pools_only(render: Render) -> None:
    peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "team"}}}]
    rendered = render({**ON, "server": {"allowFrom": peers}}, base=None)
    template = pod_templates(rendered.objects)
    policies: list[Any] = [
        found
        for policy in rendered.of("NetworkPolicy")
        for found in numbered([policy], template[policy["metadata"]["name"]])
    ]
    tinker, server = pod(rendered), pod(rendered, "rlrun-server")
    assert is_allowed(policies, tinker, server, SERVER_TLS_PORT)
    engine = Pod("team", {**SHARED, "rlrun.dev/role": "inference"})
    assert is_allowed(policies, tinker, Pod("team", SHARED), TRAINER_PORT)
    assert is_allowed(policies, tinker, engine, INFERENCE_PORT)
    assert is_allowed(policies, tinker, engine, SIDECAR_PORT)
    assert is_allowed(policies, tinker, Pod("kube-system", {"k8s-app": "kube-dns"}), 53, "UDP")
    closed: list[tuple[Pod | Outside, int]] = [
        (server, 8081),
        (pod(rendered, "rlrun-operator"), 8080),
        (Pod("team", {"rlrun.dev/run": "one", "rlrun.dev/role": "trainer"}), TRAINER_PORT),
        (Pod("team", {"rlrun.dev/run": "one", "rlrun.dev/role": "inference"}), INFERENCE_PORT),
        (Pod("team", SHARED), INFERENCE_PORT),
        (engine, 22),
        (Pod("rlrun-system", {"app": "s3"}), 8333),
        (Outside("10.96.0.1"), 443),
        (Outside("169.254.169.254"), 80),
    ]
    assert [end for end, port in closed if is_allowed(policies, tinker, end, port)] == []


def test_an_ingress_has_a_path_on_the_host_of_rlrun_server(render: Render) -> None:
    own = {"enabled": True, "ingress": {"annotations": {"nginx.ingress.kubernetes.io/proxy-body-size": "16m"}}}
    rendered = render({**ON, "server": {"ingress": INGRESS}, "tinker": own}, base=None)
    made, server = rendered.one("Ingress", NAME), rendered.one("Ingress", "rlrun-server")
    assert made["metadata"]["annotations"] == {"nginx.ingress.kubernetes.io/proxy-body-size": "16m"}
    assert {**made["spec"], "rules": []} == {**server["spec"], "rules": []}
    (rule,) = made["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"], path["pathType"]) == ("rl.example.com", "/tinker", "Prefix")
    (port,) = rendered.one("Service", NAME)["spec"]["ports"]
    assert path["backend"]["service"] == {"name": NAME, "port": {"number": port["port"]}}


def test_a_route_has_a_path_on_the_hosts_of_rlrun_server(render: Render) -> None:
    rendered = render({**ON, "server": {"httpRoute": ROUTE}}, base=None)
    own, others = rendered.one("HTTPRoute")["spec"]["rules"]
    assert own["matches"] == [{"path": {"type": "PathPrefix", "value": "/tinker"}}]
    assert others["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    (port,) = rendered.one("Service", NAME)["spec"]["ports"]
    assert own["backendRefs"] == [{"group": "", "kind": "Service", "name": NAME, "port": port["port"], "weight": 1}]


def test_with_a_certificate_it_serves_https(render: Render) -> None:
    own = {"enabled": True, "tls": {"existingSecret": "rl-tinker"}}
    rendered = render({**ON, "server": {"ingress": INGRESS, "httpRoute": ROUTE}, "tinker": own}, base=None)
    spec = pod_templates(rendered.objects)[NAME]["spec"]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {v["name"]: v["value"] for v in container["env"]}["RLRUN_TINKER_TLS"] == mounts["tls"]
    (volume,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "tls"]
    assert (volume["secretName"], [item["path"] for item in volume["items"]]) == ("rl-tinker", ["tls.crt", "tls.key"])
    (port,) = rendered.one("Service", NAME)["spec"]["ports"]
    assert port == {"name": "https", "port": 8443, "targetPort": "https", "appProtocol": "https"}
    assert {p["name"]: p["containerPort"] for p in container["ports"]}["https"] == 8443
    assert rendered.one("HTTPRoute")["spec"]["rules"][0]["backendRefs"][0]["port"] == 8443
    (path,) = rendered.one("Ingress", NAME)["spec"]["rules"][0]["http"]["paths"]
    assert path["backend"]["service"]["port"] == {"number": 8443}


def test_helm_test_asks_whether_it_is_ready(render: Render) -> None:
    (check,) = render(ON, base=None).one("Pod", "rlrun-test-readyz")["spec"]["containers"]
    assert f"http://{NAME}-metrics.rlrun-system.svc:8080/readyz" in check["args"]


def test_sources_need_a_network_policy(template: Helm) -> None:
    own = {"enabled": True, "allowFrom": [{"namespaceSelector": {}}]}
    done = template({**MINIMAL, "tinker": own, "networkPolicy": {"enabled": False}}, base=None)
    assert done.returncode != 0
    assert "tinker.allowFrom needs networkPolicy.enabled" in done.stderr
