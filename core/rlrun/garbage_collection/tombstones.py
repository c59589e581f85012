"""Tombstones: records in the bucket that a run, or one of its artifacts, was deleted intentionally.

Files of a run that is not in the cluster are garbage only if a tombstone records the deletion. An object missing from
the cluster proves nothing: etcd may have been restored from a backup, the cluster may be new, or a namespace may have
been removed by force. The operator writes the tombstone of a run before it removes the run's finalizer, and the
tombstone of an artifact when the API server reports the deletion of its object. Tombstones are stored outside the runs'
folders, so that no process of a run can write them.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.storage.layout import DELETED_FOLDER, RUN_UID, S3Uri

MAX_TOMBSTONE_BYTES = 1024**2
"""Maximum size in bytes of a tombstone that is read, enough for about 40,000 retained artifacts."""
RUN = "run"
"""File name of the tombstone of a run."""


class RunTombstone(Schema):
    """Content of the tombstone of a run."""

    wire_limits = InputLimits(size=MAX_TOMBSTONE_BYTES, values=50_000)

    artifact_policy: ArtifactPolicy = Field(strict=False)
    """Policy of the deleted run. `Retain` keeps each artifact until it has its own tombstone. `Delete` makes all
    artifacts garbage except those in `retained`.
    """
    retained: list[Text] = Field(default_factory=list, max_length=50_000)
    """Folders of the artifacts that were in use when the run was deleted, such as `checkpoints/step-000040`."""

    def deletes(self, path: str) -> bool:
        """Return whether the artifact in the folder `path` was deleted with the run."""
        return self.artifact_policy is ArtifactPolicy.delete and path not in self.retained

    def to_bytes(self) -> bytes:
        """Return the content of the tombstone's S3 object."""
        return self.model_dump_json(by_alias=True).encode()


def run_tombstone(root: S3Uri, namespace: str, uid: str) -> S3Uri:
    """Return the URI of the tombstone of a run. `root` is `s3://bucket/prefix`."""
    return root / DELETED_FOLDER / namespace / uid / f"{RUN}.json"


def artifact_tombstone(root: S3Uri, artifact: S3Uri) -> S3Uri | None:
    """Return the URI of the tombstone of an artifact, or None if the artifact is not in the folder of a run."""
    prefix = f"{root.key}/" if root.key else ""
    namespace, _, rest = artifact.key.removeprefix(prefix).partition("/")
    uid, _, path = rest.partition("/")
    if artifact.bucket != root.bucket or not artifact.key.startswith(prefix) or not RUN_UID.fullmatch(uid):
        return None
    return root / DELETED_FOLDER / namespace / uid / f"{path}.json"
