"""The file that makes an artifact real.

Files first, manifest last: a folder without a manifest is an upload that is still going on or that was cut off, and
nobody may read it. The manifest lists every file with size and SHA-256, so `Ready` can be checked by anyone who can
list the bucket, and a download can be proved whole.
"""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from rlrun.schema.base import Schema


class ArtifactKind(StrEnum):
    """What a folder in S3 holds."""

    policy = "Policy"
    checkpoint = "Checkpoint"
    adapter = "Adapter"
    model = "Model"


class FileEntry(Schema):
    """One file of an artifact, by its name below the artifact's folder."""

    name: str
    size: int = Field(ge=0)
    sha256: str


class Manifest(Schema):
    """Everything there is to know of an artifact without opening its files."""

    kind: ArtifactKind
    files: list[FileEntry]
    created_at: datetime
    run_name: str | None = None
    run_uid: str | None = None
    namespace: str | None = None
    model: str | None = None
    step: int | None = None
    policy_version: int | None = None
    details: dict[str, Any] = Field(default_factory=dict)
    """Facts of the kind: LoRA rank and alpha of an adapter, reward at the time of a checkpoint."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(f.size for f in self.files)
