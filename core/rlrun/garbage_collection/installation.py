"""The mark of a bucket: the object that records which cluster may delete files below a prefix.

The first operator that finds no mark writes the UID of its cluster. A second cluster with the same prefix, or a rebuilt
cluster, finds a UID that is not its own. The second cluster deletes nothing until an administrator adopts the bucket
(`rlrun gc --adopt`), because files that match none of its runs may belong to the first cluster.
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
"""Namespace whose UID identifies a cluster. It exists in each cluster and is never recreated."""
MAX_MARK_BYTES = 4096


class InstallationMismatch(StoreError):
    """Raised if the InstallationMark is missing, invalid or names another cluster. Nothing may be deleted then."""

    reason = Reason.INSTALLATION_MISMATCH


class InstallationMark(Schema):
    """Object in the bucket that names the cluster that may delete files in the bucket."""

    cluster: Text
    """UID of the cluster's namespace kube-system."""
    written_at: datetime


def mark_uri(root: S3Uri) -> S3Uri:
    """Return the URI of the mark. `root` is `s3://bucket/prefix`."""
    return root / INSTALLATION_FOLDER / "mark.json"


def read_mark(store: Store, root: S3Uri) -> InstallationMark | None:
    """Return the mark, or None if it is missing. Raises InstallationMismatch if it cannot be parsed, or another
    StoreError.
    """
    uri = mark_uri(root)
    try:
        return parse(InstallationMark, store.get_bytes(uri, MAX_MARK_BYTES), str(uri))
    except NotFound:
        return None
    except InputInvalid as error:
        raise InstallationMismatch(
            f"this version cannot parse {uri}, which names the cluster that may delete files, so nothing is deleted: "
            f"find out what wrote it, then adopt the bucket with rlrun gc --adopt"
        ) from error


def write_mark(store: Store, root: S3Uri, cluster: str, *, replace: bool) -> None:
    """Write the bucket's mark, which names `cluster`. Raises AlreadyExists if the mark exists and `replace` is false,
    or another StoreError.
    """
    mark = InstallationMark(cluster=cluster, written_at=datetime.now(UTC))
    store.put_bytes(mark_uri(root), mark.model_dump_json(by_alias=True).encode(), replace=replace)


def require_mark(store: Store, root: S3Uri, cluster: str) -> None:
    """Check that the bucket's mark names `cluster`. Raises InstallationMismatch or another StoreError."""
    mark = read_mark(store, root)
    if mark is None:
        raise InstallationMismatch(
            f"{mark_uri(root)} does not exist, so nothing is deleted. Start the operator, which writes it, or adopt "
            "the bucket with rlrun gc --adopt"
        )
    if mark.cluster != cluster:
        raise InstallationMismatch(
            f"{mark_uri(root)} names cluster {mark.cluster}, but this cluster is {cluster}, so nothing is deleted: "
            "files that match no run of this cluster may belong to the other one. Use a different s3.prefix if the "
            "other cluster still exists. If this cluster replaces it, follow 'Back up and restore' in "
            "docs/guides/operate.md and adopt the bucket with rlrun gc --adopt"
        )


def ensure_mark(store: Store, root: S3Uri, cluster: str) -> None:
    """Write the bucket's mark if it is missing, and check that it names `cluster`. Raises StoreError."""
    if read_mark(store, root) is None:
        # Another cluster may have written the mark in the meantime: the check decides.
        with contextlib.suppress(AlreadyExists):
            write_mark(store, root, cluster, replace=False)
    require_mark(store, root, cluster)
