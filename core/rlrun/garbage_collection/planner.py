"""What belongs to nothing. Pure: a world in, a list of garbage out, and nothing is garbage unless all of it is proven.

| garbage | when |
|---|---|
| the folder of a run | the run is gone, and no RLCheckpoint or RLAdapter of it is left |
| a checkpoint or an adapter | its run is gone and so is its object, though others of the run remain |
| a checkpoint or an adapter without a manifest | its run is finished or gone: nobody will complete it |
| policies that the engines loaded | their run is finished or gone |
| an unfinished multipart upload | likewise, or it is no run's |
| an RLCheckpoint or RLAdapter | its run is gone and its files are not (or no longer) whole |
| a child in the cluster | its run is gone, and Kubernetes' own garbage collector has not taken it |

Nothing younger than the minimum age is ever garbage, by the newest file in it; nothing at all of a run that may still
write; and no checkpoint that such a run starts from, even when its object is gone. The world is surveyed S3 first,
cluster second: whatever was in S3 then had its run in the cluster before.
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
    """Why something is garbage."""

    run_gone = "RunGone"
    object_gone = "ObjectGone"
    no_manifest = "NoManifest"
    run_finished = "RunFinished"
    upload_unfinished = "UploadUnfinished"
    files_gone = "FilesGone"


MEANING = {
    GarbageReason.run_gone: "its RLRun is gone and no artifact of it is left",
    GarbageReason.object_gone: "its RLRun is gone and so is its own object",
    GarbageReason.no_manifest: "an upload that was never completed",
    GarbageReason.run_finished: "policies are needed only while their run lives",
    GarbageReason.upload_unfinished: "a multipart upload that was never completed",
    GarbageReason.files_gone: "its RLRun is gone and so are its files",
}
"""The reasons in words."""

FOLDER = "Folder"
UPLOAD = "Upload"


@dataclass(frozen=True)
class GarbageItem:
    """One thing to remove."""

    kind: str
    """`Folder`, `Upload`, or the kind of an object in the cluster."""
    namespace: str
    """Empty for an upload that is no run's."""
    name: str
    """The s3:// uri of a folder or an upload, the name of an object."""
    reason: GarbageReason
    newest: datetime
    """When anything of it was written last."""
    size: int | None = None
    """Bytes; None where nobody can say."""
    upload: Upload | None = None


def plan_deletions(world: ClusterSnapshot, now: datetime, older_than: timedelta) -> list[GarbageItem]:
    """All garbage of a world that is older than `older_than`: uploads, files and objects, in the order of removal."""
    limit = now - older_than
    by_run: dict[RunFolder, list[StoredFolder]] = defaultdict(list)
    for folder in world.folders:
        by_run[folder.run].append(folder)
    found = [*_uploads(world)]
    named = _named(world)
    claims = {run.starts_from for run in world.runs.values() if run.starts_from and not run.finished}
    for run in sorted(by_run, key=lambda r: (r.namespace, r.uid)):
        claimed = [
            _root(world, run) / path for path in (referenced_checkpoint_path(run, claim) for claim in claims) if path
        ]
        found += _of_run(world, run, by_run[run], [*named[run.uid], *claimed])
    found += _objects(world)
    found += [
        GarbageItem(c.kind, c.namespace, c.name, GarbageReason.run_gone, c.created)
        for c in world.children
        if c.run_uid not in world.runs
    ]
    return [item for item in found if item.newest <= limit]


def _named(world: ClusterSnapshot) -> dict[str, list[S3Uri]]:
    """Where the artifacts with objects are, by the run they name and by the run in whose folder they really lie."""
    named: dict[str, list[S3Uri]] = defaultdict(list)
    for artifact in world.artifacts:
        uri = S3Uri.parse(artifact.uri)
        named[artifact.run_uid].append(uri)
        where = locate(world.root, f"{uri.key}/") if uri.bucket == world.root.bucket else None
        if where is not None and where[0].uid != artifact.run_uid:
            named[where[0].uid].append(uri)
    return named


def _root(world: ClusterSnapshot, run: RunFolder) -> S3Uri:
    return world.root / run.namespace / run.uid


def _may_write(world: ClusterSnapshot, uid: str) -> bool:
    return uid in world.runs and not world.runs[uid].finished


def _uploads(world: ClusterSnapshot) -> Iterator[GarbageItem]:
    for upload in sorted(world.uploads, key=lambda u: (u.key, u.upload_id)):
        where = locate(world.root, upload.key)
        if where is not None and _may_write(world, where[0].uid):
            continue
        yield GarbageItem(
            UPLOAD,
            where[0].namespace if where else "",
            str(S3Uri(world.root.bucket, upload.key)),
            GarbageReason.upload_unfinished,
            upload.initiated,
            upload=upload,
        )


def _of_run(
    world: ClusterSnapshot, run: RunFolder, folders: list[StoredFolder], kept: list[S3Uri]
) -> Iterator[GarbageItem]:
    if _may_write(world, run.uid):
        return
    root = _root(world, run)
    gone = run.uid not in world.runs
    if gone and not kept:
        yield _folder(world, run, root, GarbageReason.run_gone, folders)
        return
    for folder in sorted(folders, key=lambda f: f.path):
        uri = root / folder.path
        if folder.area not in STEPPED or any(_below(k, uri) or _below(uri, k) for k in kept):
            continue
        if not folder.manifest:
            yield _folder(world, run, uri, GarbageReason.no_manifest, [folder])
        elif gone:
            yield _folder(world, run, uri, GarbageReason.object_gone, [folder])
    policies = [f for f in folders if f.area == POLICY]
    if policies and not any(_below(k, root / POLICY) for k in kept):
        yield _folder(world, run, root / POLICY, GarbageReason.run_finished, policies)


def _folder(
    world: ClusterSnapshot, run: RunFolder, uri: S3Uri, reason: GarbageReason, folders: list[StoredFolder]
) -> GarbageItem:
    # Somebody who uploads to a folder now is somebody who writes it now.
    begun = [u.initiated for u in world.uploads if u.key.startswith(f"{uri.key}/")]
    newest = max([f.newest for f in folders] + begun)
    return GarbageItem(FOLDER, run.namespace, str(uri), reason, newest, sum(f.size for f in folders))


def _objects(world: ClusterSnapshot) -> Iterator[GarbageItem]:
    whole = {str(_root(world, f.run) / f.path): f for f in world.folders if f.area in STEPPED}
    for artifact in sorted(world.artifacts, key=lambda a: (a.namespace, a.kind, a.name)):
        # One whose files lie elsewhere (another prefix, another bucket) was not looked at.
        here = _below(S3Uri.parse(artifact.uri), world.root / artifact.namespace / artifact.run_uid)
        if artifact.run_uid in world.runs or artifact.deployed or not here:
            continue
        folder = whole.get(str(S3Uri.parse(artifact.uri)))
        if folder is None or not folder.manifest:
            yield _object(artifact, folder)


def _object(artifact: Artifact, folder: StoredFolder | None) -> GarbageItem:
    newest = max(artifact.created, folder.newest) if folder else artifact.created
    return GarbageItem(artifact.kind, artifact.namespace, artifact.name, GarbageReason.files_gone, newest)


def _below(uri: S3Uri, folder: S3Uri) -> bool:
    return uri.bucket == folder.bucket and f"{uri.key}/".startswith(f"{folder.key}/")
