"""Rules of NO_PROXY, and the variables that name proxies."""

import pytest
from rlrun.api.base.proxy_rules import ProxyRules, missing_entries

PROXY = "http://proxy.corp:3128"


@pytest.mark.parametrize(
    ("entries", "url", "is_direct"),
    [
        ("10.0.0.0/8", "https://10.96.0.1", True),
        ("10.0.0.0/8", "https://11.96.0.1", False),
        ("10.0.0.1/8", "https://10.96.0.1:6443", True),
        ("10.0.0.0/8", "https://name-of-10.corp", False),
        ("fd00::/8", "https://[fd12::7]:8443", True),
        ("fd00::/8", "https://10.0.0.1", False),
        ("10.1.2.3", "http://10.1.2.3:9000", True),
        ("10.1.2.3", "http://10.1.2.30", False),
        ("10.1.2.3:9000", "http://10.1.2.3:9001", False),
        ("[fd12::7]", "http://[fd12:0::7]", True),
        ("fd12::7", "http://[fd12::7]:80", True),
        ("[fd12::7]:81", "http://[fd12::7]:80", False),
        ("10.1.2.3", "http://a.10.1.2.3", False),
        (".svc", "http://s3.store.svc:8333", True),
        ("svc", "http://s3.store.svc", True),
        (".svc", "http://s3.store.svc.", True),
        (".svc", "http://svc", True),
        (".svc", "http://nosvc", False),
        ("*.corp", "https://hub.corp", True),
        ("Hub.Corp", "https://HUB.corp", True),
        ("hub.corp:443", "https://hub.corp", True),
        ("hub.corp:443", "http://hub.corp", False),
        ("*", "https://huggingface.co", True),
        ("", "https://huggingface.co", False),
        ("localhost, .svc  10.0.0.0/8", "https://10.0.0.1", True),
        (".", "https://huggingface.co", False),
        ("10.0.0.0/8:443", "https://10.96.0.1", False),
        ("no/network", "https://huggingface.co", False),
    ],
)
def test_no_proxy_lists_hosts_domains_addresses_and_networks(entries: str, url: str, is_direct: bool) -> None:
    rules = ProxyRules.of_environment({"HTTPS_PROXY": PROXY, "HTTP_PROXY": PROXY, "NO_PROXY": entries})
    assert rules.proxy_of(url) == (None if is_direct else PROXY)


def test_each_scheme_has_its_proxy() -> None:
    rules = ProxyRules.of_environment({"HTTPS_PROXY": "http://one:1", "HTTP_PROXY": "http://two:2"})
    assert (rules.proxy_of("https://a.example"), rules.proxy_of("http://a.example")) == ("http://one:1", "http://two:2")
    assert ProxyRules.of_environment({"HTTP_PROXY": "http://two:2"}).proxy_of("https://a.example") is None
    assert rules.proxy_of("unix:///socket") is None


def test_names_in_lower_case_take_precedence_and_a_proxy_needs_no_scheme() -> None:
    rules = ProxyRules.of_environment({"https_proxy": "near:1", "HTTPS_PROXY": "http://far:2", "no_proxy": "a.example"})
    assert rules.proxy_of("https://b.example") == "http://near:1"
    assert rules.proxy_of("https://a.example") is None


def test_hosts_that_only_a_network_lists_are_missing_for_other_clients() -> None:
    rules = ProxyRules(https=PROXY, direct=("10.0.0.0/8", "hub.corp"))
    urls = ["https://10.1.2.3/api", "https://hub.corp", "https://huggingface.co"]
    assert missing_entries(rules, urls) == ["10.1.2.3"]
