"""RLAdapter: one uploaded LoRA adapter of a run."""

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from rlrun.schema.artifact_status import ArtifactSpec, ArtifactStatus
from rlrun.schema.base import Schema
from rlrun.schema.kube import API_VERSION, ApiVersion, ObjectMeta


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
    """Why deploying or unloading failed and what to do about it."""


class RLAdapter(Schema):
    """One uploaded LoRA adapter of a run, ready to be downloaded or deployed."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["RLAdapter"] = "RLAdapter"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: RLAdapterSpec
    """What the adapter is, where it lies, and whether it should be served."""
    status: RLAdapterStatus = Field(default_factory=RLAdapterStatus)
    """What S3 shows of it, and where its deployment stands; written by the operator."""

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """The typed adapter of a Kubernetes object. Raises pydantic.ValidationError with all problems."""
        return cls.model_validate(obj, by_alias=True, by_name=False)
