"""Decision which files and objects are garbage. Pure: from a snapshot to a list of items to delete.

| garbage | condition |
|---|---|
| folder of a run | the run is deleted, and it has no RLCheckpoint or RLAdapter |
| checkpoint or adapter | its run and its object are deleted, but other artifacts of the run have objects |
| checkpoint or adapter without a manifest | its run is finished or deleted, so that the upload cannot be completed |
| policies | their run is finished or deleted |
| unfinished multipart upload | its run is finished or deleted, or it does not belong to a run |
| RLCheckpoint or RLAdapter | its run is deleted, and its files are missing or incomplete |
| child in the cluster | its run is deleted, and Kubernetes has not deleted the child |

Items that are younger than the minimum age, by their newest file, are never garbage; neither are items of a run that
may still write, nor checkpoints that such a run starts from, even if their object is deleted. The snapshot lists S3
before the cluster, so that the run of every listed file existed before the list of runs was made.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from rlrun.garbage_collection.snapshot import (
    POLICY,
    STEPPED,
    Artifact,
    ClusterSnapshot,
    RunFolder,
    StoredFolder,
    locate,
    referenced_checkpoint_path,
)
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Upload


class GarbageReason(StrEnum):
    """Reason why an item is garbage."""

    run_gone = "RunGone"
    object_gone = "ObjectGone"
    no_manifest = "NoManifest"
    run_finished = "RunFinished"
    upload_unfinished = "UploadUnfinished"
    files_gone = "FilesGone"


MEANING = {
    GarbageReason.run_gone: "its RLRun is deleted and has no RLCheckpoint or RLAdapter",
    GarbageReason.object_gone: "its RLRun and its RLCheckpoint or RLAdapter are deleted",
    GarbageReason.no_manifest: "the upload was not completed",
    GarbageReason.run_finished: "policies of a run that is finished or deleted",
    GarbageReason.upload_unfinished: "the multipart upload was not completed",
    GarbageReason.files_gone: "its RLRun is deleted, and its files are missing or incomplete",
}
"""Description of each reason for users."""

FOLDER = "Folder"
UPLOAD = "Upload"


@dataclass(frozen=True)
class GarbageItem:
    """Item to delete: a folder or upload in S3, or an object in the cluster."""

    kind: str
    """`Folder`, `Upload`, or the kind of an object in the cluster."""
    namespace: str
    """Empty for an upload without a run."""
    name: str
    """The s3:// uri of a folder or an upload, the name of an object."""
    reason: GarbageReason
    newest: datetime
    """Time of the newest write to any of its parts."""
    size: int | None = None
    """Size in bytes. None if unknown."""
    upload: Upload | None = None


def plan_deletions(snapshot: ClusterSnapshot, now: datetime, older_than: timedelta) -> list[GarbageItem]:
    """Return the garbage in a snapshot that is older than `older_than`, in the order of deletion."""
    limit = now - older_than
    by_run: dict[RunFolder, list[StoredFolder]] = defaultdict(list)
    for folder in snapshot.folders:
        by_run[folder.run].append(folder)
    garbage = [*_uploads(snapshot)]
    recorded = _recorded_uris(snapshot)
    starting_checkpoints = {run.starts_from for run in snapshot.runs.values() if run.starts_from and not run.finished}
    for run in sorted(by_run, key=lambda r: (r.namespace, r.uid)):
        referenced = [
            _root(snapshot, run) / path
            for path in (referenced_checkpoint_path(run, name) for name in starting_checkpoints)
            if path
        ]
        garbage += _garbage_of_run(snapshot, run, by_run[run], [*recorded[run.uid], *referenced])
    garbage += _objects(snapshot)
    garbage += [
        GarbageItem(c.kind, c.namespace, c.name, GarbageReason.run_gone, c.created)
        for c in snapshot.children
        if c.run_uid not in snapshot.runs
    ]
    return [item for item in garbage if item.newest <= limit]


def _recorded_uris(snapshot: ClusterSnapshot) -> dict[str, list[S3Uri]]:
    """Return the URIs of artifacts with objects by run: the run in their spec, and the run of their folder."""
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


def _uploads(snapshot: ClusterSnapshot) -> Iterator[GarbageItem]:
    for upload in sorted(snapshot.uploads, key=lambda u: (u.key, u.upload_id)):
        location = locate(snapshot.root, upload.key)
        if location is not None and _may_write(snapshot, location[0].uid):
            continue
        yield GarbageItem(
            UPLOAD,
            location[0].namespace if location else "",
            str(S3Uri(snapshot.root.bucket, upload.key)),
            GarbageReason.upload_unfinished,
            upload.initiated,
            upload=upload,
        )


def _garbage_of_run(
    snapshot: ClusterSnapshot, run: RunFolder, folders: list[StoredFolder], kept: list[S3Uri]
) -> Iterator[GarbageItem]:
    if _may_write(snapshot, run.uid):
        return
    root = _root(snapshot, run)
    is_deleted = run.uid not in snapshot.runs
    if is_deleted and not kept:
        yield _folder(snapshot, run, root, GarbageReason.run_gone, folders)
        return
    for folder in sorted(folders, key=lambda f: f.path):
        uri = root / folder.path
        if folder.area not in STEPPED or any(_below(k, uri) or _below(uri, k) for k in kept):
            continue
        if not folder.manifest:
            yield _folder(snapshot, run, uri, GarbageReason.no_manifest, [folder])
        elif is_deleted:
            yield _folder(snapshot, run, uri, GarbageReason.object_gone, [folder])
    policies = [f for f in folders if f.area == POLICY]
    if policies and not any(_below(k, root / POLICY) for k in kept):
        yield _folder(snapshot, run, root / POLICY, GarbageReason.run_finished, policies)


def _folder(
    snapshot: ClusterSnapshot, run: RunFolder, uri: S3Uri, reason: GarbageReason, folders: list[StoredFolder]
) -> GarbageItem:
    # An unfinished upload to the folder counts as a file in it.
    begun = [u.initiated for u in snapshot.uploads if u.key.startswith(f"{uri.key}/")]
    newest = max([f.newest for f in folders] + begun)
    return GarbageItem(FOLDER, run.namespace, str(uri), reason, newest, sum(f.size for f in folders))


def _objects(snapshot: ClusterSnapshot) -> Iterator[GarbageItem]:
    folders = {str(_root(snapshot, f.run) / f.path): f for f in snapshot.folders if f.area in STEPPED}
    for artifact in sorted(snapshot.artifacts, key=lambda a: (a.namespace, a.kind, a.name)):
        # The snapshot does not contain files under another prefix or in another bucket.
        is_covered = _below(S3Uri.parse(artifact.uri), snapshot.root / artifact.namespace / artifact.run_uid)
        if artifact.run_uid in snapshot.runs or artifact.deployed or not is_covered:
            continue
        folder = folders.get(str(S3Uri.parse(artifact.uri)))
        if folder is None or not folder.manifest:
            yield _object(artifact, folder)


def _object(artifact: Artifact, folder: StoredFolder | None) -> GarbageItem:
    newest = max(artifact.created, folder.newest) if folder else artifact.created
    return GarbageItem(artifact.kind, artifact.namespace, artifact.name, GarbageReason.files_gone, newest)


def _below(uri: S3Uri, folder: S3Uri) -> bool:
    return uri.bucket == folder.bucket and f"{uri.key}/".startswith(f"{folder.key}/")
