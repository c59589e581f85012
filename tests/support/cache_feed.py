"""Watch of a cluster in memory: tells a cache and an index what has changed since the last time."""

from rlrun.kube.kinds import ALL, RLRUN
from rlrun.kube.objects import Obj
from rlrun_operator.cache.new_runs import NewRuns
from rlrun_operator.cache.object_cache import ObjectCache
from rlrun_operator.cache.run_index import RunIndex
from rlrun_operator.handlers import take_run

from tests.support.fake_cluster import FakeCluster, copied


class CacheFeed:
    """Events for a cache and an index, by comparison: tests change objects in many ways."""

    def __init__(self, cluster: FakeCluster, cache: ObjectCache) -> None:
        self._cluster = cluster
        self._cache = cache
        self.index = RunIndex()
        self.new_runs = NewRuns(lambda: 0.0)
        for run in cluster.all(RLRUN.kind):
            self.new_runs.see_event(None, run)
        self._known = {key: copied(obj) for key, obj in cluster.objects.items()}
        for kind in ALL.values():
            cache.watch_opened(kind, None, cluster.all(kind.kind))
            self.index.watch_opened(kind, None, cluster.all(kind.kind))

    def deliver(self) -> None:
        """Send an event for each object that is new, has changed, or is gone."""
        before, self._known = self._known, {}
        for key, obj in self._cluster.objects.items():
            old = before.pop(key, None)
            if old is not None and old == obj:
                self._known[key] = old
                continue
            if old is not None and old["metadata"]["resourceVersion"] == obj["metadata"]["resourceVersion"]:
                obj["metadata"]["resourceVersion"] = str(next(self._cluster.versions))
            self._tell("ADDED" if old is None else "MODIFIED", obj)
            self._known[key] = copied(obj)
        for obj in before.values():
            self._tell("DELETED", obj)

    def forget_changes(self) -> None:
        """Send no event of the changes until now: watches lag behind."""
        self._known = {key: copied(obj) for key, obj in self._cluster.objects.items()}

    def _tell(self, event: str, obj: Obj) -> None:
        kind, is_deleted = ALL[obj["kind"]], event == "DELETED"
        if kind == RLRUN:
            take_run(event, obj, self._cache, self.new_runs, lambda *_: None)
        else:
            self._cache.changed(kind, obj, deleted=is_deleted)
        self.index.see(kind, None, obj, deleted=is_deleted)
