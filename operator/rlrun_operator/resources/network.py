"""NetworkPolicies of a run.

User code reaches only the orchestrator and the cluster's DNS: not the API server, the cloud's metadata address, S3 or
other runs.
"""

from collections.abc import Sequence
from typing import Any

from rlrun.constants import (
    EGRESS_PORT,
    ENVIRONMENT_PORT,
    GATEWAY_CONTAINER_PORT,
    INFERENCE_PORT,
    ORCHESTRATOR_STATUS_CONTAINER_PORT,
    ROLE_LABEL,
    SIDECAR_PORT,
    TRAINER_PORT,
    Role,
)

from rlrun_operator.config.settings import ClusterDns, EgressSettings
from rlrun_operator.resources.base.naming import RunIdentity

Obj = dict[str, Any]

DNS_PORT = 53


def network_policies(
    identity: RunIdentity,
    operator_namespace: str,
    cluster_dns: ClusterDns,
    *,
    trainer_nodes: int,
    proxy: EgressSettings | None = None,
) -> list[Obj]:
    """Return the policy of user code and that of the run's other processes.

    Args:
        identity: Names and labels of the run.
        operator_namespace: Namespace whose pods may read the orchestrator's status.
        cluster_dns: DNS servers that user code may ask.
        trainer_nodes: Number of the trainer's pods. Several have a policy of their own, because they use dynamic ports.
        proxy: The egress proxy if an environment of the run uses it.
    """
    orchestrator, environments, engines, trainers = (
        {"podSelector": {"matchLabels": identity.selector(role)}}
        for role in (Role.orchestrator, Role.environment, Role.inference, Role.trainer)
    )
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    outside: list[Obj] = []
    if proxy is not None:
        proxies = {**system, "podSelector": {"matchLabels": {"app.kubernetes.io/component": proxy.component}}}
        outside = [{"to": [proxies], "ports": _tcp(EGRESS_PORT)}]
    user_code = _policy(
        identity,
        identity.child("user-code"),
        [Role.environment],
        [{"from": [orchestrator], "ports": _tcp(ENVIRONMENT_PORT)}],
    )
    user_code["spec"]["policyTypes"].append("Egress")
    user_code["spec"]["egress"] = [
        {"to": [orchestrator], "ports": _tcp(GATEWAY_CONTAINER_PORT)},
        _dns_rule(cluster_dns),
        *outside,
    ]
    processes = _policy(
        identity,
        identity.child("processes"),
        [Role.orchestrator, Role.trainer, Role.inference],
        [
            {"from": [environments], "ports": _tcp(GATEWAY_CONTAINER_PORT)},
            {"from": [system], "ports": _tcp(ORCHESTRATOR_STATUS_CONTAINER_PORT)},
            {"from": [orchestrator], "ports": _tcp(TRAINER_PORT, INFERENCE_PORT, SIDECAR_PORT)},
            # Engines load policies from the trainer while S3 is unreachable.
            {"from": [engines], "ports": _tcp(TRAINER_PORT)},
        ],
    )
    if trainer_nodes == 1:
        return [user_code, processes]
    return [user_code, processes, _policy(identity, identity.trainer, [Role.trainer], [{"from": [trainers]}])]


def _policy(identity: RunIdentity, name: str, roles: Sequence[Role], ingress: list[Obj]) -> Obj:
    """Return a policy for connections to the pods of some roles."""
    of_roles = {"key": ROLE_LABEL, "operator": "In", "values": [role.value for role in roles]}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": identity.metadata(name),
        "spec": {
            "podSelector": {"matchLabels": identity.selector(), "matchExpressions": [of_roles]},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _dns_rule(servers: ClusterDns) -> Obj:
    """Return the egress rule for DNS servers. It always names a destination: a rule without one allows all."""
    pods = {
        "namespaceSelector": {"matchLabels": dict(servers.namespace_labels)},
        "podSelector": {"matchLabels": dict(servers.pod_labels)},
    }
    networks = [{"ipBlock": {"cidr": cidr}} for cidr in servers.cidrs]
    return {"to": [pods, *networks], "ports": [{"port": DNS_PORT, "protocol": kind} for kind in ("UDP", "TCP")]}


def _tcp(*ports: int) -> list[Obj]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
