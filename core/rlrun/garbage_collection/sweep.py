"""Looking for garbage, and removing it: the edge between the plan, S3 and the cluster.

What is removed was found twice: by the survey that people saw, and by one right before the removal. So a list that
waited an hour for a confirmation never acts on what has changed meanwhile.
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
    """What became of one piece of garbage."""

    item: GarbageItem
    problem: str | None = None
    """Why it is still there."""


def take_snapshot(store: Store, cluster: ClusterSource, root: S3Uri, namespace: str | None) -> ClusterSnapshot:
    """The world as it is now, of one namespace or of all. Raises StoreError, ApiError.

    The order matters: a run exists before its first file and its first child, so whatever was seen of a run that is not
    in the later list has lost it. Artifacts come last: no object of a run that is gone by then can be missed.
    """
    below = root / namespace if namespace else root
    found = tuple(folders(root, store.walk(below)))
    uploads = tuple(store.uploads(below))
    children, notes = cluster.children(namespace)
    runs = {run.uid: run for run in cluster.runs(namespace)}
    artifacts = tuple(cluster.artifacts(namespace))
    return ClusterSnapshot(root, runs, found, uploads, artifacts, tuple(children), tuple(notes))


def remove(
    store: Store,
    cluster: ClusterSource,
    root: S3Uri,
    namespace: str | None,
    chosen: list[GarbageItem],
    now: datetime,
    older_than: timedelta,
) -> Iterator[Removed]:
    """Removes what was chosen and is still garbage, one by one. Raises StoreError, ApiError before the first.

    Whatever cannot be removed is reported and does not keep the rest from going; the next sweep finds it again.
    """
    still = set(plan_deletions(take_snapshot(store, cluster, root, namespace), now, older_than))
    for item in chosen:
        if item not in still:
            yield Removed(item, "it has changed meanwhile and is left alone")
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
