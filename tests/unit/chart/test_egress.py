"""Chart values of the egress proxy."""

from ipaddress import ip_network

from rlrun.constants import EGRESS_PORT
from rlrun_operator.config.settings import parse_settings

from tests.unit.chart.conftest import Render
from tests.unit.chart.test_render import EVERYTHING, MINIMAL

SPECIAL = [ip_network(text) for text in ("127.0.0.0/8", "169.254.0.0/16", "fe80::/10", "::1/128")]
"""Loopback, link-local and the metadata addresses of clouds."""


def test_without_egress_nothing_is_installed_for_it(render: Render) -> None:
    rendered = render(MINIMAL, base=None)
    assert parse_settings(rendered.settings).egress is None
    assert not [o for o in rendered.objects if o["metadata"]["name"].endswith("-egress")]
    assert not [o for o in rendered.of("NetworkPolicy") if "egress" in o["metadata"]["name"]]


def test_the_egress_proxy_and_the_operator_use_the_same_key_and_service(render: Render) -> None:
    rendered = render(EVERYTHING, base=None)
    egress = parse_settings(rendered.settings).egress
    assert egress is not None
    assert (egress.host, egress.allowed) == ("rlrun-egress.rlrun-system.svc", ["*.example.com"])
    assert egress.create_key, "the operator makes it: a key of a template would be another one in each render"
    assert not [o for o in rendered.of("Secret") if o["metadata"]["name"].endswith("-egress")]
    pod = rendered.one("Deployment", "rlrun-egress")["spec"]["template"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == egress.component
    (keys,) = [v for v in pod["spec"]["volumes"] if v["name"] == "keys"]
    assert keys["secret"]["secretName"] == egress.key_secret.name
    variables = {e["name"]: e["value"] for e in pod["spec"]["containers"][0]["env"]}
    assert variables["RLRUN_EGRESS_PRIVATE_ADDRESSES"] == "10.1.0.0/16,10.9.9.9,judge.corp"
    assert rendered.one("Service", "rlrun-egress")["spec"]["ports"][0]["port"] == EGRESS_PORT
    policy = rendered.one("NetworkPolicy", "rlrun-egress")["spec"]
    (environments,) = policy["ingress"][0]["from"]
    assert environments["podSelector"]["matchLabels"] == {"rlrun.dev/role": "environment"}
    blocks = [peer["ipBlock"]["cidr"] for peer in policy["egress"][1]["to"]]
    assert blocks == ["0.0.0.0/0", "2000::/3", "10.1.0.0/16", "10.9.9.9/32"]


def test_a_signing_key_of_the_platform_team_is_used(render: Render) -> None:
    rendered = render({**MINIMAL, "egress": {"enabled": True, "signingKey": {"existingSecret": "own"}}}, base=None)
    egress = parse_settings(rendered.settings).egress
    assert egress is not None
    assert (egress.key_secret.name, egress.create_key) == ("own", False)
    assert not [o for o in rendered.of("Secret") if o["metadata"]["name"].endswith("-egress")]


def test_a_name_without_an_address_is_reached_in_all_private_networks(render: Render) -> None:
    own = {"egress": {"enabled": True, "privateAddresses": ["judge.corp", "*.models.svc"]}}
    policy = render({**MINIMAL, **own}, base=None).one("NetworkPolicy", "rlrun-egress")["spec"]
    blocks = {peer["ipBlock"]["cidr"] for peer in policy["egress"][1]["to"]}
    assert {"10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"} < blocks
    others = blocks - {"0.0.0.0/0", "2000::/3"}
    assert not any(ip_network(block).overlaps(special) for block in others for special in SPECIAL)


def test_private_addresses_of_both_families_are_open(render: Render) -> None:
    own = {"egress": {"enabled": True, "privateAddresses": ["10.1.0.0/16", "fd12:3456::/32", "fd12::7", "judge.corp"]}}
    policy = render({**MINIMAL, **own}, base=None).one("NetworkPolicy", "rlrun-egress")["spec"]
    blocks = [peer["ipBlock"]["cidr"] for peer in policy["egress"][1]["to"]]
    assert blocks[2:] == ["10.1.0.0/16", "fd12:3456::/32", "fd12::7/128"]
