"""RLAdapter: one uploaded LoRA adapter of a run."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from rlrun.api.artifact import ArtifactSpec, ArtifactStatus
from rlrun.api.base.kubernetes_types import KubernetesObject


class DeploymentState(StrEnum):
    """Where the deployment of an adapter stands."""

    not_deployed = "NotDeployed"
    deploying = "Deploying"
    deployed = "Deployed"
    unloading = "Unloading"
    deploy_failed = "DeployFailed"
    unload_failed = "UnloadFailed"


class RLAdapterSpec(ArtifactSpec):
    """What the adapter is, where it lies, and whether it should be served."""

    deployed: bool = False
    """Whether the adapter should be served for inference. While it is true the adapter is never cleaned up."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"shared_with", "deployed"})


class RLAdapterStatus(ArtifactStatus):
    """What S3 shows of the adapter, and where its deployment stands."""

    deployment_state: DeploymentState = DeploymentState.not_deployed
    """NotDeployed, Deploying, Deployed, Unloading, DeployFailed or UnloadFailed."""
    deployed_at: datetime | None = None
    """When it was last deployed."""
    deployment_message: str | None = Field(default=None, max_length=4096)
    """What deploying or unloading waits for, or why it failed and what to do about it."""
    deployment_model: str | None = Field(default=None, max_length=512)
    """Its model name in requests: the base model's id, a colon, and this object's name."""
    deployment_url: str | None = Field(default=None, max_length=512)
    """Base URL of the OpenAI API that serves it, for pods of the same namespace."""


class RLAdapter(KubernetesObject):
    """One uploaded LoRA adapter of a run, ready to be downloaded or deployed."""

    kind: Literal["RLAdapter"] = "RLAdapter"
    spec: RLAdapterSpec
    """What the adapter is, where it lies, and whether it should be served."""
    status: RLAdapterStatus = Field(default_factory=RLAdapterStatus)
    """What S3 shows of it, and where its deployment stands; written by the operator."""
