"""What there is, as far as garbage is concerned: folders in S3, unfinished uploads, runs, artifacts, children.

Only folders of runs count, `{prefix}/{namespace}/{run-uid}`: whatever else lies in the bucket is none of this
project's garbage, and a name that is not a uid is never taken for a run.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.store import StoredObject, Upload

UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHARED = ("environments", "models")
"""Folders below the prefix that belong to no run: never looked into."""
STEPPED = ("checkpoints", "adapters")
"""Folders of a run with one artifact in each folder below."""
POLICY = "policy"
"""Folder of a run for what the engines load while it lives."""


@dataclass(frozen=True)
class RunFolder:
    """A run's root in S3, by namespace and uid."""

    namespace: str
    uid: str


@dataclass(frozen=True)
class StoredFolder:
    """Files of a run that live and die together: one artifact, one policy, or (with an empty path) all the rest."""

    run: RunFolder
    path: str
    """`checkpoints/step-000040`, `policy/v000041-1a2b3c4d`, or empty."""
    files: int
    size: int
    """Bytes."""
    newest: datetime
    manifest: bool

    @property
    def area(self) -> str:
        """`checkpoints`, `adapters`, `policy`, or empty."""
        return self.path.partition("/")[0]


@dataclass(frozen=True)
class Artifact:
    """An RLCheckpoint or RLAdapter."""

    kind: str
    namespace: str
    name: str
    run_uid: str
    uri: str
    created: datetime
    deployed: bool = False


@dataclass(frozen=True)
class Child:
    """An object that the operator made for a run, by the run's uid in its labels."""

    kind: str
    namespace: str
    name: str
    run_uid: str
    created: datetime


@dataclass(frozen=True)
class Run:
    """An RLRun."""

    uid: str
    finished: bool
    starts_from: str = ""
    """Name of the RLCheckpoint that it starts from, without a namespace; empty for none."""


@dataclass(frozen=True)
class ClusterSnapshot:
    """All of it. A world is only worth planning for when its runs and its folders were read completely."""

    root: S3Uri
    """`s3://bucket/prefix`."""
    runs: Mapping[str, Run]
    """Every run that exists, by uid."""
    folders: tuple[StoredFolder, ...] = ()
    uploads: tuple[Upload, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    children: tuple[Child, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What could not be looked at, for people."""


def locate(root: S3Uri, key: str) -> tuple[RunFolder, str] | None:
    """Whose a key is and which `Folder.path` it belongs to; None for what is no run's.

    With root `s3://b/p`, `p/team/{uid}/checkpoints/step-000040/manifest.json` is the run's checkpoint 40.
    """
    prefix = f"{root.key}/" if root.key else ""
    if not key.startswith(prefix):
        return None
    namespace, _, rest = key.removeprefix(prefix).partition("/")
    uid, _, inner = rest.partition("/")
    if namespace in SHARED or not UID.fullmatch(uid) or not inner:
        return None
    area, _, below = inner.partition("/")
    name, slash, _ = below.partition("/")
    path = f"{area}/{name}" if area in (*STEPPED, POLICY) and slash else ""
    return RunFolder(namespace, uid), path


def referenced_checkpoint_path(run: RunFolder, checkpoint: str) -> str | None:
    """The `Folder.path` of the run's checkpoint of that name, `{run}-step-000040-{first letters of the uid}`; None for
    the name of another run's.
    """
    found = re.search(r"-(step-\d{6,})-([0-9a-f]{8})$", checkpoint)
    return f"checkpoints/{found[1]}" if found and run.uid.startswith(found[2]) else None


def folders(root: S3Uri, objects: Iterable[StoredObject]) -> Iterator[StoredFolder]:
    """The folders that objects lie in; only one entry per folder is in memory, however many objects there are."""
    found: dict[tuple[RunFolder, str], StoredFolder] = {}
    for item in objects:
        where = locate(root, item.key)
        if where is None:
            continue
        has_manifest = item.key.rsplit("/", 1)[-1] == MANIFEST and bool(where[1])
        old = found.get(where)
        if old is None:
            found[where] = StoredFolder(*where, 1, item.size, item.modified, has_manifest)
        else:
            newest = max(old.newest, item.modified)
            found[where] = StoredFolder(
                *where, old.files + 1, old.size + item.size, newest, old.manifest or has_manifest
            )
    yield from found.values()
