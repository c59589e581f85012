"""Recreates RLCheckpoints and RLAdapters from the files in the bucket.

All fields but `sharedWith`, `expiresAt` and `deployed` can be recovered from these files. The namespace, the run's UID
and the step come from the path of the folder, which no other run may write to. The run's name and the model come from
the manifest.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlrun.api.base.names import ModelId, ObjectName
from rlrun.garbage_collection.planner import Tombstones
from rlrun.garbage_collection.snapshot import STEPPED, ClusterSnapshot, StoredFolder
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT
from rlrun.kube.objects import Obj, artifact_object
from rlrun.storage.layout import S3Uri, step_of
from rlrun.storage.manifest import ArtifactKind, StoredManifest, ready_facts

KINDS = {"checkpoints": (RLCHECKPOINT, ArtifactKind.checkpoint), "adapters": (RLADAPTER, ArtifactKind.adapter)}
"""Kind of the object and kind in the manifest, for the artifacts in each folder of a run."""
NAME, MODEL = TypeAdapter(ObjectName), TypeAdapter(ModelId)


class NotRestorable(Exception):
    """Raised if the object cannot be restored from the files. The message says why."""


@dataclass(frozen=True)
class LostArtifact:
    """Object and status to create for an artifact that exists only in the bucket."""

    obj: Obj
    status: dict[str, Any]


def find_lost(snapshot: ClusterSnapshot) -> list[tuple[StoredFolder, S3Uri]]:
    """Return the complete artifacts of deleted runs that have no tombstone and no object with a status.

    For existing runs, the operator creates the objects.
    """
    known, tombstones = {a.uri for a in snapshot.artifacts if a.phase}, Tombstones(snapshot.tombstones)
    found = []
    for folder in sorted(snapshot.folders, key=lambda f: (f.run.namespace, f.run.uid, f.path)):
        uri = snapshot.root / folder.run.namespace / folder.run.uid / folder.path
        if folder.area not in STEPPED or not folder.manifest or folder.run.uid in snapshot.runs:
            continue
        if str(uri) not in known and tombstones.of_files(folder) is None:
            found.append((folder, uri))
    return found


def restore(folder: StoredFolder, uri: S3Uri, stored: StoredManifest, sizes: dict[str, int]) -> LostArtifact:
    """Return the object and the status of an artifact. `sizes` has the size of each file in bytes. Raises
    NotRestorable.
    """
    manifest, (kind, expected) = stored.content, KINDS[folder.area]
    wrong = [entry.name for entry in manifest.files if sizes.get(entry.stored_as) != entry.size]
    if wrong:
        count = f"{len(wrong)} of {len(manifest.files)}"
        raise NotRestorable(f"files that are missing or have the wrong size: {count}, the first is {wrong[0]}")
    if manifest.kind is not expected or manifest.run_uid not in (None, folder.run.uid):
        raise NotRestorable("its manifest belongs to another artifact")
    try:
        step = step_of(folder.path)
        run_name, model = NAME.validate_python(manifest.run_name), MODEL.validate_python(manifest.model)
    except (ValidationError, ValueError):
        raise NotRestorable("its manifest has no valid run name or model, or its folder name has no step") from None
    run = folder.run
    obj = artifact_object(kind.kind, run.namespace, run_name, run.uid, model=model, step=step, uri=str(uri))
    return LostArtifact(obj, ready_facts(manifest, stored.digest))
