"""RLAdapter: one uploaded LoRA adapter of a run."""

from datetime import datetime
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import Field

from rlrun.api.artifact import DIGEST_IS_FINAL, ArtifactSpec, ArtifactStatus
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.base.rules import Transition


class DeploymentState(StrEnum):
    """State of an adapter's deployment."""

    not_deployed = "NotDeployed"
    deploying = "Deploying"
    deployed = "Deployed"
    unloading = "Unloading"
    deploy_failed = "DeployFailed"
    unload_failed = "UnloadFailed"


class RLAdapterSpec(ArtifactSpec):
    """Identity and location of the adapter, and whether it is served."""

    deployed: bool = False
    """Serves the adapter for inference. A deployed adapter is exempt from retention."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"shared_with", "expires_at", "deployed"})


class RLAdapterStatus(ArtifactStatus):
    """Observed state of the adapter in S3 and of its deployment."""

    deployment_state: DeploymentState = DeploymentState.not_deployed
    """State of the deployment: NotDeployed, Deploying, Deployed, Unloading, DeployFailed or UnloadFailed."""
    deployed_at: datetime | None = None
    """Time of the latest deployment."""
    deployment_message: str | None = Field(default=None, max_length=4096)
    """Cause of a pending or failed deployment, and what to do about it."""
    deployment_model: str | None = Field(default=None, max_length=512)
    """Model name to use in requests: the base model's id, a colon, and this object's name."""
    deployment_url: str | None = Field(default=None, max_length=512)
    """Base URL of the OpenAI-compatible API that serves the adapter, reachable from pods in the same namespace."""
    deployment_secret: str | None = Field(default=None, max_length=253)
    """Name of the Secret, in the same namespace, that contains the API key for deploymentUrl under the key
    OPENAI_API_KEY.
    """


class RLAdapter(KubernetesObject):
    """One uploaded LoRA adapter of a run, ready to be downloaded or deployed."""

    kind: Literal["RLAdapter"] = "RLAdapter"
    spec: RLAdapterSpec
    """Identity and location of the adapter, and whether it is served."""
    status: RLAdapterStatus = Field(default_factory=RLAdapterStatus)
    """Observed state of the adapter in S3 and of its deployment. Written by the operator."""

    spec_transitions: ClassVar[tuple[Transition, ...]] = (DIGEST_IS_FINAL,)
