"""RLCheckpoint: one checkpoint of a run in S3."""

from typing import ClassVar, Literal

from pydantic import Field

from rlrun.api.artifact import ArtifactSpec, ArtifactStatus
from rlrun.api.base.kubernetes_types import KubernetesObject


class RLCheckpointSpec(ArtifactSpec):
    """What the checkpoint is and where it lies."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"shared_with"})


class RLCheckpointStatus(ArtifactStatus):
    """What S3 shows of the checkpoint."""


class RLCheckpoint(KubernetesObject):
    """One checkpoint of a run: all that is needed to continue from it."""

    kind: Literal["RLCheckpoint"] = "RLCheckpoint"
    spec: RLCheckpointSpec
    """What the checkpoint is and where it lies."""
    status: RLCheckpointStatus = Field(default_factory=RLCheckpointStatus)
    """What S3 shows of it; written by the operator."""
