"""Names, labels and owners of everything that belongs to a run.

A name depends only on the run's name (and for Jobs on the attempt), so that a repeated or late write always affects the
same object.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from rlrun.constants import (
    API_VERSION,
    ATTEMPT_LABEL,
    COMPONENT_LABEL,
    FIELD_MANAGER,
    GENERATION_ANNOTATION,
    MANAGED_BY_LABEL,
    ROLE_LABEL,
    RUN_LABEL,
    RUN_UID_LABEL,
    Role,
    Use,
)


def role_labels(role: Role | None, component: str | None) -> dict[str, str]:
    """Return the labels for a role and a component. Values that are None are omitted."""
    return {**({ROLE_LABEL: role.value} if role else {}), **({COMPONENT_LABEL: component} if component else {})}


class OwnerIdentity(Protocol):
    """Identity of a run, serving pool or weights cache, for the builders of its pods."""

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount of the pods."""

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return the labels that select the pods."""

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return all labels of an object."""

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> dict[str, Any]:
        """Return the metadata of an object."""


@dataclass(frozen=True)
class RunIdentity:
    """Identity of one attempt of a run."""

    namespace: str
    name: str
    uid: str
    attempt: int
    generation: int

    def child(self, suffix: str) -> str:
        """Return `<run>-<suffix>`."""
        return f"{self.name}-{suffix}"

    @property
    def config(self) -> str:
        """Name of the ConfigMap with the resolved run."""
        return config_name(self.name)

    @property
    def token_secret(self) -> str:
        """Name of the Secret with the run's tokens."""
        return token_secret_name(self.name)

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount that all pods of the run use."""
        return self.name

    @property
    def trainer(self) -> str:
        """Name of the trainer's ReplicaSet and Service."""
        return self.child("trainer")

    @property
    def trainer_nodes(self) -> str:
        """Name of the headless Service for the pods of a multi-node trainer."""
        return self.child("trainer-nodes")

    @property
    def trainer_job(self) -> str:
        """Name of the Job of a multi-node trainer in this attempt."""
        return self.child(f"trainer-a{self.attempt}")

    @property
    def inference(self) -> str:
        """Name of the ReplicaSet and headless Service of the inference replicas."""
        return self.child("inference")

    @property
    def orchestrator(self) -> str:
        """Name of the orchestrator's Service."""
        return self.child("orchestrator")

    @property
    def orchestrator_job(self) -> str:
        """Name of the orchestrator's Job in this attempt."""
        return self.child(f"orchestrator-a{self.attempt}")

    def environment(self, index: int, use: Use) -> str:
        """Return the name of the ReplicaSet and Service of one environment; `index` is its index in env or eval.env."""
        return self.child(environment_component(index, use))

    def service_host(self, service: str) -> str:
        """Return the DNS name of a Service in the run's namespace."""
        return f"{service}.{self.namespace}.svc"

    def owner_reference(self) -> dict[str, Any]:
        """Return the owner reference that makes Kubernetes delete a child with its run."""
        return {
            "apiVersion": API_VERSION,
            "kind": "RLRun",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return the labels that select the run's pods in all attempts."""
        return {RUN_LABEL: self.name, **role_labels(role, component)}

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Return all labels of a child."""
        return {
            **self.selector(role, component),
            RUN_UID_LABEL: self.uid,
            ATTEMPT_LABEL: str(self.attempt),
            "app.kubernetes.io/name": "rlrun",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/part-of": "rlrun",
            MANAGED_BY_LABEL: FIELD_MANAGER,
            **({"app.kubernetes.io/component": role.value} if role else {}),
        }

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> dict[str, Any]:
        """Return the metadata of a child."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(role, component),
            "annotations": {GENERATION_ANNOTATION: str(self.generation)},
            "ownerReferences": [self.owner_reference()],
        }


def config_name(run: str) -> str:
    """Return the name of the ConfigMap with the configuration of a run's attempt."""
    return f"{run}-config"


def token_secret_name(owner: str) -> str:
    """Return the name of the Secret with the tokens of a run or a serving pool."""
    return f"{owner}-rlrun-token"


def environment_component(index: int, use: Use) -> str:
    """Return the component of an environment: `env-0` for the first training environment, `eval-0` for the first
    evaluation environment.
    """
    return f"{'env' if use == 'train' else 'eval'}-{index}"
