"""Manifest of an artifact. Uploading it completes the artifact.

The manifest is uploaded after the files: a folder without a manifest is an unfinished upload and must not be read. The
manifest lists every file with its size and SHA-256, so that a listing suffices to check an artifact, and downloads can
be verified. The SHA-256 of the manifest's bytes is the digest of the artifact: it covers all files, and is recorded in
the status of the RLCheckpoint or RLAdapter.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from rlrun.api.artifact import expiry_text
from rlrun.api.base.names import Text
from rlrun.api.base.phases import ArtifactPhase
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.protocol.policy import PolicyKind
from rlrun.storage.layout import NUMBERED, WEIGHTS

MAX_MANIFEST_BYTES = 4 * 1024**2
"""Maximum size in bytes of a manifest that is read, enough for about 20,000 files."""
MAX_FILES = 25_000
EXPIRES_AT = "expiresAt"
"""Key of `Manifest.details` with the time after which the artifact is deleted, in ISO 8601 with a time zone."""


class ArtifactKind(StrEnum):
    """Kind of artifact in an S3 folder."""

    policy = "Policy"
    checkpoint = "Checkpoint"
    recovery = "Recovery"
    """Checkpoint that is used only by a restarted trainer to continue."""
    adapter = "Adapter"
    model = "Model"


class FileEntry(Schema):
    """File of an artifact, with its name below the artifact's folder."""

    name: Text
    size: int = Field(ge=0)
    sha256: Text
    object_name: Text | None = None
    """Name of the object below the folder if it differs from `name`. This happens if an interrupted upload left a
    different file under `name`.
    """

    @property
    def stored_as(self) -> str:
        """Name of the object below the artifact's folder."""
        return self.object_name or self.name


class Manifest(Schema):
    """Description of an artifact and its files."""

    wire_limits = InputLimits(size=MAX_MANIFEST_BYTES, values=5 * MAX_FILES + 1000)

    kind: ArtifactKind
    files: list[FileEntry] = Field(max_length=MAX_FILES)
    created_at: datetime
    run_name: Text | None = None
    run_uid: Text | None = None
    namespace: Text | None = None
    model: Text | None = None
    step: int | None = None
    policy_version: int | None = None
    details: dict[str, Any] = Field(default_factory=dict, max_length=256)
    """Details that depend on the kind: LoRA rank and alpha of an adapter, reward at the time of a checkpoint."""

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(f.size for f in self.files)

    def has_content_of(self, other: "Manifest") -> bool:
        """Return whether both manifests describe the same files and details. Ignores the creation time and the names of
        objects.
        """
        return self._content() == other._content()

    def _content(self) -> "Manifest":
        files = [entry.model_copy(update={"object_name": None}) for entry in self.files]
        files.sort(key=lambda entry: entry.name)
        return self.model_copy(update={"created_at": datetime.min, "files": files})


@dataclass(frozen=True)
class StoredManifest:
    """Manifest as stored in S3."""

    content: Manifest
    digest: str
    """SHA-256 of the manifest's bytes in hexadecimal."""


def weights_digest(files: Iterable[FileEntry], kind: PolicyKind) -> str | None:
    """Return the digest that is part of a policy's name, or None if weights of this kind are missing or incomplete.

    It is the SHA-256 of the file with the weights. If numbered files contain the weights, it is the SHA-256 of what
    `sha256sum` prints for these files in the order of their names.
    """
    whole = WEIGHTS[kind]
    weights = {file.name: file.sha256 for file in files if NUMBERED.sub("", file.name) == whole}
    if weights.keys() == {whole}:
        return weights[whole]
    stem, _, suffix = whole.rpartition(".")
    count = len(weights)
    if not count or weights.keys() != {f"{stem}-{i:05d}-of-{count:05d}.{suffix}" for i in range(1, count + 1)}:
        return None
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(weights.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def ready_facts(manifest: Manifest, digest: str) -> dict[str, Any]:
    """Return the status of the RLCheckpoint or RLAdapter of a complete artifact. `digest` is the manifest's digest."""
    reward = manifest.details.get("reward")
    facts: dict[str, Any] = {
        "phase": ArtifactPhase.ready.value,
        "sizeBytes": manifest.size,
        "createdAt": manifest.created_at.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
    }
    if digest:
        facts["digest"] = digest
    if manifest.policy_version is not None:
        facts["policyVersion"] = manifest.policy_version
    if isinstance(reward, int | float):
        facts["reward"] = float(reward)
    if (expires_at := expiry_of(manifest)) is not None:
        facts["expiresAt"] = expiry_text(expires_at)
    return facts


def expiry_of(manifest: Manifest) -> datetime | None:
    """Return the time after which the artifact is deleted, or None if the manifest contains no valid time."""
    try:
        expires_at = datetime.fromisoformat(str(manifest.details.get(EXPIRES_AT)))
        return None if expires_at.tzinfo is None else expires_at.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def changed_message(place: object, digest: str, found: str) -> str:
    """Return the message for an artifact whose manifest has the digest `found` although its object records `digest`."""
    return (
        f"{place} was changed after it became Ready: the SHA-256 of its manifest is {found}, but its RLCheckpoint or "
        f"RLAdapter records {digest}. Use a different artifact, and find out who wrote to its folder"
    )
