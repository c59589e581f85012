"""Tombstones: records in the bucket that a run, or one of its artifacts, was deleted on purpose.

A file is garbage only with a tombstone. That an object is missing from the cluster proves nothing: etcd may come from a
backup, the cluster may be a new one, or a namespace was removed by force. The operator writes the tombstone of a run
before it lets the run go, and that of an artifact when the API server reports the deletion of its object.

Tombstones are outside of the runs' folders, where no process of a run may write.
"""

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.storage.layout import DELETED_FOLDER, RUN_UID, S3Uri

MAX_TOMBSTONE_BYTES = 1024**2
"""Size of the largest tombstone that is read: some 20,000 retained artifacts."""
RUN = "run"
"""Name of the tombstone of a run."""


class RunTombstone(Schema):
    """Content of the tombstone of a run."""

    wire_limits = InputLimits(size=MAX_TOMBSTONE_BYTES, values=50_000)

    artifact_policy: ArtifactPolicy = Field(strict=False)
    """`Retain`: each artifact stays until it has a tombstone of its own. `Delete`: all go but those of `retained`."""
    retained: list[Text] = Field(default_factory=list, max_length=50_000)
    """Folders of artifacts that were in use when the run was deleted, such as `checkpoints/step-000040`."""

    def deletes(self, path: str) -> bool:
        """Return whether the artifact in this folder of the run was deleted with the run."""
        return self.artifact_policy is ArtifactPolicy.delete and path not in self.retained

    def to_bytes(self) -> bytes:
        """Return the content of the object in S3."""
        return self.model_dump_json(by_alias=True).encode()


def run_tombstone(root: S3Uri, namespace: str, uid: str) -> S3Uri:
    """Return the URI of the tombstone of a run. `root` is `s3://bucket/prefix`."""
    return root / DELETED_FOLDER / namespace / uid / f"{RUN}.json"


def artifact_tombstone(root: S3Uri, artifact: S3Uri) -> S3Uri | None:
    """Return the URI of the tombstone of an artifact, or None if its files are not in the folder of a run."""
    prefix = f"{root.key}/" if root.key else ""
    namespace, _, rest = artifact.key.removeprefix(prefix).partition("/")
    uid, _, path = rest.partition("/")
    if artifact.bucket != root.bucket or not artifact.key.startswith(prefix) or not RUN_UID.fullmatch(uid):
        return None
    return root / DELETED_FOLDER / namespace / uid / f"{path}.json"
