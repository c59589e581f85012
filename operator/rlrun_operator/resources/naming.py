"""Names, labels and owners of everything that belongs to a run.

Names are functions of the run's name alone (the Job's also of the attempt), so that writing a child a second time, or
late, can only ever hit the same object.
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


class Identity(Protocol):
    """Whose pods are built: what their builders ask of a run, or of a serving pool."""

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount of the pods."""

    @property
    def s3_secret(self) -> str:
        """Name of the Secret with the S3 credentials."""

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Labels that select the pods and never change."""

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """All labels of an object."""

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> dict[str, Any]:
        """Metadata of an object."""


@dataclass(frozen=True)
class RunIdentity:
    """Which attempt of which run an object belongs to."""

    namespace: str
    name: str
    uid: str
    attempt: int
    generation: int

    def child(self, suffix: str) -> str:
        """`<run>-<suffix>`."""
        return f"{self.name}-{suffix}"

    @property
    def config(self) -> str:
        """Name of the ConfigMap with the resolved run."""
        return self.child("config")

    @property
    def s3_secret(self) -> str:
        """Name of the Secret with the S3 credentials."""
        return s3_secret_name(self.name)

    @property
    def service_account(self) -> str:
        """Name of the ServiceAccount that all pods of the run use."""
        return self.name

    @property
    def trainer(self) -> str:
        """Name of the trainer's Deployment and Service."""
        return self.child("trainer")

    @property
    def trainer_nodes(self) -> str:
        """Name of the headless Service by which the pods of a trainer on several nodes find each other."""
        return self.child("trainer-nodes")

    @property
    def trainer_job(self) -> str:
        """Name of the Job of a trainer on several nodes in this attempt."""
        return self.child(f"trainer-a{self.attempt}")

    @property
    def inference(self) -> str:
        """Name of the inference replicas' Deployment and headless Service."""
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
        """Name of the Deployment and Service of one environment, counted from 0 within its use."""
        return self.child(environment_component(index, use))

    def service_host(self, service: str) -> str:
        """The DNS name of a Service of this run's namespace, as any pod of the cluster resolves it."""
        return f"{service}.{self.namespace}.svc"

    def owner_reference(self) -> dict[str, Any]:
        """The reference by which the garbage collector removes a child after its run."""
        return {
            "apiVersion": API_VERSION,
            "kind": "RLRun",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def selector(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """Labels that select the run's pods; never the attempt, because a Deployment's selector is immutable."""
        labels = {RUN_LABEL: self.name}
        if role:
            labels[ROLE_LABEL] = role.value
        if component:
            labels[COMPONENT_LABEL] = component
        return labels

    def labels(self, role: Role | None = None, component: str | None = None) -> dict[str, str]:
        """All labels of a child."""
        labels = {
            **self.selector(role, component),
            RUN_UID_LABEL: self.uid,
            ATTEMPT_LABEL: str(self.attempt),
            "app.kubernetes.io/name": "rlrun",
            "app.kubernetes.io/instance": self.name,
            "app.kubernetes.io/part-of": "rlrun",
            MANAGED_BY_LABEL: FIELD_MANAGER,
        }
        if role:
            labels["app.kubernetes.io/component"] = role.value
        return labels

    def metadata(self, name: str, role: Role | None = None, component: str | None = None) -> dict[str, Any]:
        """Metadata of a child object."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels(role, component),
            "annotations": {GENERATION_ANNOTATION: str(self.generation)},
            "ownerReferences": [self.owner_reference()],
        }


def s3_secret_name(owner: str) -> str:
    """Return the name of the Secret with the S3 credentials of a run or a serving pool."""
    return f"{owner}-s3"


def environment_component(index: int, use: Use) -> str:
    """`env-0` for the first training environment, `eval-0` for the first evaluation environment."""
    return f"{'env' if use == 'train' else 'eval'}-{index}"
