"""Client for the runs, artifacts and child objects in the cluster, used by garbage collection.

Runs and artifacts of all namespaces are listed completely or not at all, because they may protect files of other
namespaces. A kind of child objects that cannot be listed is skipped and reported in a note.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from rlrun.api.base.phases import Phase
from rlrun.constants import CONFLICT, FIELD_MANAGER, MANAGED_BY_LABEL, RUN_UID_LABEL
from rlrun.garbage_collection.installation import CLUSTER_NAMESPACE
from rlrun.garbage_collection.lost_artifacts import LostArtifact
from rlrun.garbage_collection.planner import GarbageItem
from rlrun.garbage_collection.snapshot import Artifact, Child, Run
from rlrun.kube import requests
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, ARTIFACTS, CHILDREN, NAMESPACE, RLRUN, ResourceKind
from rlrun.kube.objects import Labels, Obj, label, phase_of
from rlrun.kube.references import split_checkpoint_id
from rlrun.kube.sync_client import SyncTransport

T = TypeVar("T")

CHILD_LABELS = {RUN_UID_LABEL: "", MANAGED_BY_LABEL: FIELD_MANAGER}
"""Labels of every child that the operator creates for a run."""
FINISHED = frozenset(p.value for p in Phase if p.finished)


class ClusterSource:
    """Client that reads, restores and deletes objects of runs. A `namespace` of None means all namespaces."""

    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport

    def uid(self) -> str:
        """Return the UID that identifies the cluster in the mark of a bucket. Raises ApiError."""
        found = self.find(NAMESPACE, None, CLUSTER_NAMESPACE)
        if found is None:
            message = f"namespace {CLUSTER_NAMESPACE} does not exist"
            raise ApiError(404, "NotFound", message, action="identify the cluster")
        return str(found["metadata"]["uid"])

    def runs(self) -> list[Run]:
        """Return every run. Raises ApiError."""
        return self.read(RLRUN, run)

    def artifacts(self) -> list[Artifact]:
        """Return every RLCheckpoint and RLAdapter. Raises ApiError."""
        return [item for kind in ARTIFACTS for item in self.read(kind, artifact)]

    def children(self, namespace: str | None) -> tuple[list[Child], list[str]]:
        """Return the children of runs, and a note for each kind that could not be listed."""
        found, notes = [], []
        for kind in CHILDREN:
            try:
                found += [item for item in self.read(kind, child, namespace, CHILD_LABELS) if item is not None]
            except ApiError as error:
                notes.append(f"{kind.plural} were skipped: {error}")
        return found, notes

    def find(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        """Return one object, or None if it does not exist. Raises ApiError for other failures."""
        return self._transport.find(requests.get(kind, namespace, name))

    def read(
        self,
        kind: ResourceKind,
        convert: Callable[[Obj], T],
        namespace: str | None = None,
        labels: Labels | None = None,
    ) -> list[T]:
        """Return all objects of a kind with these labels, each converted by `convert`. Raises ApiError."""
        return [convert(item) for item in self._transport.list(requests.list_page(kind, namespace, labels))[0]]

    def record(self, artifact: LostArtifact) -> None:
        """Create the object of an artifact and write its status.

        If an interrupted call left the object without a status, only the status is written. Raises ApiError, with
        status CONFLICT if an object of this name has a status or another URI.
        """
        obj, meta = artifact.obj, artifact.obj["metadata"]
        kind = ALL[obj["kind"]]
        try:
            self._transport.send(requests.create(obj, None))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            found = self.find(kind, meta["namespace"], meta["name"])
            if found is None or phase_of(found) or found["spec"].get("uri") != obj["spec"]["uri"]:
                raise
        changes = {"status": artifact.status}
        self._transport.send(requests.patch(kind, meta["namespace"], meta["name"], changes, None, "status"))

    def delete(self, item: GarbageItem) -> None:
        """Delete an object, if it still exists. Raises ApiError."""
        self._transport.find(requests.delete(ALL[item.kind], item.namespace, item.name))


def run(item: Obj) -> Run:
    """Convert an RLRun object to a run."""
    reference = str((item.get("spec") or {}).get("checkpointId") or "")
    starts_from = split_checkpoint_id(reference, str(item["metadata"]["namespace"]))[1]
    meta = item["metadata"]
    deleting = bool(meta.get("deletionTimestamp"))
    return Run(str(meta["uid"]), phase_of(item) in FINISHED, starts_from, str(meta["namespace"]), deleting)


def artifact(item: Obj) -> Artifact:
    """Convert an RLCheckpoint or RLAdapter to an artifact."""
    meta, spec = item["metadata"], item["spec"]
    return Artifact(
        str(item["kind"]),
        str(meta["namespace"]),
        str(meta["name"]),
        str(spec["runUid"]),
        str(spec["uri"]),
        _creation_time(meta),
        bool(spec.get("deployed")),
        phase_of(item) or "",
    )


def child(item: Obj) -> Child | None:
    """Convert a child object of a run. Returns None if the object has an owner that is not a run."""
    if not is_of_a_run(item):
        return None
    meta = item["metadata"]
    return Child(
        str(item["kind"]), str(meta["namespace"]), str(meta["name"]), label(item, RUN_UID_LABEL), _creation_time(meta)
    )


def is_of_a_run(item: Obj) -> bool:
    """Return whether the object has no owner other than runs."""
    owners = item["metadata"].get("ownerReferences") or []
    return all(o.get("kind") == "RLRun" for o in owners)


def _creation_time(metadata: Obj) -> datetime:
    text = metadata.get("creationTimestamp")
    # An object without a time counts as new, because objects of unknown age must not be deleted.
    return datetime.fromisoformat(str(text)) if text else datetime.max.replace(tzinfo=UTC)
