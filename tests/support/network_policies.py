"""What NetworkPolicies allow, for tests of policies without a network that enforces them.

A connection is allowed if the policies of its source allow it to leave and those of its destination to arrive. A pod
that no policy selects for a direction is open in that direction; the rules of several policies add up. A field that
this evaluator does not know is an error, so that nothing is ignored.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Obj = dict[str, Any]


@dataclass(frozen=True)
class Pod:
    """A pod with its labels, and those of its namespace."""

    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels besides `kubernetes.io/metadata.name`, which every namespace has."""


@dataclass(frozen=True)
class Outside:
    """An address that no pod has: of a node, of the cloud, of the internet."""

    address: str


Endpoint = Pod | Outside


def is_allowed(
    policies: Sequence[Obj], source: Endpoint, destination: Endpoint, port: int, protocol: str = "TCP"
) -> bool:
    """Whether the policies allow the connection."""
    return _passes(policies, "Egress", source, destination, port, protocol) and _passes(
        policies, "Ingress", destination, source, port, protocol
    )


def _passes(policies: Sequence[Obj], direction: str, end: Endpoint, peer: Endpoint, port: int, protocol: str) -> bool:
    """Whether the policies of one end allow the connection with its peer."""
    if isinstance(end, Outside):
        return True
    selecting = [p for p in policies if _selects(p, direction, end)]
    if not selecting:
        return True
    return any(
        _has_port(rule.get("ports"), port, protocol) and _has_peer(policy, rule.get("peers"), peer)
        for policy in selecting
        for rule in _rules(policy, direction)
    )


def _selects(policy: Obj, direction: str, pod: Pod) -> bool:
    spec = policy["spec"]
    _check_keys(spec, "podSelector", "policyTypes", "ingress", "egress")
    # Without types, a policy is about arrivals, and about departures if it has rules for them.
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if "egress" in spec else [])]
    same = policy["metadata"]["namespace"] == pod.namespace
    return direction in types and same and _matches(spec["podSelector"], pod.labels)


def _rules(policy: Obj, direction: str) -> list[Obj]:
    """The rules of one direction, with their `to` or `from` as `peers`."""
    kind, peers = ("egress", "to") if direction == "Egress" else ("ingress", "from")
    found = policy["spec"].get(kind) or []
    for rule in found:
        _check_keys(rule, "ports", peers)
    return [{"ports": rule.get("ports"), "peers": rule.get(peers)} for rule in found]


def _has_peer(policy: Obj, peers: Sequence[Obj] | None, end: Endpoint) -> bool:
    """Whether one of the peers is that end. No peers are all."""
    return not peers or any(_is_peer(policy, peer, end) for peer in peers)


def _is_peer(policy: Obj, peer: Obj, end: Endpoint) -> bool:
    _check_keys(peer, "podSelector", "namespaceSelector", "ipBlock")
    if "ipBlock" in peer:
        assert len(peer) == 1, "an ipBlock stands alone"
        return isinstance(end, Outside) and _in_block(peer["ipBlock"], end.address)
    if isinstance(end, Outside):
        return False
    if "namespaceSelector" in peer:
        labels = {"kubernetes.io/metadata.name": end.namespace, **end.namespace_labels}
        in_namespace = _matches(peer["namespaceSelector"], labels)
    else:
        in_namespace = end.namespace == policy["metadata"]["namespace"]
    return in_namespace and _matches(peer.get("podSelector", {}), end.labels)


def _in_block(block: Obj, address: str) -> bool:
    _check_keys(block, "cidr", "except")
    own = ipaddress.ip_address(address)
    return own in ipaddress.ip_network(block["cidr"]) and not any(
        own in ipaddress.ip_network(hole) for hole in block.get("except") or []
    )


def _has_port(ports: Sequence[Obj] | None, port: int, protocol: str) -> bool:
    """Whether one of the ports is that one. No ports are all."""
    if not ports:
        return True
    for one in ports:
        _check_keys(one, "port", "endPort", "protocol")
        if one.get("protocol", "TCP") != protocol:
            continue
        first = one.get("port")
        assert first is None or isinstance(first, int), f"named port {first}"
        if first is None or first <= port <= one.get("endPort", first):
            return True
    return False


def _matches(selector: Obj, labels: Mapping[str, str]) -> bool:
    """Whether the selector selects the labels. An empty one selects all."""
    _check_keys(selector, "matchLabels", "matchExpressions")
    return all(labels.get(key) == value for key, value in (selector.get("matchLabels") or {}).items()) and all(
        _fits(expression, labels) for expression in selector.get("matchExpressions") or ()
    )


def _fits(expression: Obj, labels: Mapping[str, str]) -> bool:
    _check_keys(expression, "key", "operator", "values")
    if expression["operator"] == "Exists":
        return expression["key"] in labels
    assert expression["operator"] == "In", f"operator {expression['operator']}"
    return labels.get(expression["key"]) in expression["values"]


def _check_keys(part: Mapping[str, Any], *keys: str) -> None:
    assert set(part) <= set(keys), f"not known: {sorted(set(part) - set(keys))}"
