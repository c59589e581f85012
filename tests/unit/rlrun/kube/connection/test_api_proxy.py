"""Choice of the proxy before an API server."""

import pytest
from rlrun.kube.connection.api_proxy import api_proxy

PROXY = "http://proxy.corp:3128"


@pytest.mark.parametrize(
    ("host", "proxy_url", "environment", "expected"),
    [
        ("https://api.corp:6443", None, {}, None),
        ("https://api.corp:6443", None, {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.corp:6443", None, {"HTTP_PROXY": PROXY}, None),
        ("https://api.corp:6443", None, {"HTTPS_PROXY": PROXY, "NO_PROXY": ".corp"}, None),
        ("https://10.0.0.1:6443", None, {"HTTPS_PROXY": PROXY, "NO_PROXY": "10.0.0.0/8"}, None),
        ("https://api.corp:6443", "http://own:1", {"HTTPS_PROXY": PROXY, "NO_PROXY": ".corp"}, "http://own:1"),
        ("https://10.96.0.1:443", None, {"HTTPS_PROXY": PROXY, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, None),
        ("https://[fd00::1]:443", None, {"HTTPS_PROXY": PROXY, "KUBERNETES_SERVICE_HOST": "fd00::1"}, None),
        ("https://10.96.0.2:443", None, {"HTTPS_PROXY": PROXY, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}, PROXY),
    ],
)
def test_the_kubeconfig_wins_and_the_own_api_server_has_no_proxy(
    host: str, proxy_url: str | None, environment: dict[str, str], expected: str | None
) -> None:
    assert api_proxy(host, proxy_url, environment) == expected
