"""Ways of users to rlrun-server, and its certificate by cert-manager."""

import pytest
from rlrun_operator.config.settings import parse_settings

from tests.unit.chart.conftest import Helm, Object, Render

ISSUER = {"name": "internal", "kind": "ClusterIssuer"}
ROUTE: Object = {"enabled": True, "parentRefs": [{"name": "gateway"}], "hostnames": ["rl.example.com", "b.example.com"]}


def url(rendered: object) -> str:
    found: str = rendered.one("ConfigMap", "rlrun-server")["data"]["url"]  # type: ignore[attr-defined]
    return found


def test_nothing_is_routed_by_default(render: Render) -> None:
    rendered = render()
    assert not [kind for kind in ("Ingress", "HTTPRoute", "Certificate") if rendered.of(kind)]
    assert url(rendered) == ""


@pytest.mark.parametrize("tls", [True, False])
def test_an_ingress_leads_to_the_port_of_the_service_and_names_the_url(render: Render, tls: bool) -> None:
    ingress = {
        "enabled": True, "className": "nginx", "host": "rl.example.com", "tlsSecret": "rl", "annotations": {"a/b": "c"},
    }  # fmt: skip
    rendered = render({"server": {"ingress": ingress, "tls": {"enabled": tls}}})
    made = rendered.one("Ingress")
    assert made["metadata"]["annotations"] == {"a/b": "c"}
    assert made["spec"]["ingressClassName"] == "nginx"
    assert made["spec"]["tls"] == [{"hosts": ["rl.example.com"], "secretName": "rl"}]
    ((path,),) = [rule["http"]["paths"] for rule in made["spec"]["rules"] if rule["host"] == "rl.example.com"]
    (port,) = rendered.one("Service", "rlrun-server")["spec"]["ports"]
    assert path["backend"]["service"] == {"name": "rlrun-server", "port": {"number": port["port"]}}
    assert (path["path"], path["pathType"]) == ("/", "Prefix")
    assert port["appProtocol"] == ("https" if tls else "http")
    assert url(rendered) == "https://rl.example.com"


def test_a_route_leads_to_the_port_of_the_service_and_names_the_url(render: Render) -> None:
    rendered = render({"server": {"httpRoute": ROUTE}})
    spec = rendered.one("HTTPRoute")["spec"]
    # With all defaults of the Gateway API: a tool that compares the object with the chart finds no difference.
    assert spec["parentRefs"] == [{"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gateway"}]
    assert spec["hostnames"] == ROUTE["hostnames"]
    (port,) = rendered.one("Service", "rlrun-server")["spec"]["ports"]
    (rule,) = spec["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/"}}]
    assert rule["backendRefs"] == [
        {"group": "", "kind": "Service", "name": "rlrun-server", "port": port["port"], "weight": 1}
    ]
    assert url(rendered) == "https://rl.example.com"
    mesh = {"group": "", "kind": "Service", "name": "mesh", "sectionName": "https"}
    assert render({"server": {"httpRoute": {**ROUTE, "parentRefs": [mesh]}}}).one("HTTPRoute")["spec"][
        "parentRefs"
    ] == [mesh]
    own = {"users": {"serverUrl": "https://own.example.com"}}
    assert url(render({"server": {"httpRoute": ROUTE}, **own})) == "https://own.example.com"


def test_a_certificate_has_the_name_by_which_pods_reach_the_server(render: Render) -> None:
    rendered = render({"server": {"tls": {"certificate": {"enabled": True, "issuerRef": ISSUER}}}})
    spec = rendered.one("Certificate")["spec"]
    settings = parse_settings(rendered.settings)
    assert settings.storage_server == f"https://{spec['dnsNames'][0]}:8443"
    assert spec["issuerRef"] == ISSUER
    certificate = settings.storage_server_certificate
    assert certificate is not None
    assert (certificate.secret.name, certificate.create) == (spec["secretName"], False)
    volumes = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]["volumes"]
    assert spec["secretName"] in [v["secret"]["secretName"] for v in volumes if v["name"] == "tls"]


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"ingress": {"enabled": True}}, "server.ingress.host is required"),
        ({"ingress": {"enabled": True, "host": "https://x"}}, "/server/ingress/host"),
        ({"httpRoute": {**ROUTE, "parentRefs": []}}, "server.httpRoute.parentRefs is required"),
        ({"httpRoute": {**ROUTE, "hostnames": []}}, "server.httpRoute.hostnames is required"),
        ({"tls": {"certificate": {"enabled": True}}}, "server.tls.certificate.issuerRef.name is required"),
        (
            {"tls": {"existingSecret": "x", "certificate": {"enabled": True, "issuerRef": ISSUER}}},
            "set one of existingSecret and certificate.enabled",
        ),
    ],
)
def test_an_incomplete_route_is_refused_by_name(template: Helm, server: Object, said: str) -> None:
    done = template({"server": server})
    assert done.returncode != 0
    assert said in done.stderr
