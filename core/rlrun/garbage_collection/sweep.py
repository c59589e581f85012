"""Finds and deletes garbage in S3 and the cluster.

Every item is checked again with a new snapshot before it is deleted, because it may have changed while the user
confirmed the list. Nothing is deleted if the bucket's mark names another cluster, or if too many runs would lose files.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, islice

from rlrun.api.base.received import InputInvalid, parse
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.garbage_collection.cluster_source import ClusterSource
from rlrun.garbage_collection.installation import require_mark, write_mark
from rlrun.garbage_collection.planner import (
    FOLDER,
    TOMBSTONE,
    UPLOAD,
    GarbageItem,
    find_mass_deletion,
    plan_deletions,
)
from rlrun.garbage_collection.snapshot import (
    Child,
    ClusterSnapshot,
    RunFolder,
    Tombstone,
    TooManyItems,
    folders,
    locate_tombstone,
)
from rlrun.garbage_collection.tombstones import MAX_TOMBSTONE_BYTES, RunTombstone, run_tombstone
from rlrun.kube.errors import ApiError
from rlrun.storage.layout import DELETED_FOLDER, S3Uri
from rlrun.storage.store import NotFound, Store, StoreError


class SweepStopped(Exception):
    """Raised if a deletion is refused before it began. The message says why, and what to do."""


@dataclass(frozen=True)
class Removed:
    """Result of the deletion of one item."""

    item: GarbageItem
    problem: str | None = None
    """Reason why the item was not deleted, or None if it was deleted."""


@dataclass(frozen=True)
class Sweep:
    """Garbage collection below one prefix of a bucket. All methods may raise StoreError and ApiError."""

    store: Store
    cluster: ClusterSource
    root: S3Uri
    """Root of the platform's files: `s3://bucket/prefix`."""
    namespaces: frozenset[str] = field(default=frozenset())
    """Namespaces in which objects and files may be deleted. If empty, all namespaces."""
    limit: int | None = None
    """Maximum number of each kind of item: folders, unfinished uploads, tombstones. None disables the limit."""

    def take_snapshot(self) -> ClusterSnapshot:
        """Take a snapshot of S3 and the cluster. Raises TooManyItems if `limit` is exceeded.

        The order matters: a run exists before its files and children, so these are listed before the runs. Artifacts
        are listed last, so that no object of a deleted run is missing.
        """
        store, root, limit = self.store, self.root, self.limit
        places = [root / name for name in sorted(self.namespaces)] or [root]
        records = [root / DELETED_FOLDER / name for name in sorted(self.namespaces)] or [root / DELETED_FOLDER]
        stored = tuple(folders(root, chain.from_iterable(store.walk(place) for place in places), limit))
        above = None if limit is None else limit + 1
        uploads = tuple(upload for place in places for upload in store.uploads(place, above))
        found = (locate_tombstone(root, item) for record in records for item in store.walk(record))
        listed = list(islice((tombstone for tombstone in found if tombstone is not None), above))
        if limit is not None and max(len(uploads), len(listed)) > limit:
            raise TooManyItems(root, limit)
        children, notes = self._children()
        runs = {run.uid: run for run in self.cluster.runs()}
        artifacts = tuple(self.cluster.artifacts())
        left = {f.run for f in stored} | {RunFolder(a.namespace, a.run_uid) for a in artifacts}
        tombstones = []
        for tombstone in listed:
            if not tombstone.path and tombstone.run in left and tombstone.run.uid not in runs:
                tombstone = replace(tombstone, content=self._read(tombstone, notes))
            tombstones.append(tombstone)
        return ClusterSnapshot(
            root, runs, stored, uploads, artifacts, tuple(children), tuple(notes), tuple(tombstones), self.namespaces
        )

    def require_installation(self) -> None:
        """Check that the bucket's mark names this cluster. Raises InstallationMismatch."""
        require_mark(self.store, self.root, self.cluster.uid())

    def check(
        self, snapshot: ClusterSnapshot, items: Collection[GarbageItem], *, allow_mass_deletion: bool = False
    ) -> None:
        """Check that this cluster may delete the items. Raises InstallationMismatch if the bucket's mark does not name
        the cluster, or SweepStopped if too many runs would lose results and `allow_mass_deletion` is false.
        """
        self.require_installation()
        problem = find_mass_deletion(snapshot, items)
        if problem is not None and not allow_mass_deletion:
            raise SweepStopped(problem)

    def remove(
        self,
        chosen: Collection[GarbageItem],
        now: datetime,
        older_than: timedelta,
        *,
        allow_mass_deletion: bool = False,
    ) -> Iterator[Removed]:
        """Delete the chosen items that are still garbage and yield a result for each.

        Raises StoreError, ApiError or SweepStopped only before the first deletion. An item that cannot be deleted is
        reported, and the others are still deleted.
        """
        snapshot = self.take_snapshot()
        garbage = set(plan_deletions(snapshot, now, older_than))
        self.check(snapshot, [item for item in chosen if item in garbage], allow_mass_deletion=allow_mass_deletion)
        for item in chosen:
            yield self._remove(item) if item in garbage else Removed(item, "the item has changed, so it is kept")

    def adopt(self) -> None:
        """Write this cluster's mark to the bucket, which allows this cluster to delete files below the prefix. Replaces
        the mark of another cluster.
        """
        write_mark(self.store, self.root, self.cluster.uid(), replace=True)

    def mark_deleted(self, run: RunFolder) -> None:
        """Write the tombstone of a run whose deletion was not recorded.

        Artifacts that have objects are retained. Raises SweepStopped for a run that exists or has no files.
        """
        self.require_installation()
        place = self.root / run.namespace / run.uid
        if next(iter(self.store.walk(place)), None) is None:
            raise SweepStopped(f"{place} has no files: use NAMESPACE/UID as listed by `rlrun gc`")
        if run.uid in {known.uid for known in self.cluster.runs()}:
            raise SweepStopped(f"the RLRun of {place} exists: delete it with `rlrun delete`")
        below = f"{place}/"
        retained = [a.uri.removeprefix(below) for a in self.cluster.artifacts() if a.uri.startswith(below)]
        tombstone = RunTombstone(artifact_policy=ArtifactPolicy.delete, retained=sorted(retained))
        self.store.put_bytes(run_tombstone(self.root, run.namespace, run.uid), tombstone.to_bytes())

    def _remove(self, item: GarbageItem) -> Removed:
        try:
            if item.kind == FOLDER:
                self.store.delete_prefix(S3Uri.parse(item.name))
            elif item.kind == TOMBSTONE:
                self.store.delete_object(S3Uri.parse(item.name))
            elif item.kind == UPLOAD and item.upload is not None:
                self.store.abort_upload(self.root.bucket, item.upload)
            else:
                self.cluster.delete(item)
        except (StoreError, ApiError) as problem:
            return Removed(item, str(problem))
        return Removed(item)

    def _children(self) -> tuple[list[Child], list[str]]:
        found, notes = list[Child](), list[str]()
        places: list[str | None] = [*sorted(self.namespaces)] or [None]
        for namespace in places:
            children, problems = self.cluster.children(namespace)
            found += children
            notes += problems
        return found, list(dict.fromkeys(notes))

    def _read(self, tombstone: Tombstone, notes: list[str]) -> RunTombstone | None:
        uri = run_tombstone(self.root, tombstone.run.namespace, tombstone.run.uid)
        try:
            return parse(RunTombstone, self.store.get_bytes(uri, MAX_TOMBSTONE_BYTES), str(uri))
        except NotFound:
            return None
        except InputInvalid as error:
            notes.append(f"{uri} is not a valid tombstone of this version, so artifacts are kept: {error}")
            return None
