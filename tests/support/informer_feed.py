"""Watch of a cluster in memory: tells informers what has changed since the last time."""

from rlrun.kube.kinds import ALL, WORKLOAD
from rlrun.kube.objects import Obj
from rlrun_operator.cluster.informers import FOLLOWED, Informers

from tests.support.fake_cluster import FakeCluster, copied


class InformerFeed:
    """Events for informers, by comparison: tests change objects in many ways."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.informers = Informers(cluster.kube, (*FOLLOWED, WORKLOAD))
        self._known = {key: copied(obj) for key, obj in cluster.objects.items()}
        for obj in cluster.objects.values():
            self._tell("ADDED", obj)
        for informer in self.informers._informers.values():
            informer._synced.set()

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
            if old is not None and old["metadata"]["uid"] != obj["metadata"]["uid"]:
                self._tell("DELETED", old)
            self._tell("ADDED" if old is None else "MODIFIED", obj)
            self._known[key] = copied(obj)
        for obj in before.values():
            self._tell("DELETED", obj)

    def forget_changes(self, *kinds: str) -> None:
        """Send no event of the changes until now, of these kinds or of all: watches lag behind."""
        known = {key: copied(obj) for key, obj in self._cluster.objects.items() if not kinds or key[0] in kinds}
        self._known = known if not kinds else {**self._known, **known}

    def _tell(self, event: str, obj: Obj) -> None:
        kind = ALL[obj["kind"]]
        informer = self.informers._of(kind, obj["metadata"].get("namespace"))
        if informer is not None:
            informer.handle_event(event, obj)
