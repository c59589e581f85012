"""What checkpoints and adapters have in common: one folder in S3 and its life."""

from datetime import datetime
from enum import StrEnum

from pydantic import Field

from rlrun.api.base.kubernetes_types import Condition, Status
from rlrun.api.base.names import ModelId, Namespace, ObjectName, S3Path
from rlrun.api.base.rules import LIST_MAP_KEYS, LIST_TYPE, Spec


class ArtifactPhase(StrEnum):
    """Where an artifact stands."""

    pending = "Pending"
    uploading = "Uploading"
    ready = "Ready"
    failed = "Failed"
    deleting = "Deleting"


class ArtifactSpec(Spec):
    """What an artifact is and where it lies."""

    run_name: ObjectName
    """RLRun that made it."""
    run_uid: str = Field(min_length=1, max_length=64)
    """Uid of that RLRun: its folder in S3 carries it."""
    model: ModelId
    """Model it was trained from."""
    step: int = Field(ge=0, le=1_000_000)
    """Optimizer steps behind it."""
    uri: S3Path
    """Its folder in S3."""
    shared_with: list[Namespace] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"})
    """Other namespaces whose runs may use it."""


class ArtifactStatus(Status):
    """What S3 shows of it."""

    phase: ArtifactPhase | None = None
    """Pending, Uploading, Ready (all files are in S3 with the sizes of the manifest), Failed or Deleting (retention removes it)."""  # noqa: E501
    size_bytes: int | None = Field(default=None, ge=0)
    """Size of all files."""
    policy_version: int | None = Field(default=None, ge=0)
    """Version of the policy in it."""
    reward: float | None = None
    """Mean reward of the step it was taken after."""
    created_at: datetime | None = None
    """When its manifest was written."""
    message: str | None = Field(default=None, max_length=4096)
    """Why it is not Ready and what to do about it."""
    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status is about."""
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, json_schema_extra={LIST_MAP_KEYS: ["type"]}
    )
    """State for machines, one entry per type."""
