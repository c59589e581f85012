"""Snapshot of all runs: their folders and unfinished uploads in S3, and in the cluster the RLRuns, their artifacts and
the objects created for them.

From S3, the snapshot contains the folders `{prefix}/{namespace}/{run-uid}`, the tombstones, and the unfinished uploads
below the prefix. Everything else in the bucket is ignored.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import islice, takewhile
from operator import attrgetter

from rlrun.garbage_collection.tombstones import RUN, RunTombstone
from rlrun.storage.layout import DELETED_FOLDER, MANIFEST, PLATFORM_FOLDERS, RUN_UID, S3Uri
from rlrun.storage.store import StoredObject, StoreError, Upload

STEPPED = ("checkpoints", "adapters")
"""Folders of a run that have one subfolder per artifact."""
TEMPORARY = ("policy", "recovery")
"""Folders of a run that only its own pods read: policies that engines load, and recovery copies of the trainer."""


class TooManyItems(StoreError):
    """Raised if a listing does not fit into the memory that a sweep may use."""

    def __init__(self, root: S3Uri, limit: int) -> None:
        super().__init__(
            f"{root} has more than {limit} folders, unfinished uploads or tombstones, too many for the operator's "
            f"memory: delete garbage with `rlrun gc --delete`, which has no limit"
        )


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Root folder of a run in S3, by namespace and UID."""

    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """Files of a run that are deleted together: an artifact, a policy, a recovery copy or, with an empty path, all
    other files.
    """

    run: RunFolder
    path: str
    """Path below the run's root: `checkpoints/step-000040`, `policy/v000041-1a2b3c4d`, or empty."""
    files: int
    size: int
    """Size in bytes."""
    newest: datetime
    manifest: bool

    @property
    def area(self) -> str:
        """First part of the path: `checkpoints`, `adapters`, `policy`, `recovery`, or an empty string."""
        return self.path.partition("/")[0]


@dataclass(frozen=True)
class Artifact:
    """Properties of an RLCheckpoint or RLAdapter object."""

    kind: str
    namespace: str
    name: str
    run_uid: str
    uri: str
    created: datetime
    deployed: bool = False
    phase: str = ""
    """Phase in the status, empty until the status is written."""


@dataclass(frozen=True)
class Child:
    """An object that the operator created for a run, with the run's UID from its labels."""

    kind: str
    namespace: str
    name: str
    run_uid: str
    created: datetime


@dataclass(frozen=True)
class Run:
    """Properties of an RLRun object."""

    uid: str
    finished: bool
    starts_from: str = ""
    """Name of the RLCheckpoint that the run starts from, without namespace, or empty."""
    namespace: str = ""
    deleting: bool = False
    """True if the run has a deletionTimestamp."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A tombstone of a run or of one of its artifacts."""

    run: RunFolder
    path: str
    """`StoredFolder.path` of the artifact, or empty for the run."""
    written: datetime
    content: RunTombstone | None = None
    """Content of a run's tombstone. Read only for a run that is not in the cluster and still has files or artifact
    objects. None if it was not read or cannot be parsed.
    """


@dataclass(frozen=True)
class ClusterSnapshot:
    """Snapshot of S3 and the cluster. It must contain all folders in `namespaces`, and the runs and artifacts of all
    namespaces.
    """

    root: S3Uri
    """Root of the platform's files: `s3://bucket/prefix`."""
    runs: Mapping[str, Run]
    """Every existing run by UID."""
    folders: tuple[StoredFolder, ...] = ()
    uploads: tuple[Upload, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    children: tuple[Child, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """Messages for users about kinds that could not be listed."""
    tombstones: tuple[Tombstone, ...] = ()
    namespaces: frozenset[str] = frozenset()
    """Namespaces in which items may be deleted. If empty, all namespaces."""

    @cached_property
    def _uploads_by_key(self) -> list[Upload]:
        return sorted(self.uploads, key=attrgetter("key"))

    def uploads_below(self, folder: S3Uri) -> Iterator[Upload]:
        """Yield the unfinished uploads to a folder."""
        prefix, uploads = f"{folder.key}/", self._uploads_by_key
        below = islice(uploads, bisect_left(uploads, prefix, key=attrgetter("key")), None)
        return takewhile(lambda upload: upload.key.startswith(prefix), below)

    def covers(self, namespace: str) -> bool:
        """Return whether items in the namespace may be deleted."""
        return not self.namespaces or namespace in self.namespaces


def locate(root: S3Uri, key: str) -> tuple[RunFolder, str] | None:
    """Return the run and the `StoredFolder.path` of a key, or None if the key does not belong to a run.

    Below the root `s3://b/p`, the key `p/team/{uid}/checkpoints/step-000040/manifest.json` belongs to checkpoint 40.
    """
    prefix = f"{root.key}/" if root.key else ""
    if not key.startswith(prefix):
        return None
    namespace, _, rest = key.removeprefix(prefix).partition("/")
    uid, _, inner = rest.partition("/")
    if namespace in PLATFORM_FOLDERS or not RUN_UID.fullmatch(uid) or not inner:
        return None
    area, _, below = inner.partition("/")
    name, slash, _ = below.partition("/")
    path = f"{area}/{name}" if area in (*STEPPED, *TEMPORARY) and slash else ""
    return RunFolder(namespace, uid), path


def locate_tombstone(root: S3Uri, item: StoredObject) -> Tombstone | None:
    """Return the tombstone in an object, without its content, or None if the object is not a tombstone."""
    folder = (root / DELETED_FOLDER).key
    namespace, _, rest = item.key.removeprefix(f"{folder}/").partition("/")
    uid, _, name = rest.partition("/")
    path = name.removesuffix(".json")
    is_artifact = path.partition("/")[0] in STEPPED and path.count("/") == 1
    if not item.key.startswith(f"{folder}/") or not RUN_UID.fullmatch(uid) or path == name:
        return None
    if path != RUN and not is_artifact:
        return None
    return Tombstone(RunFolder(namespace, uid), "" if path == RUN else path, item.modified)


def parse_checkpoint_name(name: str) -> tuple[str, str] | None:
    """Return the first 8 characters of the run's UID and the checkpoint's `StoredFolder.path`, or None if the
    name has another form.

    Names of checkpoints are `{run}-step-000040-{first 8 characters of the UID}`.
    """
    match = re.search(r"-(step-\d{6,})-([0-9a-f]{8})$", name)
    return (match[2], f"checkpoints/{match[1]}") if match else None


def folders(root: S3Uri, objects: Iterable[StoredObject], limit: int | None = None) -> Iterator[StoredFolder]:
    """Yield the folders that contain the objects. Memory grows with the number of folders, not of objects.

    Raises TooManyItems if there are more than `limit` folders.
    """
    by_location: dict[tuple[RunFolder, str], StoredFolder] = {}
    for item in objects:
        location = locate(root, item.key)
        if location is None:
            continue
        has_manifest = item.key.rsplit("/", 1)[-1] == MANIFEST and bool(location[1])
        old = by_location.get(location)
        if old is None:
            if len(by_location) == limit:
                raise TooManyItems(root, limit)
            by_location[location] = StoredFolder(*location, 1, item.size, item.modified, has_manifest)
        else:
            newest = max(old.newest, item.modified)
            by_location[location] = StoredFolder(
                *location, old.files + 1, old.size + item.size, newest, old.manifest or has_manifest
            )
    yield from by_location.values()
