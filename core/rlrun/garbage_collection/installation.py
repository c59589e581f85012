"""Mark of the cluster that may delete files below a prefix of the bucket.

The first operator that starts with an empty place for the mark writes the UID of its cluster there. A second cluster
on the same prefix, or one that was built again, finds the UID of another cluster: what it does not know may be the
other one's, so it deletes nothing until an administrator adopts the bucket (`rlrun gc --adopt`).
"""

import contextlib
from datetime import UTC, datetime

from rlrun.api.base.names import Text
from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.base.schema import Schema
from rlrun.constants import Reason
from rlrun.storage.errors import AlreadyExists, NotFound, StoreError
from rlrun.storage.layout import INSTALLATION_FOLDER, S3Uri
from rlrun.storage.store import Store

CLUSTER_NAMESPACE = "kube-system"
"""Namespace whose UID identifies a cluster: it exists in each, and is never made again."""
MAX_MARK_BYTES = 4096


class InstallationMismatch(StoreError):
    """The bucket's mark names another cluster, or there is none. Nothing may be deleted."""

    reason = Reason.INSTALLATION_MISMATCH


class InstallationMark(Schema):
    """Content of the mark."""

    cluster: Text
    """UID of the cluster's namespace kube-system."""
    written_at: datetime


def mark_uri(root: S3Uri) -> S3Uri:
    """Return the URI of the mark. `root` is `s3://bucket/prefix`."""
    return root / INSTALLATION_FOLDER / "mark.json"


def read_mark(store: Store, root: S3Uri) -> InstallationMark | None:
    """Return the mark, or None if there is none. Raises StoreError, also for a mark that is not readable."""
    uri = mark_uri(root)
    try:
        return parse(InstallationMark, store.get_bytes(uri, MAX_MARK_BYTES), str(uri))
    except NotFound:
        return None
    except InputInvalid as error:
        raise InstallationMismatch(
            f"{uri} is not a mark of this version, so nothing is deleted: look who wrote it, then adopt the bucket "
            "with rlrun gc --adopt"
        ) from error


def write_mark(store: Store, root: S3Uri, cluster: str, *, replace: bool) -> None:
    """Write the mark of this cluster. Without `replace` raises AlreadyExists if there is one. Raises StoreError."""
    mark = InstallationMark(cluster=cluster, written_at=datetime.now(UTC))
    store.put_bytes(mark_uri(root), mark.model_dump_json(by_alias=True).encode(), replace=replace)


def require_mark(store: Store, root: S3Uri, cluster: str) -> None:
    """Check that the mark names this cluster. Raises InstallationMismatch, or another StoreError."""
    mark = read_mark(store, root)
    if mark is None:
        raise InstallationMismatch(
            f"{mark_uri(root)} does not exist, so nothing is deleted: the operator writes it when it starts. Start it, "
            "or adopt the bucket with rlrun gc --adopt"
        )
    if mark.cluster != cluster:
        raise InstallationMismatch(
            f"{mark_uri(root)} names cluster {mark.cluster}, and this one is {cluster}, so nothing is deleted: files "
            "that this cluster does not know may belong to the other one. Use another s3.prefix if the other cluster "
            "exists; if this one takes its place, follow 'Back up and restore' of docs/guides/operate.md and adopt the "
            "bucket with rlrun gc --adopt"
        )


def ensure_mark(store: Store, root: S3Uri, cluster: str) -> None:
    """Write the mark of this cluster unless there is one, and check it. Raises StoreError."""
    if read_mark(store, root) is None:
        # If another cluster was faster, the check decides.
        with contextlib.suppress(AlreadyExists):
            write_mark(store, root, cluster, replace=False)
    require_mark(store, root, cluster)
