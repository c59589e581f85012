"""Index of the runs that have objects of each watched kind: shows that a new run has none, or that a finished run has
only those that it keeps.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable

from rlrun.constants import RUN_LABEL, RUN_UID_LABEL
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj, label

from rlrun_operator.cache.object_cache import RunName

LISTED = ("namespace", "name", "uid", "resourceVersion", "deletionTimestamp")
"""Metadata that `indexed_parts` has, beside the labels."""


class RunIndex:
    """Runs that have objects of watched kinds. It follows the watches, so it lags behind the API server as they do."""

    def __init__(self) -> None:
        self._objects: defaultdict[tuple[ResourceKind, str | None], dict[str, tuple[RunName, str]]] = defaultdict(dict)
        """Name and uid of the run of each object by the object's uid, for each watch. An object that is being deleted
        has no run's uid."""
        self._counts: Counter[tuple[ResourceKind, RunName]] = Counter()
        self._staying: Counter[tuple[ResourceKind, RunName, str]] = Counter()
        """The same by the run's uid, without objects that are being deleted."""

    def watch_opened(self, kind: ResourceKind, namespace: str | None, objects: Iterable[Obj]) -> None:
        """Begin with all objects of the kind, in one or in all namespaces."""
        self.watch_closed(kind, namespace)
        self._objects[kind, namespace] = {}
        for obj in objects:
            self.see(kind, namespace, obj)

    def watch_closed(self, kind: ResourceKind, namespace: str | None) -> None:
        """Forget the kind until its watch is open again."""
        for run, run_uid in self._objects.pop((kind, namespace), {}).values():
            self._remove(kind, run, run_uid)

    def see(self, kind: ResourceKind, namespace: str | None, obj: Obj, *, deleted: bool = False) -> None:
        """Apply an event of the watch with this namespace."""
        metadata = obj["metadata"]
        known, uid = self._objects[kind, namespace], str(metadata.get("uid", ""))
        before = known.pop(uid, None)
        if before is not None:
            self._remove(kind, *before)
        if label(obj, RUN_LABEL) and not deleted:
            run = (str(metadata.get("namespace", "")), label(obj, RUN_LABEL))
            run_uid = "" if metadata.get("deletionTimestamp") else label(obj, RUN_UID_LABEL)
            known[uid] = run, run_uid
            self._counts[kind, run] += 1
            self._staying[kind, run, run_uid] += 1

    def has_none(self, kind: ResourceKind, run: RunName) -> bool:
        """Return whether the kind is watched and no object of it has the label of the run."""
        return self._is_watched(kind, run) and not self._counts[kind, run]

    def has_only(self, kind: ResourceKind, run: RunName, run_uid: str) -> bool:
        """Return whether all objects of the kind with the name of the run have its uid, and none is being deleted.

        True without any, False while the kind is not watched.
        """
        return self._is_watched(kind, run) and self._counts[kind, run] == self._staying[kind, run, run_uid]

    def _is_watched(self, kind: ResourceKind, run: RunName) -> bool:
        return (kind, None) in self._objects or (kind, run[0]) in self._objects

    def _remove(self, kind: ResourceKind, run: RunName, run_uid: str) -> None:
        self._counts[kind, run] -= 1
        if not self._counts[kind, run]:
            del self._counts[kind, run]
        self._staying[kind, run, run_uid] -= 1
        if not self._staying[kind, run, run_uid]:
            del self._staying[kind, run, run_uid]


def indexed_parts(obj: Obj) -> Obj:
    """Return what the index and the cache use of an object of a list."""
    metadata = obj["metadata"]
    labels = {key: label(obj, key) for key in (RUN_LABEL, RUN_UID_LABEL)}
    kept = {key: metadata[key] for key in LISTED if key in metadata}
    return {"metadata": {**kept, "labels": labels}}
