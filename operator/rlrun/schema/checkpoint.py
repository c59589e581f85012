"""RLCheckpoint: one checkpoint of a run in S3."""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field

from rlrun.schema.artifact_status import ArtifactSpec, ArtifactStatus
from rlrun.schema.base import Schema
from rlrun.schema.kube import API_VERSION, ApiVersion, ObjectMeta


class RLCheckpointSpec(ArtifactSpec):
    """What the checkpoint is and where it lies."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"shared_with"})


class RLCheckpointStatus(ArtifactStatus):
    """What S3 shows of the checkpoint."""


class RLCheckpoint(Schema):
    """One checkpoint of a run: all that is needed to continue from it."""

    api_version: ApiVersion = API_VERSION
    kind: Literal["RLCheckpoint"] = "RLCheckpoint"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: RLCheckpointSpec
    """What the checkpoint is and where it lies."""
    status: RLCheckpointStatus = Field(default_factory=RLCheckpointStatus)
    """What S3 shows of it; written by the operator."""

    @classmethod
    def from_object(cls, obj: dict[str, Any]) -> Self:
        """The typed checkpoint of a Kubernetes object. Raises pydantic.ValidationError with all problems."""
        return cls.model_validate(obj, by_alias=True, by_name=False)
