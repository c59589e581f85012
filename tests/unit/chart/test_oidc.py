"""Login at an OIDC issuer, from the values to the settings of rlrun-server and its rights."""

from typing import Any

import pytest
from rlrun_server.runtime.settings import ServerSettings

from tests.unit.chart.conftest import Helm, Object, Render

OIDC: Object = {"issuer": "https://issuer.example.com", "clientId": "rlrun", "existingSecret": "issuer"}
URL = {"users": {"serverUrl": "https://rl.example.com"}}


def server_of(rendered: Any) -> tuple[Object, Object, list[Object]]:
    """Return the pod's spec, its variables and the rules of its role."""
    spec = rendered.one("Deployment", "rlrun-server")["spec"]["template"]["spec"]
    variables = {variable["name"]: variable.get("value") for variable in spec["containers"][0]["env"]}
    return spec, variables, rendered.one("ClusterRole", "rlrun-server")["rules"]


def may_impersonate(rules: list[Object]) -> bool:
    return any("impersonate" in rule["verbs"] for rule in rules)


def test_without_an_issuer_the_server_knows_none(render: Render) -> None:
    for values in ({}, {"server": {"oidc": None}}, {"server": {"oidc": {"impersonate": True}}}):
        spec, variables, rules = server_of(render(values))
        assert "RLRUN_SERVER_OIDC" not in variables
        assert "oidc" not in [volume["name"] for volume in spec["volumes"]]
        assert not may_impersonate(rules)


def test_the_values_arrive_with_the_address_of_the_page(render: Render) -> None:
    own = {"groupsClaim": "roles", "groupsPrefix": "", "sessionSeconds": 28800, "scopes": ["openid", "groups"]}
    rendered = render({"server": {"oidc": OIDC | own | {"impersonate": True}}, **URL})
    spec, variables, rules = server_of(rendered)
    settings = ServerSettings.model_validate({"oidc": variables["RLRUN_SERVER_OIDC"]})
    assert settings.oidc is not None
    assert settings.oidc.to_json_dict() == {
        "issuer": OIDC["issuer"], "clientId": "rlrun", "redirectUrl": "https://rl.example.com/", "impersonate": True,
        "usernameClaim": "sub", "usernamePrefix": "oidc:", **own,
    }  # fmt: skip
    (volume,) = [volume["secret"] for volume in spec["volumes"] if volume["name"] == "oidc"]
    assert volume["secretName"] == "issuer"
    (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "oidc"]
    assert f"{mount['mountPath']}/{volume['items'][0]['path']}" == str(settings.oidc_secret)
    assert {"apiGroups": [""], "resources": ["users", "groups"], "verbs": ["impersonate"]} in rules


def test_an_api_server_that_knows_the_issuer_needs_no_impersonation(render: Render) -> None:
    ingress = {"ingress": {"enabled": True, "host": "page.example.com"}}
    _, variables, rules = server_of(render({"server": {"oidc": OIDC, **ingress}}))
    settings = ServerSettings.model_validate({"oidc": variables["RLRUN_SERVER_OIDC"]})
    assert settings.oidc is not None
    assert settings.oidc.redirect_url == "https://page.example.com/"
    assert not may_impersonate(rules)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"server": {"oidc": OIDC}}, "server.oidc needs users.serverUrl"),
        ({"server": {"oidc": OIDC, "page": False}, **URL}, "server.oidc needs server.page"),
        ({"server": {"oidc": OIDC | {"clientId": ""}}, **URL}, "server.oidc.clientId is required"),
        ({"server": {"oidc": OIDC | {"issuer": "http://issuer.example.com"}}, **URL}, "issuer"),
        ({"server": {"oidc": OIDC | {"groupsPrefix": "system:"}}, **URL}, "groupsPrefix"),
        ({"server": {"oidc": OIDC | {"scopes": ["groups"]}}, **URL}, "scopes"),
    ],
    ids=["address", "page", "client", "http", "prefix", "scopes"],
)
def test_values_that_cannot_work_are_refused(template: Helm, values: Object, expected: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert expected in done.stderr
