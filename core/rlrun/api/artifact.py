"""Fields that RLCheckpoint and RLAdapter share: one folder in S3 and its lifecycle."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from pydantic import Field

from rlrun.api.base.kubernetes_types import Condition, Status, UtcTime
from rlrun.api.base.names import ModelId, Namespace, ObjectName, S3Path
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.base.rules import LIST_MAP_KEYS, LIST_TYPE, Rule, Spec, Transition


class ArtifactSpec(Spec):
    """Identity and location of an artifact."""

    run_name: ObjectName
    """Name of the RLRun that created the artifact."""
    run_uid: str = Field(min_length=1, max_length=64)
    """UID of the RLRun that created the artifact. It is part of the artifact's path in S3."""
    model: ModelId
    """Id of the base model."""
    step: int = Field(ge=0, le=2**31 - 1)
    """Number of optimizer steps that the artifact includes. For a run with driver Client, the number of the call that saved the artifact."""  # noqa: E501
    uri: S3Path
    """URI of the artifact's folder in S3."""
    shared_with: list[Namespace] = Field(default_factory=list, max_length=64, json_schema_extra={LIST_TYPE: "set"})
    """Other namespaces whose runs may use the artifact."""
    expires_at: UtcTime | None = None
    """Time after which retention deletes the artifact's files and this object. Applies while the artifact's run exists. Overrides the expiry time chosen by the program that saved the artifact. Once set, the field can be changed but not removed; a time in the year 9999 means never. The newest checkpoint of an unfinished run is kept until the run has a newer checkpoint or ends, because a restarted run continues from it. Deployed adapters and checkpoints that a run starts from are kept."""  # noqa: E501

    spec_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "expiresAt",
            # Also refuses lists, which the API server accepts for the format of times.
            "!has(self.expiresAt) || self.expiresAt >= timestamp('1000-01-01T00:00:00Z')",
            "expiresAt must be a time in UTC as in 2027-01-31T12:00:00Z",
            lambda spec: True,
        ),
    )
    spec_transitions: ClassVar[tuple[Transition, ...]] = (
        Transition(
            "expiresAt",
            "!has(oldSelf.expiresAt) || has(self.expiresAt)",
            "expiresAt cannot be removed: set 9999-12-31T00:00:00Z to keep the artifact",
            lambda new, old: old.expires_at is None or new.expires_at is not None,
        ),
    )


NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""Value of `spec.expiresAt` for an artifact that never expires. It overrides an expiry time chosen by the program that
saved the artifact.
"""


def expiry_text(expires_at: datetime) -> str:
    """Format a UTC time as the `expiresAt` of an artifact, without fractions of a second."""
    return expires_at.replace(microsecond=0).isoformat().replace("+00:00", "Z")


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
    """Mean reward of the step after which the artifact was saved."""
    created_at: datetime | None = None
    """Time at which the upload completed."""
    expires_at: datetime | None = None
    """Time after which retention deletes the artifact: spec.expiresAt or, if unset, the time chosen by the program that saved the artifact. The newest artifact is kept unless spec.expiresAt is set. The newest checkpoint of an unfinished run is kept in any case. Deployed adapters and checkpoints that a run starts from are kept."""  # noqa: E501
    message: str | None = Field(default=None, max_length=4096)
    """Reason why the artifact is not Ready, and what to do about it."""
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
