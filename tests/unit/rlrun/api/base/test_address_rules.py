"""Which addresses a run may name."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.api.base.address_rules import INTERNET_ONLY, AddressRules, refusal_message

CLOSED = INTERNET_ONLY
OPEN = AddressRules.parse(["0.0.0.0/0", "::/0", "*.models.svc"])
"""As open as an installation can be without listing single addresses."""

PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
"""RFC 1918, RFC 6598, RFC 4193: networks that an installation may open."""
NEVER = ("127.0.0.0/8", "169.254.0.0/16", "0.0.0.0/8", "224.0.0.0/4", "::1/128", "::/128", "fe80::/10", "ff00::/8")
METADATA = ("169.254.169.254", "169.254.170.2", "fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16")
CLOUD = ("fd00:ec2::/32", "fd20:ce::254", "100.100.100.200")


def in_networks(networks: tuple[str, ...]) -> st.SearchStrategy[IPv4Address | IPv6Address]:
    return st.sampled_from(networks).flatmap(lambda network: st.ip_addresses(network=network))


def disguises(address: IPv4Address) -> list[IPv6Address]:
    """The IPv6 addresses that lead to an IPv4 address: mapped, NAT64 and 6to4."""
    number = int(address)
    return [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address((0x64_FF9B << 96) | number),
        IPv6Address((0x2002 << 112) | (number << 80) | 1),
    ]


@given(in_networks((*PRIVATE, *NEVER)))
def test_no_address_outside_of_the_internet_is_open_by_itself(address: IPv4Address | IPv6Address) -> None:
    assert CLOSED.address_refusal("teacher.example.com", address)


@given(in_networks(NEVER))
def test_addresses_of_the_node_are_opened_by_no_host_and_no_range(address: IPv4Address | IPv6Address) -> None:
    assert OPEN.address_refusal("teacher.models.svc", address)
    assert OPEN.address_refusal("teacher.example.com", address)


@pytest.mark.parametrize("text", METADATA)
def test_metadata_addresses_are_opened_by_nothing_but_themselves(text: str) -> None:
    address = ip_address(text)
    assert CLOSED.address_refusal("teacher.example.com", address)
    assert OPEN.address_refusal("teacher.models.svc", address)
    assert AddressRules.parse([text]).address_refusal("teacher.example.com", address) is None


@given(st.ip_addresses(v=4))
def test_an_ipv6_address_is_refused_like_the_ipv4_address_inside(address: IPv4Address) -> None:
    for rules in (CLOSED, OPEN):
        plain = rules.address_refusal("teacher.example.com", address)
        for disguise in disguises(address):
            assert (rules.address_refusal("teacher.example.com", disguise) is None) == (plain is None), disguise


@given(st.ip_addresses())
def test_a_listed_address_is_open_to_every_host(address: IPv4Address | IPv6Address) -> None:
    assert AddressRules.parse([str(address)]).address_refusal("any.example.com", address) is None


@given(in_networks(PRIVATE).filter(lambda a: not any(a in ip_network(n) for n in CLOUD)))
def test_private_addresses_are_opened_by_their_host_or_network(address: IPv4Address | IPv6Address) -> None:
    assert AddressRules.parse(["*.models.svc"]).address_refusal("Teacher.models.svc.", address) is None
    assert AddressRules.parse(PRIVATE).address_refusal("teacher.example.com", address) is None
    assert AddressRules.parse(["*.models.svc"]).address_refusal("teacher.example.com", address)


@pytest.mark.parametrize("text", ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_on_the_internet_are_open(text: str) -> None:
    assert CLOSED.address_refusal("teacher.example.com", ip_address(text)) is None


@pytest.mark.parametrize("text", ["64:ff9b:1::a00:1", "2001:db8::1", "fec0::1", "5f00::1", "192.0.2.1", "198.18.0.1"])
def test_addresses_that_the_internet_does_not_route_are_refused(text: str) -> None:
    assert CLOSED.address_refusal("teacher.example.com", ip_address(text))


@given(st.ip_addresses(v=4))
def test_unusual_forms_of_an_address_are_refused(address: IPv4Address) -> None:
    a, b, c, d = address.packed
    numbers = int(address), hex(int(address)), (b << 16) | (c << 8) | d
    for form in (*numbers[:2], f"{a}.{numbers[2]}", f"{a}.{b}.{c}.0{d:o}", f"{a}.{b}.{c}.{d:#x}"):
        assert OPEN.host_refusal("http", str(form)), form


URLS = [
    ("https://teacher.example.com/v1", None),
    ("http://teacher.example.com:8000/v1", None),
    ("http://8.8.8.8/v1", None),
    ("http://[2606:4700:4700::1111]:8000/v1", None),
    ("http://10.0.0.5:8000/v1", "not an address on the internet"),
    ("http://[::ffff:10.0.0.5]/v1", "not an address on the internet"),
    ("http://169.254.169.254/latest/meta-data", "a link-local address"),
    ("http://user@127.0.0.1/v1", "a loopback address"),
    ("http://teacher.example.com@127.0.0.1/v1", "a loopback address"),
    ("http://[::1]:8080/v1", "a loopback address"),
    ("http://0.0.0.0/v1", "not the address of a host"),
    ("http://2130706433/v1", "neither a host name nor an IP address"),
    ("http://127.1/v1", "neither a host name nor an IP address"),
    ("http://localhost:8080/v1", "inside the cluster"),
    ("http://a.localhost./v1", "inside the cluster"),
    ("http://kubernetes/api", "inside the cluster"),
    ("https://kubernetes.default.svc/api", "inside the cluster"),
    ("https://Kubernetes.default.SVC.cluster.LOCAL./api", "inside the cluster"),
    ("http://metadata.google.internal/computeMetadata/v1", "inside the cluster"),
    ("file:///etc/passwd", "its scheme is file"),
    ("gopher://teacher.example.com/", "its scheme is gopher"),
    ("teacher.example.com/v1", "its scheme is missing"),
    ("http:///v1", "has no host"),
    ("http://[teacher/v1", "not a valid URL"),
]


@pytest.mark.parametrize(("url", "refusal"), URLS, ids=[url for url, _ in URLS])
def test_urls_are_judged_by_their_text(url: str, refusal: str | None) -> None:
    found = CLOSED.url_refusal(url)
    assert (found is None) == (refusal is None), found
    assert (refusal or "") in (found or "")


@pytest.mark.parametrize(
    ("entries", "url", "allowed"),
    [
        (["teacher.models.svc"], "http://teacher.models.svc:8000/v1", True),
        (["Teacher.models.svc."], "http://TEACHER.models.svc./v1", True),
        (["teacher.models.svc"], "http://teacher.models.svc.cluster.local/v1", False),
        (["*.models.svc"], "http://teacher.models.svc/v1", True),
        (["*.models.svc"], "http://teacher.other.svc/v1", False),
        (["10.96.0.0/16"], "http://teacher.models.svc/v1", True),
        (["10.96.0.0/16"], "http://10.96.1.2/v1", True),
        (["10.96.0.0/16"], "http://10.97.1.2/v1", False),
        (["10.96.1.2/16"], "http://10.96.3.4/v1", True),
        (["10.96.1.2/16"], "http://10.97.1.2/v1", False),
        (["127.0.0.1"], "http://127.0.0.1:8000/v1", True),
        (["127.0.0.1"], "http://127.0.0.2:8000/v1", False),
        (["0.0.0.0/0", "::/0"], "http://169.254.169.254/v1", False),
    ],
)
def test_listed_hosts_and_networks_are_open(entries: list[str], url: str, allowed: bool) -> None:
    assert (AddressRules.parse(entries).url_refusal(url) is None) is allowed


@pytest.mark.parametrize(
    "entry",
    ["", "http://teacher.models.svc", "teacher:8000", "10.*", "teacher.*", "*", "127.1", "127.0.0.0/8",
     "169.254.0.0/16", "fe80::/10", "a,b", "10.0.0.0/08", "10.0.0.0/255.0.0.0", " 10.0.0.1", "fe80::1%eth0"],
)  # fmt: skip
def test_entries_that_would_not_do_what_they_say_are_refused(entry: str) -> None:
    with pytest.raises(ValueError, match=r"is not a host name|in the range") as caught:
        AddressRules.parse(["teacher.models.svc", entry])
    assert repr(entry) in str(caught.value)


def test_the_message_names_field_cause_and_remedy() -> None:
    why = CLOSED.url_refusal("http://10.0.0.5/v1")
    assert why
    message = refusal_message("spec.algorithm.teacher.url", why)
    for part in ("`spec.algorithm.teacher.url`", "10.0.0.5", "runs.privateAddresses"):
        assert part in message
