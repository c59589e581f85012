"""Values `caBundle` and `proxy`, in every workload that connects."""

from typing import Any

import pytest
from rlrun.api.base.proxy_rules import ProxyRules
from rlrun.constants import (
    CA_BUNDLE_DIR,
    CA_BUNDLE_FILE_VARIABLE,
    CA_BUNDLE_PATH,
    CA_BUNDLE_VARIABLE,
    CA_CLIENT_VARIABLES,
)
from rlrun_operator.config.settings import ProxySettings, parse_settings

from tests.unit.chart.conftest import Helm, Object, Render
from tests.unit.chart.test_render import EVERYTHING, MINIMAL

PROXY = "http://proxy.corp:3128"
WORKLOADS = {"rlrun-operator": "operator", "rlrun-server": "server", "rlrun-egress": "egress-proxy"}
"""Container of each workload that connects to more than the API server of its own cluster."""
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def specs(objects: list[Object]) -> dict[str, Any]:
    found = {}
    for o in objects:
        if o["kind"] in ("Deployment",) and o["metadata"]["name"] in WORKLOADS:
            template = o["spec"].get("jobTemplate", o)["spec"]["template"]
            found[o["metadata"]["name"]] = template["spec"]
    assert set(found) == set(WORKLOADS)
    return found


def main_of(name: str, spec: Object) -> Object:
    (main,) = [c for c in spec["containers"] if c["name"] == WORKLOADS[name]]
    return dict(main)


def variables(container: Object) -> dict[str, str]:
    return {e["name"]: e.get("value", "") for e in container.get("env", [])}


def everything(**values: Object) -> Object:
    """All workloads, without a proxy of the operator alone."""
    return {**EVERYTHING, "operator": {}, **values}


def test_without_values_nothing_is_added(render: Render) -> None:
    rendered = render(everything(), base=None)
    for name, spec in specs(rendered.objects).items():
        assert "initContainers" not in spec, name
        assert not {v for v in variables(main_of(name, spec)) if v.lower().endswith(("_proxy", "_file", "_bundle"))}
    settings = parse_settings(rendered.settings)
    assert (settings.ca_bundle_file, settings.proxy) == (None, ProxySettings())


@pytest.mark.parametrize(
    ("source", "volume"),
    [
        ({"pem": PEM}, None),
        (
            {"configMap": {"name": "company"}},
            {"configMap": {"name": "company", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        ),
        (
            {"secret": {"name": "company", "key": "root.pem"}},
            {"secret": {"secretName": "company", "items": [{"key": "root.pem", "path": "ca.crt"}]}},
        ),
    ],
    ids=["pem", "configMap", "secret"],
)
def test_every_workload_trusts_the_authorities(render: Render, source: Object, volume: Object | None) -> None:
    rendered = render(everything(caBundle=source), base=None)
    for name, spec in specs(rendered.objects).items():
        (writer,) = spec["initContainers"]
        volumes = {v.pop("name"): v for v in spec["volumes"]}
        assert writer["command"] == ["python", "-m", "rlrun.service.trust_bundle", CA_BUNDLE_PATH], name
        given = variables(writer)
        if volume is None:
            assert given == {CA_BUNDLE_VARIABLE: PEM}
        else:
            assert volumes["ca-bundle-source"] == volume
            (mount,) = [m for m in writer["volumeMounts"] if m["name"] == "ca-bundle-source"]
            assert given == {CA_BUNDLE_FILE_VARIABLE: f"{mount['mountPath']}/ca.crt"}
        main = main_of(name, spec)
        # A container that starts again writes the bundle itself: init containers do not run again.
        sources = [m for m in main["volumeMounts"] if m["name"] == "ca-bundle-source"]
        assert (CA_BUNDLE_FILE_VARIABLE in variables(main), len(sources)) == ((True, 1) if volume else (False, 0))
        clients = {v: CA_BUNDLE_PATH for v in CA_CLIENT_VARIABLES if v != "NODE_EXTRA_CA_CERTS"}
        assert variables(main).items() >= clients.items()
        for container in (writer, main):
            (mount,) = [m for m in container["volumeMounts"] if m["name"] == "ca-bundle"]
            assert mount == {"name": "ca-bundle", "mountPath": CA_BUNDLE_DIR}
        assert writer["image"] == main["image"]
        assert writer["securityContext"] == main["securityContext"]
        assert volumes["ca-bundle"]["emptyDir"]["medium"] == "Memory"
    assert str(parse_settings(rendered.settings).ca_bundle_file) == CA_BUNDLE_PATH


def test_every_workload_and_the_pods_of_runs_use_the_proxy(render: Render) -> None:
    rendered = render(everything(proxy={"httpsProxy": PROXY, "noProxy": ["10.0.0.0/8", ".corp"]}), base=None)
    for name, spec in specs(rendered.objects).items():
        given = variables(main_of(name, spec))
        assert given["HTTPS_PROXY"] == given["https_proxy"] == PROXY, name
        assert given["NO_PROXY"] == given["no_proxy"]
        assert "HTTP_PROXY" not in given
        rules = ProxyRules.of_environment(given)
        assert rules.proxy_of("https://huggingface.co") == PROXY
        inside = (
            "s3.store.svc:8333",
            "s3.store.svc.cluster.local",
            "10.1.2.3",
            "s3.corp",
            "169.254.169.254",
            "localhost",
        )
        assert not [host for host in inside if rules.proxy_of(f"https://{host}")]
        settings = parse_settings(rendered.settings).proxy
        assert (settings.https_proxy, ",".join(settings.no_proxy)) == (PROXY, given["NO_PROXY"])


@pytest.mark.parametrize(
    ("url", "port"),
    [(PROXY, 3128), ("http://proxy.corp:3128/", 3128), ("http://10.0.0.9", 80), ("https://proxy.corp", 443)],
)
def test_the_egress_proxy_may_reach_the_proxy(render: Render, url: str, port: int) -> None:
    policy = render(everything(proxy={"httpsProxy": url}), base=None).one("NetworkPolicy", "rlrun-egress")["spec"]
    assert policy["egress"][-1] == {"ports": [{"protocol": "TCP", "port": port}]}
    without = render(everything(), base=None).one("NetworkPolicy", "rlrun-egress")["spec"]
    assert policy["egress"][:-1] == without["egress"]


def test_the_check_of_s3_connects_as_the_platform_does(render: Render) -> None:
    rendered = render(everything(caBundle={"pem": PEM}, proxy={"httpsProxy": PROXY}), base=None)
    checks = {o["metadata"]["name"]: o["spec"] for o in rendered.of("Pod")}
    connecting = {name for name, spec in checks.items() if "HTTPS_PROXY" in variables(spec["containers"][0])}
    assert connecting == {"rlrun-test-s3"} == {name for name, spec in checks.items() if "initContainers" in spec}


@pytest.mark.parametrize("entry", ["10.0.0.0/8:443", "[fd00::]/8:443", "[fd00::/8]:443"])
def test_a_network_with_a_port_is_refused(template: Helm, entry: str) -> None:
    done = template({**MINIMAL, "proxy": {"httpsProxy": PROXY, "noProxy": ["fd00::/8", entry]}}, base=None)
    assert done.returncode != 0
    assert f"proxy.noProxy: {entry} is a network with a port" in done.stderr


def test_two_sources_of_authorities_are_refused(template: Helm) -> None:
    done = template({**MINIMAL, "caBundle": {"pem": PEM, "secret": {"name": "company"}}}, base=None)
    assert done.returncode != 0
    assert "caBundle: set one of" in done.stderr
