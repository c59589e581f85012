"""The evaluator of NetworkPolicies, by the examples of the Kubernetes API."""

from typing import Any

import pytest

from tests.support.network_policies import Outside, Pod, is_allowed

Obj = dict[str, Any]
WEB, DB = Pod("shop", {"app": "web"}), Pod("shop", {"app": "db"})
STRANGER = Pod("bank", {"app": "web"}, {"trusted": "yes"})
INTERNET = Outside("192.0.2.7")
IN_WEB_OR_DB = {"key": "app", "operator": "In", "values": ["web", "db"]}


def policy(selector: Obj | None = None, **spec: Any) -> Obj:
    return {"metadata": {"namespace": "shop"}, "spec": {"podSelector": selector or {}, **spec}}


def db(*rules: Obj) -> list[Obj]:
    return [policy({"matchLabels": {"app": "db"}}, policyTypes=["Ingress"], ingress=list(rules))]


def test_pods_without_a_policy_are_open() -> None:
    assert is_allowed([], INTERNET, DB, 5432)
    assert is_allowed([policy(policyTypes=["Egress"])], INTERNET, DB, 5432)
    assert is_allowed(db(), INTERNET, WEB, 80)


def test_a_policy_without_rules_closes_its_direction() -> None:
    assert not is_allowed(db(), WEB, DB, 5432)
    assert is_allowed(db(), DB, WEB, 80)
    assert not is_allowed([policy(policyTypes=["Egress"])], WEB, STRANGER, 80)
    assert not is_allowed([policy()], INTERNET, WEB, 80)
    assert is_allowed([policy()], WEB, INTERNET, 80)
    assert not is_allowed([policy(egress=[])], WEB, INTERNET, 80)


@pytest.mark.parametrize(
    ("peers", "web", "stranger", "internet"),
    [
        ([], True, True, True),
        ([{"podSelector": {}}], True, False, False),
        ([{"podSelector": {"matchLabels": {"app": "db"}}}], False, False, False),
        ([{"podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["db"]}]}}],) + 3 * (False,),
        ([{"podSelector": {"matchExpressions": [IN_WEB_OR_DB]}}], True, False, False),
        ([{"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}], True, False, False),
        ([{"podSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}], False, False, False),
        ([{"podSelector": {"matchLabels": {"app": "db"}, "matchExpressions": [IN_WEB_OR_DB]}}], False, False, False),
        ([{"namespaceSelector": {}}], True, True, False),
        ([{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "bank"}}}], False, True, False),
        ([{"namespaceSelector": {"matchLabels": {"trusted": "yes"}}}], False, True, False),
        ([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "db"}}}], False, False, False),
        ([{"ipBlock": {"cidr": "192.0.2.0/24"}}], False, False, True),
        ([{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.0/28"]}}], False, False, False),
        ([{"ipBlock": {"cidr": "0.0.0.0/0"}}, {"podSelector": {}}], True, False, True),
    ],
)
def test_peers(peers: list[Obj], web: bool, stranger: bool, internet: bool) -> None:
    found = [is_allowed(db({"from": peers}), source, DB, 5432) for source in (WEB, STRANGER, INTERNET)]
    assert found == [web, stranger, internet]


@pytest.mark.parametrize(
    ("ports", "port", "protocol", "allowed"),
    [
        ([], 1, "UDP", True),
        ([{"port": 53}], 53, "TCP", True),
        ([{"port": 53}], 53, "UDP", False),
        ([{"port": 53, "protocol": "UDP"}], 53, "UDP", True),
        ([{"protocol": "UDP"}], 99, "UDP", True),
        ([{"port": 80, "endPort": 90}], 90, "TCP", True),
        ([{"port": 80, "endPort": 90}], 91, "TCP", False),
    ],
)
def test_ports(ports: list[Obj], port: int, protocol: str, allowed: bool) -> None:
    assert is_allowed(db({"ports": ports}), WEB, DB, port, protocol) is allowed


def test_rules_of_several_policies_add_up() -> None:
    both = [*db({"ports": [{"port": 1}]}), *db({"ports": [{"port": 2}]})]
    assert [is_allowed(both, WEB, DB, port) for port in (1, 2, 3)] == [True, True, False]


def test_both_ends_must_allow_a_connection() -> None:
    leaving = policy({"matchLabels": {"app": "web"}}, policyTypes=["Egress"], egress=[{"ports": [{"port": 5432}]}])
    assert is_allowed([leaving, *db({})], WEB, DB, 5432)
    assert not is_allowed([leaving, *db()], WEB, DB, 5432)
    assert not is_allowed([leaving, *db({})], WEB, DB, 80)


@pytest.mark.parametrize(
    "rule",
    [
        {"form": []},
        {"from": [{"podSelektor": {}}]},
        {"from": [{"podSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn"}]}}]},
        {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]},
        {"ports": [{"port": "http"}]},
    ],
)
def test_unknown_parts_are_errors(rule: Obj) -> None:
    with pytest.raises(AssertionError):
        is_allowed(db(rule), WEB, DB, 80)
