"""Runs, artifacts and children in the cluster, as garbage collection needs them.

Runs and artifacts are listed completely or not at all, because a run that is missing from the list counts as deleted.
A kind of children that cannot be listed is skipped and named in a note.
"""

from datetime import UTC, datetime

from rlrun.api.base.phases import Phase
from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, RUN_UID_LABEL
from rlrun.garbage_collection.planner import GarbageItem
from rlrun.garbage_collection.snapshot import Artifact, Child, Run
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import ALL, ARTIFACTS, CHILDREN, RLRUN
from rlrun.kube.objects import Obj, label, phase_of
from rlrun.kube.references import split_checkpoint_id
from rlrun.kube.sync_client import SyncKubeClient

CHILD_LABELS = {RUN_UID_LABEL: "", MANAGED_BY_LABEL: FIELD_MANAGER}
"""Labels of every child that the operator creates for a run."""
FINISHED = frozenset(p.value for p in Phase if p.finished)


class ClusterSource:
    """Reads and deletes objects that may be garbage. A `namespace` of None means all namespaces."""

    def __init__(self, client: SyncKubeClient) -> None:
        self._client = client

    def runs(self, namespace: str | None) -> list[Run]:
        """Return every run. Raises ApiError."""
        return [run(item) for item in self._client.list(RLRUN, namespace)]

    def artifacts(self, namespace: str | None) -> list[Artifact]:
        """Return every RLCheckpoint and RLAdapter. Raises ApiError."""
        return [artifact(item) for kind in ARTIFACTS for item in self._client.list(kind, namespace)]

    def children(self, namespace: str | None) -> tuple[list[Child], list[str]]:
        """Return the children of runs, and a note for each kind that could not be listed."""
        found, notes = [], []
        for kind in CHILDREN:
            try:
                items = self._client.list(kind, namespace, CHILD_LABELS)
            except ApiError as error:
                notes.append(f"{kind.plural} were skipped: {error}")
                continue
            found += [child(item) for item in items if is_of_a_run(item)]
        return found, notes

    def delete(self, item: GarbageItem) -> None:
        """Delete an object, if it still exists. Raises ApiError."""
        self._client.delete(ALL[item.kind], item.namespace, item.name)


def run(item: Obj) -> Run:
    """Return the run of an RLRun object."""
    reference = str((item.get("spec") or {}).get("checkpointId") or "")
    starts_from = split_checkpoint_id(reference, str(item["metadata"]["namespace"]))[1]
    return Run(str(item["metadata"]["uid"]), phase_of(item) in FINISHED, starts_from)


def artifact(item: Obj) -> Artifact:
    """Return the artifact that an RLCheckpoint or RLAdapter records."""
    meta, spec = item["metadata"], item["spec"]
    return Artifact(
        str(item["kind"]),
        str(meta["namespace"]),
        str(meta["name"]),
        str(spec["runUid"]),
        str(spec["uri"]),
        _creation_time(meta),
        bool(spec.get("deployed")),
    )


def child(item: Obj) -> Child:
    """Return the child of a run for its object."""
    meta = item["metadata"]
    return Child(
        str(item["kind"]), str(meta["namespace"]), str(meta["name"]), label(item, RUN_UID_LABEL), _creation_time(meta)
    )


def is_of_a_run(item: Obj) -> bool:
    """True if a run owns the object, or it has no owner. Objects of other owners do not belong to a run."""
    owners = item["metadata"].get("ownerReferences") or []
    return all(o.get("kind") == "RLRun" for o in owners)


def _creation_time(metadata: Obj) -> datetime:
    text = metadata.get("creationTimestamp")
    # Without a time the object counts as new, because objects of unknown age must not be deleted.
    return datetime.fromisoformat(str(text)) if text else datetime.max.replace(tzinfo=UTC)
