"""Snapshots and deletion of garbage in S3 and the cluster.

Every item is checked again with a new snapshot before it is deleted, because it may have changed while the list waited
for a confirmation.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlrun.garbage_collection.cluster_source import ClusterSource
from rlrun.garbage_collection.planner import FOLDER, UPLOAD, GarbageItem, plan_deletions
from rlrun.garbage_collection.snapshot import ClusterSnapshot, folders
from rlrun.kube.errors import ApiError
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store, StoreError


@dataclass(frozen=True)
class Removed:
    """Result of the deletion of one item."""

    item: GarbageItem
    problem: str | None = None
    """Cause if the item was not deleted."""


def take_snapshot(store: Store, cluster: ClusterSource, root: S3Uri, namespace: str | None) -> ClusterSnapshot:
    """Return a snapshot of one namespace, or of all. Raises StoreError, ApiError.

    The order matters. A run exists before its files and children, so these are listed before the runs: a run that is
    missing from the list is deleted. Artifacts are listed last, so that no object of a deleted run is missing.
    """
    below = root / namespace if namespace else root
    stored = tuple(folders(root, store.walk(below)))
    uploads = tuple(store.uploads(below))
    children, notes = cluster.children(namespace)
    runs = {run.uid: run for run in cluster.runs(namespace)}
    artifacts = tuple(cluster.artifacts(namespace))
    return ClusterSnapshot(root, runs, stored, uploads, artifacts, tuple(children), tuple(notes))


def remove(
    store: Store,
    cluster: ClusterSource,
    root: S3Uri,
    namespace: str | None,
    chosen: list[GarbageItem],
    now: datetime,
    older_than: timedelta,
) -> Iterator[Removed]:
    """Delete the chosen items that are still garbage and yield a result for each.

    Raises StoreError or ApiError only before the first deletion. An item that cannot be deleted is reported, and the
    others are still deleted.
    """
    garbage = set(plan_deletions(take_snapshot(store, cluster, root, namespace), now, older_than))
    for item in chosen:
        if item not in garbage:
            yield Removed(item, "it has changed meanwhile and is kept")
            continue
        try:
            if item.kind == FOLDER:
                store.delete_prefix(S3Uri.parse(item.name))
            elif item.kind == UPLOAD and item.upload is not None:
                store.abort_upload(root.bucket, item.upload)
            else:
                cluster.delete(item)
        except (StoreError, ApiError) as problem:
            yield Removed(item, str(problem))
        else:
            yield Removed(item)
