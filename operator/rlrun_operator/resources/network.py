"""Who may talk to whom within a run. User code reaches the orchestrator and DNS, and with that nothing else: neither
the API server, nor the cloud's metadata address, nor S3, nor another run."""

from typing import Any

from rlrun.constants import (
    ENVIRONMENT_PORT,
    GATEWAY_PORT,
    INFERENCE_PORT,
    ORCHESTRATOR_STATUS_PORT,
    SIDECAR_PORT,
    TRAINER_PORT,
    Role,
)

from rlrun_operator.resources.naming import RunIdentity

Obj = dict[str, Any]


def network_policies(identity: RunIdentity, operator_namespace: str) -> list[Obj]:
    """One policy for the pods of each role. The operator's namespace may ask the orchestrator for its status."""
    orchestrator = {"podSelector": {"matchLabels": identity.selector(Role.orchestrator)}}
    environments = {"podSelector": {"matchLabels": identity.selector(Role.environment)}}
    engines = {"podSelector": {"matchLabels": identity.selector(Role.inference)}}
    trainers = {"podSelector": {"matchLabels": identity.selector(Role.trainer)}}
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}}}
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    return [
        _policy(
            identity,
            Role.environment,
            ingress=[{"from": [orchestrator], "ports": _tcp(ENVIRONMENT_PORT)}],
            egress=[{"to": [orchestrator], "ports": _tcp(GATEWAY_PORT)}, dns],
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
            # Engines get policies from the trainer while S3 is away. Processes that train together talk on ports that
            # they agree on among themselves.
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


def _tcp(*ports: int) -> list[Obj]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
