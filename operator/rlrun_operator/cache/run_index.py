"""Index of the runs that have objects, by kind: what a watch has seen says that a new run has none of a kind."""

from collections import Counter, defaultdict
from collections.abc import Iterable

from rlrun.constants import RUN_LABEL
from rlrun.kube.kinds import ResourceKind
from rlrun.kube.objects import Obj, label

from rlrun_operator.cache.object_cache import RunName


class RunIndex:
    """Runs that have objects of watched kinds. It follows the watches, so it lags behind the API server as they do."""

    def __init__(self) -> None:
        self._objects: defaultdict[tuple[ResourceKind, str | None], dict[str, RunName]] = defaultdict(dict)
        """Run of each object by its uid, for each watch."""
        self._counts: Counter[tuple[ResourceKind, RunName]] = Counter()

    def watch_opened(self, kind: ResourceKind, namespace: str | None, objects: Iterable[Obj]) -> None:
        """Begin with all objects of the kind, in one or in all namespaces."""
        self.watch_closed(kind, namespace)
        self._objects[kind, namespace] = {}
        for obj in objects:
            self.see(kind, namespace, obj)

    def watch_closed(self, kind: ResourceKind, namespace: str | None) -> None:
        """Forget the kind until its watch is open again."""
        for run in self._objects.pop((kind, namespace), {}).values():
            self._remove(kind, run)

    def see(self, kind: ResourceKind, namespace: str | None, obj: Obj, *, deleted: bool = False) -> None:
        """Take notice of an event of the watch with this namespace."""
        metadata = obj["metadata"]
        known, uid = self._objects[kind, namespace], str(metadata.get("uid", ""))
        before = known.pop(uid, None)
        if before is not None:
            self._remove(kind, before)
        if label(obj, RUN_LABEL) and not deleted:
            known[uid] = run = (str(metadata.get("namespace", "")), label(obj, RUN_LABEL))
            self._counts[kind, run] += 1

    def has_none(self, kind: ResourceKind, run: RunName) -> bool:
        """Return whether the kind is watched and no object of it has the label of the run."""
        is_watched = (kind, None) in self._objects or (kind, run[0]) in self._objects
        return is_watched and not self._counts[kind, run]

    def _remove(self, kind: ResourceKind, run: RunName) -> None:
        self._counts[kind, run] -= 1
        if not self._counts[kind, run]:
            del self._counts[kind, run]
