"""NetworkPolicies of a run.

User code can reach only the orchestrator, the cluster's DNS and, if an environment lists hosts in `egress`, the egress
proxy, but not the Kubernetes API, the cloud's metadata address, S3 or other runs. Trainers and engines need the S3
server and the source of their model. Only the platform team knows these addresses, so the egress of trainers and
engines is restricted only if they are configured. An orchestrator needs S3 and the users' teachers, judges and
experiment trackers. Every pod has an egress rule, even if it may reach everything, because a namespace may have a
default-deny policy.
"""

from collections.abc import Sequence
from urllib.parse import urlsplit

from rlrun.constants import (
    EGRESS_PORT,
    ENVIRONMENT_PORT,
    GATEWAY_CONTAINER_PORT,
    INFERENCE_PORT,
    LOG_HOLD_PORT,
    ORCHESTRATOR_STATUS_CONTAINER_PORT,
    ROLE_LABEL,
    SERVING_LABEL,
    SIDECAR_PORT,
    TRAINER_PORT,
    Role,
)
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import ResolvedRun

from rlrun_operator.config.settings import ClusterDns, OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.environment import wants_egress

EVERYTHING: Obj = {}
"""Egress rule for all destinations."""
SERVER_LABELS = {"app.kubernetes.io/name": "rlrun", "app.kubernetes.io/component": "server"}
"""Labels of the pods of rlrun-server in the chart."""


def network_policies(identity: RunIdentity, settings: OperatorSettings, resolved: ResolvedRun) -> list[Obj]:
    """Return the NetworkPolicies of a run, which select all of its pods."""
    pool = resolved.endpoints.pool
    orchestrator, environments, engines, trainers = (
        {"podSelector": {"matchLabels": labels}}
        for labels in (
            identity.selector(Role.orchestrator),
            identity.selector(Role.environment),
            identity.selector(Role.inference) if pool is None else {SERVING_LABEL: pool},
            identity.selector(Role.trainer),
        )
    )
    system = system_peer(settings)
    outside: list[Obj] = []
    if settings.egress is not None and wants_egress(resolved.spec):
        proxies = {**system, "podSelector": {"matchLabels": {"app.kubernetes.io/component": settings.egress.component}}}
        outside = [{"to": [proxies], "ports": tcp_ports(EGRESS_PORT)}]
    user_code = _policy(
        identity,
        identity.child("user-code"),
        [Role.environment],
        [
            {"from": [orchestrator], "ports": tcp_ports(ENVIRONMENT_PORT)},
            {"from": [system], "ports": tcp_ports(LOG_HOLD_PORT)},
            *scrapes(settings, ENVIRONMENT_PORT),
        ],
        [{"to": [orchestrator], "ports": tcp_ports(GATEWAY_CONTAINER_PORT)}, _dns_rule(settings.dns), *outside],
    )
    limit = model_egress(settings) if settings.model_egress is not None else None
    processes = _policy(
        identity,
        identity.child("processes"),
        [Role.orchestrator, Role.trainer, Role.inference],
        [
            {"from": [environments], "ports": tcp_ports(GATEWAY_CONTAINER_PORT)},
            {"from": [system], "ports": tcp_ports(ORCHESTRATOR_STATUS_CONTAINER_PORT, LOG_HOLD_PORT)},
            {"from": [orchestrator], "ports": tcp_ports(TRAINER_PORT, INFERENCE_PORT, SIDECAR_PORT)},
            # Engines load policies from the trainer while S3 is unreachable.
            {"from": [engines], "ports": tcp_ports(TRAINER_PORT)},
            *scrapes(settings, ORCHESTRATOR_STATUS_CONTAINER_PORT, TRAINER_PORT, INFERENCE_PORT, SIDECAR_PORT),
        ],
        [EVERYTHING] if limit is None else None,
    )
    policies = [user_code, processes]
    if resolved.model.trainer.nodes > 1:
        # The pods of a multi-node trainer use dynamic ports.
        policies.append(_policy(identity, identity.trainer, [Role.trainer], [{"from": [trainers]}]))
    if limit is not None:
        egress = [{"to": [trainers]}, *limit]
        policies.append(_policy(identity, identity.child("models"), [Role.trainer, Role.inference], None, egress))
        policies.append(_policy(identity, identity.child("outgoing"), [Role.orchestrator], None, [EVERYTHING]))
    return policies


def scrapes(settings: OperatorSettings, *ports: int) -> list[Obj]:
    """Return the ingress rule for metrics scrapers, or an empty list if there are no scrapers. Other paths on these
    ports require a token.
    """
    peers = settings.metrics_peers
    return [{"from": peers, "ports": tcp_ports(*ports)}] if peers else []


def model_egress(settings: OperatorSettings) -> list[Obj]:
    """Return the egress rules of pods with models: DNS, rlrun-server and the configured destinations. If no
    destinations are configured, everything is allowed.
    """
    if settings.model_egress is None:
        return [EVERYTHING]
    url = urlsplit(settings.storage_server)
    server = {**system_peer(settings), "podSelector": {"matchLabels": SERVER_LABELS}}
    return [
        _dns_rule(settings.dns),
        {"to": [server], "ports": tcp_ports(url.port or (443 if url.scheme == "https" else 80))},
        *(rule.model_dump(exclude_defaults=True) for rule in settings.model_egress),
    ]


def system_peer(settings: OperatorSettings) -> Obj:
    """Return the NetworkPolicy peer for the operator's namespace, in which rlrun-server and rlrun-tinker also run."""
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.lease_namespace}}}


def build_policy(metadata: Obj, pods: Obj, ingress: list[Obj] | None, egress: list[Obj] | None) -> Obj:
    """Return a policy for the pods that `pods` selects. A direction whose rules are None is not restricted."""
    rules = {kind: found for kind, found in (("ingress", ingress), ("egress", egress)) if found is not None}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {"podSelector": pods, "policyTypes": [kind.capitalize() for kind in rules], **rules},
    }


def _policy(
    identity: RunIdentity,
    name: str,
    roles: Sequence[Role],
    ingress: list[Obj] | None,
    egress: list[Obj] | None = None,
) -> Obj:
    """Return a policy for the pods of `roles`."""
    of_roles = {"key": ROLE_LABEL, "operator": "In", "values": [role.value for role in roles]}
    pods = {"matchLabels": identity.selector(), "matchExpressions": [of_roles]}
    return build_policy(identity.metadata(name), pods, ingress, egress)


def _dns_rule(servers: ClusterDns) -> Obj:
    """Return the egress rule for DNS servers. It always has a destination, because a rule without destinations allows
    all connections.
    """
    pods = {
        "namespaceSelector": {"matchLabels": dict(servers.namespace_labels)},
        "podSelector": {"matchLabels": dict(servers.pod_labels)},
    }
    networks = [{"ipBlock": {"cidr": cidr}} for cidr in servers.cidrs]
    return {"to": [pods, *networks], "ports": [{"port": servers.port, "protocol": kind} for kind in ("UDP", "TCP")]}


def tcp_ports(*ports: int) -> list[Obj]:
    """Return the ports of a NetworkPolicy rule."""
    return [{"port": port, "protocol": "TCP"} for port in ports]
