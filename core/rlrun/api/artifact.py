"""Fields that RLCheckpoint and RLAdapter share: one folder in S3 and its lifecycle."""

from datetime import datetime
from typing import Any

from pydantic import Field

from rlrun.api.base.kubernetes_types import Condition, Status
from rlrun.api.base.names import ModelId, Namespace, ObjectName, S3Path
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.base.rules import LIST_MAP_KEYS, LIST_TYPE, Spec, Transition


class ArtifactSpec(Spec):
    """Identity and location of an artifact."""

    run_name: ObjectName
    """Name of the RLRun that created the artifact."""
    run_uid: str = Field(min_length=1, max_length=64)
    """UID of that RLRun, which is part of the artifact's path in S3."""
    model: ModelId
    """Id of the base model."""
    step: int = Field(ge=0, le=2**31 - 1)
    """Number of optimizer steps that the artifact includes. Of a run with driver Client, number of the call that saved it."""  # noqa: E501
    uri: S3Path
    """URI of the artifact's folder in S3."""
    shared_with: list[Namespace] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"})
    """Other namespaces whose runs may use the artifact."""


class ArtifactStatus(Status):
    """Observed state of the artifact in S3."""

    phase: ArtifactPhase | None = None
    """Phase of the artifact: Pending, Uploading, Ready (S3 holds all files with the sizes in the manifest), Failed or Deleting (being removed by retention)."""  # noqa: E501
    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the manifest in S3, which lists the digests of all files. Set once, when the artifact becomes Ready. Every reader of the artifact verifies it."""  # noqa: E501
    size_bytes: int | None = Field(default=None, ge=0)
    """Total size of the files in bytes."""
    policy_version: int | None = Field(default=None, ge=0)
    """Version of the policy in the artifact."""
    reward: float | None = None
    """Mean reward of the artifact's step."""
    created_at: datetime | None = None
    """Time at which the upload completed."""
    expires_at: datetime | None = None
    """Time from which retention deletes the artifact, as the client's program that saved it has asked. The newest artifact, a deployed adapter and a checkpoint that a run starts from are kept."""  # noqa: E501
    message: str | None = Field(default=None, max_length=4096)
    """Cause if the artifact is not Ready, and what to do about it."""
    observed_generation: int | None = Field(default=None, ge=0)
    """Generation of the spec that this status describes."""
    conditions: list[Condition] = Field(
        default_factory=list, max_length=32, json_schema_extra={LIST_MAP_KEYS: ["type"]}
    )
    """Conditions, one entry per type."""


def _digest_of(artifact: Any) -> str | None:
    status: ArtifactStatus = artifact.status
    return status.digest


DIGEST_IS_FINAL = Transition(
    "status",
    "!has(oldSelf.status) || !has(oldSelf.status.digest) || (has(self.status) && has(self.status.digest)"
    " && self.status.digest == oldSelf.status.digest)",
    "digest is immutable: delete the object, and the operator recreates it from the files that are in S3 now",
    lambda new, old: _digest_of(old) in (None, _digest_of(new)),
)
"""Rule of RLCheckpoint and RLAdapter: readers verify files against the digest, so it must not change."""
