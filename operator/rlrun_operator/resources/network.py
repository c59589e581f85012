"""NetworkPolicies of a run.

User code reaches only the orchestrator and the cluster's DNS: not the API server, the cloud's metadata address, S3 or
other runs.
"""

from typing import Any

from rlrun.constants import (
    EGRESS_PORT,
    ENVIRONMENT_PORT,
    GATEWAY_PORT,
    INFERENCE_PORT,
    ORCHESTRATOR_STATUS_PORT,
    SIDECAR_PORT,
    TRAINER_PORT,
    Role,
)

from rlrun_operator.config.settings import ClusterDns, EgressSettings
from rlrun_operator.resources.naming import RunIdentity

Obj = dict[str, Any]

DNS_PORT = 53


def network_policies(
    identity: RunIdentity, operator_namespace: str, cluster_dns: ClusterDns, proxy: EgressSettings | None = None
) -> list[Obj]:
    """Return one policy per role. The operator's namespace may read the orchestrator's status.

    `proxy` is the egress proxy if an environment of the run uses it.
    """
    orchestrator = {"podSelector": {"matchLabels": identity.selector(Role.orchestrator)}}
    environments = {"podSelector": {"matchLabels": identity.selector(Role.environment)}}
    engines = {"podSelector": {"matchLabels": identity.selector(Role.inference)}}
    trainers = {"podSelector": {"matchLabels": identity.selector(Role.trainer)}}
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    outside: list[Obj] = []
    if proxy is not None:
        proxies = {**system, "podSelector": {"matchLabels": {"app.kubernetes.io/component": proxy.component}}}
        outside = [{"to": [proxies], "ports": _tcp(EGRESS_PORT)}]
    return [
        _policy(
            identity,
            Role.environment,
            ingress=[{"from": [orchestrator], "ports": _tcp(ENVIRONMENT_PORT)}],
            egress=[{"to": [orchestrator], "ports": _tcp(GATEWAY_PORT)}, _dns_rule(cluster_dns), *outside],
        ),
        _policy(
            identity,
            Role.orchestrator,
            ingress=[
                {"from": [environments], "ports": _tcp(GATEWAY_PORT)},
                {"from": [system], "ports": _tcp(ORCHESTRATOR_STATUS_PORT)},
            ],
        ),
        _policy(
            identity,
            Role.trainer,
            # Engines load policies from the trainer while S3 is unreachable. Processes of a multi-node trainer use
            # dynamic ports.
            ingress=[{"from": [orchestrator, engines], "ports": _tcp(TRAINER_PORT)}, {"from": [trainers]}],
        ),
        _policy(
            identity, Role.inference, ingress=[{"from": [orchestrator], "ports": _tcp(INFERENCE_PORT, SIDECAR_PORT)}]
        ),
    ]


def _policy(identity: RunIdentity, role: Role, ingress: list[Obj], egress: list[Obj] | None = None) -> Obj:
    spec: Obj = {
        "podSelector": {"matchLabels": identity.selector(role)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    if egress is not None:
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = egress
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": identity.metadata(identity.child(role), role),
        "spec": spec,
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
