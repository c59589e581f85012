"""Names, labels and owners of everything that belongs to a run.

Names are functions of the run's name alone (the Job's also of the attempt), so that writing a child a second time, or
late, can only ever hit the same object.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

GROUP = "rlrun.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

RUN_LABEL = "rlrun.dev/run"
ROLE_LABEL = "rlrun.dev/role"
COMPONENT_LABEL = "rlrun.dev/component"
ATTEMPT_LABEL = "rlrun.dev/attempt"
RUN_UID_LABEL = "rlrun.dev/run-uid"
STEP_LABEL = "rlrun.dev/step"
SERVING_LABEL = "rlrun.dev/serving"
"""Name of the serving pool that an object belongs to."""
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
"""On everything that the operator makes for runs and for serving pools."""

GENERATION_ANNOTATION = "rlrun.dev/generation"
"""metadata.generation of the RLRun that a child was built for."""
CONFIG_ANNOTATION = "rlrun.dev/config"
"""Digest of a changed configuration, on the pod that reads it."""
MODEL_ANNOTATION = "rlrun.dev/model"
"""Id of the base model that a serving pool's object is for; it does not fit into a label."""

FINALIZER = "rlrun.dev/artifacts"
SKIP_DELETION_ANNOTATION = "rlrun.dev/skip-artifact-deletion"
"""With the value "true" on an RLRun that is being deleted, it goes at once and its files in S3 stay."""
FIELD_MANAGER = "rlrun-operator"

Role = Literal["trainer", "inference", "environment", "orchestrator"]
ROLES: tuple[Role, ...] = ("trainer", "inference", "environment", "orchestrator")
Use = Literal["train", "eval"]


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
        return self.child("s3")

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
            labels[ROLE_LABEL] = role
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
            labels["app.kubernetes.io/component"] = role
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


def environment_component(index: int, use: Use) -> str:
    """`env-0` for the first training environment, `eval-0` for the first evaluation environment."""
    return f"{'env' if use == 'train' else 'eval'}-{index}"


def artifact_name(run: str, run_uid: str, step: int) -> str:
    """Name of the RLCheckpoint or RLAdapter of one step.

    The run's uid is part of it: artifacts outlive their run, and a later run of the same name must not take the names
    of its predecessor's artifacts.
    """
    return f"{run}-step-{step:06d}-{run_uid[:8]}"


def model_object_name(model_id: str) -> str:
    """A valid object name for a model id such as `Qwen/Qwen3-4B`."""
    return re.sub(r"[^a-z0-9]+", "-", model_id.lower()).strip("-")


def label(obj: Mapping[str, Any], key: str) -> str:
    """The label's value, empty where it is missing."""
    return str((obj.get("metadata", {}).get("labels") or {}).get(key, ""))


def annotation(obj: Mapping[str, Any], key: str) -> str:
    """The annotation's value, empty where it is missing."""
    return str((obj.get("metadata", {}).get("annotations") or {}).get(key, ""))


def attempt_of(obj: Mapping[str, Any]) -> int:
    """The attempt a child belongs to; 0 where its label is missing or broken."""
    text = label(obj, ATTEMPT_LABEL)
    return int(text) if text.isdigit() else 0
