"""Planner of garbage collection: selects the items to delete from a snapshot.

An item is garbage only on positive evidence: a tombstone of the item or its run, or the end of an existing run. An
object missing from the cluster proves nothing.

| garbage | condition |
|---|---|
| folder of a run | the run and every complete artifact in the folder have tombstones |
| checkpoint or adapter | the run and the artifact have tombstones, but other artifacts of the run are kept |
| checkpoint or adapter without a manifest | its run is finished or has a tombstone: the upload cannot be completed |
| policies, recovery copies | their run is finished or has a tombstone |
| unfinished multipart upload | its run is finished or has a tombstone, or it belongs to a model or environment |
| RLCheckpoint or RLAdapter | its run was deleted with its artifacts, and its files are missing or incomplete |
| child in the cluster | its run has a tombstone, and Kubernetes has not deleted the child |
| tombstone | its run has no other files, or is in the cluster again, after a restore |

Items younger than the minimum age, by their newest file or their tombstone, are never garbage. Neither are files of a
run that may still write, files of artifacts that have an object, and checkpoints that an unfinished run starts from.
Items that belong to no run of the cluster and have no tombstone are only reported (`find_unknown`). The snapshot lists
S3 before the cluster, so the run of every listed file existed before the runs were listed.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from rlrun.garbage_collection.snapshot import (
    STEPPED,
    TEMPORARY,
    Artifact,
    ClusterSnapshot,
    RunFolder,
    StoredFolder,
    Tombstone,
    locate,
    parse_checkpoint_name,
)
from rlrun.garbage_collection.tombstones import artifact_tombstone, run_tombstone
from rlrun.storage.layout import SHARED_FOLDERS, S3Uri
from rlrun.storage.store import Upload

ALWAYS_ALLOWED = 3
"""Number of runs that may lose files in one sweep without `--allow-mass-deletion`, regardless of the number of runs."""
CLOCK_MARGIN = timedelta(minutes=10)
"""Margin added to the minimum age, because S3 and the API server have different clocks. Not added to a
minimum age of 0.
"""
LARGEST_SHARE = 10
"""Divisor of the number of runs. A sweep stops if more than one in LARGEST_SHARE runs would lose files."""


class GarbageReason(StrEnum):
    """Reason why an item is garbage, or why garbage collection cannot decide whether it is."""

    run_gone = "RunGone"
    object_gone = "ObjectGone"
    no_manifest = "NoManifest"
    run_finished = "RunFinished"
    upload_unfinished = "UploadUnfinished"
    files_gone = "FilesGone"
    deletion_done = "DeletionDone"
    deletion_undone = "DeletionUndone"
    run_unknown = "RunUnknown"
    object_unknown = "ObjectUnknown"
    files_unknown = "FilesUnknown"


MEANING = {
    GarbageReason.run_gone: "its RLRun was deleted, and none of its artifacts is kept",
    GarbageReason.object_gone: "its RLRun and its RLCheckpoint or RLAdapter were deleted",
    GarbageReason.no_manifest: "the upload was not completed",
    GarbageReason.run_finished: "policies or recovery copies of a run that is finished or deleted",
    GarbageReason.upload_unfinished: "the multipart upload was not completed",
    GarbageReason.files_gone: "its RLRun was deleted with its artifacts, and its files are missing or incomplete",
    GarbageReason.deletion_done: "no other files of the deleted run are left",
    GarbageReason.deletion_undone: "its RLRun is in the cluster again",
    GarbageReason.run_unknown: "its RLRun is not in this cluster, and there is no tombstone for it",
    GarbageReason.object_unknown: "its RLRun was deleted, but there is no tombstone for its RLCheckpoint or RLAdapter",
    GarbageReason.files_unknown: "its files are missing or incomplete, and there is no tombstone for them",
}
"""Description of each reason for users."""
UNKNOWN = frozenset({GarbageReason.run_unknown, GarbageReason.object_unknown, GarbageReason.files_unknown})
"""Reasons of items that are only reported, never deleted."""
LOSSES = frozenset({GarbageReason.run_gone, GarbageReason.object_gone, GarbageReason.files_gone})
"""Reasons for deleting results of a run. Runs with such items count toward the mass-deletion limit of a sweep."""

FOLDER = "Folder"
UPLOAD = "Upload"
TOMBSTONE = "Tombstone"


@dataclass(frozen=True)
class GarbageItem:
    """Item of garbage: a folder, a tombstone or an upload in S3, or an object in the cluster."""

    kind: str
    """`Folder`, `Tombstone`, `Upload`, or the kind of an object in the cluster."""
    namespace: str
    """Namespace of the item. Empty for an upload that belongs to no run."""
    name: str
    """URI (s3://) of a folder, tombstone or upload, or name of an object."""
    reason: GarbageReason
    newest: datetime
    """Time of the latest write to the item or its tombstone."""
    size: int | None = None
    """Size in bytes, or None if it is unknown."""
    upload: Upload | None = None
    run_uid: str = ""
    """UID of the item's run. Empty for an upload that belongs to no run."""


def plan_deletions(snapshot: ClusterSnapshot, now: datetime, older_than: timedelta) -> list[GarbageItem]:
    """Return the garbage in a snapshot that is older than `older_than`, in the order of deletion."""
    return [item for item in _old_items(snapshot, now, older_than) if item.reason not in UNKNOWN]


def find_unknown(snapshot: ClusterSnapshot, now: datetime, older_than: timedelta) -> list[GarbageItem]:
    """Return items older than `older_than` that belong to no run of the cluster and have no tombstone."""
    return [item for item in _old_items(snapshot, now, older_than) if item.reason in UNKNOWN]


def find_mass_deletion(snapshot: ClusterSnapshot, items: Collection[GarbageItem]) -> str | None:
    """Return a message if more than a tenth of all runs and more than three runs would lose results, otherwise None."""
    losing = {item.run_uid for item in items if item.reason in LOSSES}
    known = {folder.run.uid for folder in snapshot.folders}
    known |= {run.uid for run in snapshot.runs.values() if snapshot.covers(run.namespace)}
    known |= losing
    if len(losing) <= ALWAYS_ALLOWED or LARGEST_SHARE * len(losing) <= len(known):
        return None
    return (
        f"{len(losing)} of {len(known)} runs would lose files, which is more than a tenth, so nothing was deleted. "
        f"Check whether the cluster or the bucket was restored. To delete the files anyway, use rlrun gc --delete "
        f"--allow-mass-deletion"
    )


class Tombstones:
    """Index of a snapshot's tombstones by run and artifact."""

    def __init__(self, tombstones: Sequence[Tombstone]) -> None:
        self.runs = {t.run: t for t in tombstones if not t.path}
        self.by_uid = {t.run.uid: t for t in self.runs.values()}
        self._artifacts = {(t.run, t.path): t for t in tombstones if t.path}

    def of_artifact(self, run: RunFolder, path: str) -> Tombstone | None:
        """Return a tombstone that records the deletion of the artifact: the tombstone of its run or the artifact's own
        tombstone. Returns None if there is neither.
        """
        return next(self._of_artifact(run, path), None)

    def of_files(self, folder: StoredFolder) -> Tombstone | None:
        """Return a tombstone of the artifact in this folder that is not older than the artifact's files, or None.

        An older tombstone records the deletion of earlier files, of the same step or of the run before its restore.
        """
        return next((t for t in self._of_artifact(folder.run, folder.path) if t.written >= folder.newest), None)

    def _of_artifact(self, run: RunFolder, path: str) -> Iterator[Tombstone]:
        whole, own = self.runs.get(run), self._artifacts.get((run, path))
        if whole is not None and whole.content is not None and whole.content.deletes(path):
            yield whole
        if own is not None:
            yield own


def _old_items(snapshot: ClusterSnapshot, now: datetime, older_than: timedelta) -> list[GarbageItem]:
    limit = now - older_than - (CLOCK_MARGIN if older_than else timedelta())
    tombstones = Tombstones(snapshot.tombstones)
    by_run: dict[RunFolder, list[StoredFolder]] = defaultdict(list)
    for folder in snapshot.folders:
        by_run[folder.run].append(folder)
    items = [*_uploads(snapshot, tombstones)]
    recorded = _recorded_uris(snapshot)
    starting: dict[str, set[str]] = defaultdict(set)
    for name in {run.starts_from for run in snapshot.runs.values() if run.starts_from and not run.finished}:
        if (parsed := parse_checkpoint_name(name)) is not None:
            starting[parsed[0]].add(parsed[1])
    for run in sorted(by_run, key=lambda r: (r.namespace, r.uid)):
        referenced = (_root(snapshot, run) / path for path in starting.get(run.uid[:8], ()))
        kept = [*recorded.get(run.uid, ()), *referenced]
        if not _may_write(snapshot, run.uid):
            items += _items_of_run(snapshot, tombstones, run, by_run[run], kept)
    items += _objects(snapshot, tombstones)
    items += _children(snapshot, tombstones)
    items += _unneeded_tombstones(snapshot)
    return [item for item in items if item.newest <= limit]


def _recorded_uris(snapshot: ClusterSnapshot) -> dict[str, list[S3Uri]]:
    """Return the URIs of artifacts with objects, by the run UID in the spec and by the run UID in the URI."""
    uris: dict[str, list[S3Uri]] = defaultdict(list)
    for artifact in snapshot.artifacts:
        uri = S3Uri.parse(artifact.uri)
        uris[artifact.run_uid].append(uri)
        location = locate(snapshot.root, f"{uri.key}/") if uri.bucket == snapshot.root.bucket else None
        if location is not None and location[0].uid != artifact.run_uid:
            uris[location[0].uid].append(uri)
    return uris


def _root(snapshot: ClusterSnapshot, run: RunFolder) -> S3Uri:
    return snapshot.root / run.namespace / run.uid


def _may_write(snapshot: ClusterSnapshot, uid: str) -> bool:
    return uid in snapshot.runs and not snapshot.runs[uid].finished


def _uploads(snapshot: ClusterSnapshot, tombstones: Tombstones) -> Iterator[GarbageItem]:
    prefix = f"{snapshot.root.key}/" if snapshot.root.key else ""
    for upload in sorted(snapshot.uploads, key=lambda u: (u.key, u.upload_id)):
        location = locate(snapshot.root, upload.key)
        if location is None:
            # Uploads elsewhere in the bucket belong to other programs.
            if upload.key.removeprefix(prefix).partition("/")[0] in SHARED_FOLDERS:
                yield _upload(snapshot, upload, RunFolder("", ""), upload.initiated)
            continue
        run = location[0]
        tombstone = tombstones.runs.get(run)
        if run.uid in snapshot.runs:
            if snapshot.runs[run.uid].finished:
                yield _upload(snapshot, upload, run, upload.initiated)
        elif tombstone is not None:
            yield _upload(snapshot, upload, run, max(upload.initiated, tombstone.written))


def _upload(snapshot: ClusterSnapshot, upload: Upload, run: RunFolder, newest: datetime) -> GarbageItem:
    uri, reason = str(S3Uri(snapshot.root.bucket, upload.key)), GarbageReason.upload_unfinished
    return GarbageItem(UPLOAD, run.namespace, uri, reason, newest, upload=upload, run_uid=run.uid)


def _items_of_run(
    snapshot: ClusterSnapshot,
    tombstones: Tombstones,
    run: RunFolder,
    folders: list[StoredFolder],
    kept: list[S3Uri],
) -> Iterator[GarbageItem]:
    root, tombstone = _root(snapshot, run), tombstones.runs.get(run)
    is_finished = run.uid in snapshot.runs
    if not is_finished and tombstone is None:
        if not kept:
            yield _folder(snapshot, run, root, GarbageReason.run_unknown, folders)
        return
    steps = [
        _step(snapshot, tombstones, folder)
        for folder in sorted(folders, key=lambda f: f.path)
        if folder.area in STEPPED and not any(_overlap(k, root / folder.path) for k in kept)
    ]
    items = [step for step in steps if step is not None]
    # `_step` returns None for a complete artifact of a finished run, because the operator creates its object.
    if not is_finished and not kept and all(item.reason is not GarbageReason.object_unknown for item in items):
        whole = _folder(snapshot, run, root, GarbageReason.run_gone, folders, tombstone)
        yield replace(whole, newest=max([whole.newest, *(item.newest for item in items)]))
        return
    yield from items
    for area in TEMPORARY:
        found = [f for f in folders if f.area == area]
        if found and not any(_below(k, root / area) for k in kept):
            yield _folder(snapshot, run, root / area, GarbageReason.run_finished, found, tombstone)


def _step(snapshot: ClusterSnapshot, tombstones: Tombstones, folder: StoredFolder) -> GarbageItem | None:
    """Return the item for the folder of an artifact without an object, whose run is finished or deleted. Returns None
    for a complete artifact of a finished run.
    """
    run, uri = folder.run, _root(snapshot, folder.run) / folder.path
    tombstone = tombstones.runs.get(run)
    if not folder.manifest:
        return _folder(snapshot, run, uri, GarbageReason.no_manifest, [folder], tombstone)
    if run.uid in snapshot.runs:
        return None
    own = tombstones.of_files(folder)
    if own is None:
        return _folder(snapshot, run, uri, GarbageReason.object_unknown, [folder], tombstone)
    return _folder(snapshot, run, uri, GarbageReason.object_gone, [folder], own)


def _folder(
    snapshot: ClusterSnapshot,
    run: RunFolder,
    uri: S3Uri,
    reason: GarbageReason,
    folders: list[StoredFolder],
    tombstone: Tombstone | None = None,
) -> GarbageItem:
    # An unfinished upload to the folder counts as a file in it.
    begun = [upload.initiated for upload in snapshot.uploads_below(uri)]
    signs = [tombstone.written] if tombstone is not None and run.uid not in snapshot.runs else []
    newest = max([f.newest for f in folders] + begun + signs)
    return GarbageItem(FOLDER, run.namespace, str(uri), reason, newest, sum(f.size for f in folders), run_uid=run.uid)


def _objects(snapshot: ClusterSnapshot, tombstones: Tombstones) -> Iterator[GarbageItem]:
    folders = {str(_root(snapshot, f.run) / f.path): f for f in snapshot.folders if f.area in STEPPED}
    for artifact in sorted(snapshot.artifacts, key=lambda a: (a.namespace, a.kind, a.name)):
        # The snapshot does not contain files under another prefix or in another bucket.
        run = RunFolder(artifact.namespace, artifact.run_uid)
        root, uri = _root(snapshot, run), S3Uri.parse(artifact.uri)
        is_covered = snapshot.covers(artifact.namespace) and _below(uri, root)
        if artifact.run_uid in snapshot.runs or artifact.deployed or not is_covered:
            continue
        folder = folders.get(str(uri))
        if folder is not None and folder.manifest:
            continue
        sign = tombstones.of_artifact(run, uri.key.removeprefix(f"{root.key}/"))
        yield _object(artifact, folder, sign)


def _object(artifact: Artifact, folder: StoredFolder | None, sign: Tombstone | None) -> GarbageItem:
    newest = max([artifact.created, *([folder.newest] if folder else []), *([sign.written] if sign else [])])
    # The artifact's own tombstone is for an earlier object: this one was created later.
    is_deleted = sign is not None and not sign.path
    reason = GarbageReason.files_gone if is_deleted else GarbageReason.files_unknown
    return GarbageItem(artifact.kind, artifact.namespace, artifact.name, reason, newest, run_uid=artifact.run_uid)


def _children(snapshot: ClusterSnapshot, tombstones: Tombstones) -> Iterator[GarbageItem]:
    for child in snapshot.children:
        if child.run_uid in snapshot.runs:
            continue
        tombstone = tombstones.by_uid.get(child.run_uid)
        reason = GarbageReason.run_unknown if tombstone is None else GarbageReason.run_gone
        newest = child.created if tombstone is None else max(child.created, tombstone.written)
        yield GarbageItem(child.kind, child.namespace, child.name, reason, newest, run_uid=child.run_uid)


def _unneeded_tombstones(snapshot: ClusterSnapshot) -> Iterator[GarbageItem]:
    left = {f.run.uid for f in snapshot.folders} | {c.run_uid for c in snapshot.children}
    left |= {a.run_uid for a in snapshot.artifacts}
    left |= {where[0].uid for where in (locate(snapshot.root, u.key) for u in snapshot.uploads) if where}
    for tombstone in sorted(snapshot.tombstones, key=lambda t: (t.run.namespace, t.run.uid, t.path)):
        run, existing = tombstone.run, snapshot.runs.get(tombstone.run.uid)
        # A run that is being deleted needs its tombstone once it is gone.
        if existing.deleting if existing is not None else run.uid in left:
            continue
        reason = GarbageReason.deletion_done if existing is None else GarbageReason.deletion_undone
        root = _root(snapshot, run)
        uri = artifact_tombstone(snapshot.root, root / tombstone.path) if tombstone.path else None
        uri = uri or run_tombstone(snapshot.root, run.namespace, run.uid)
        yield GarbageItem(TOMBSTONE, run.namespace, str(uri), reason, tombstone.written, run_uid=run.uid)


def _overlap(uri: S3Uri, other: S3Uri) -> bool:
    return _below(uri, other) or _below(other, uri)


def _below(uri: S3Uri, folder: S3Uri) -> bool:
    return uri.bucket == folder.bucket and f"{uri.key}/".startswith(f"{folder.key}/")
