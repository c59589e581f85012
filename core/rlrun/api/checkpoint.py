"""RLCheckpoint: one checkpoint of a run in S3."""

from typing import ClassVar, Literal

from pydantic import Field

from rlrun.api.artifact import DIGEST_IS_FINAL, ArtifactSpec, ArtifactStatus
from rlrun.api.base.kubernetes_types import KubernetesObject
from rlrun.api.base.rules import Transition


class RLCheckpointSpec(ArtifactSpec):
    """Identity and location of the checkpoint."""

    mutable: ClassVar[frozenset[str] | None] = frozenset({"shared_with", "expires_at"})


class RLCheckpointStatus(ArtifactStatus):
    """Observed state of the checkpoint in S3."""


class RLCheckpoint(KubernetesObject):
    """One checkpoint of a run: the complete state from which training can continue."""

    kind: Literal["RLCheckpoint"] = "RLCheckpoint"
    spec: RLCheckpointSpec
    """Identity and location of the checkpoint."""
    status: RLCheckpointStatus = Field(default_factory=RLCheckpointStatus)
    """Observed state of the checkpoint in S3. Written by the operator."""

    spec_transitions: ClassVar[tuple[Transition, ...]] = (DIGEST_IS_FINAL,)
