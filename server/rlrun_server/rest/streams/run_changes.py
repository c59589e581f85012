"""Changes of runs for streams: which streams to wake, and which runs of a namespace have changed."""

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from rlrun.kube.informer import ObjectChange

from rlrun_server.rest.objects.kept_objects import KeptObject, KeptObjects
from rlrun_server.rest.objects.summaries import RunSummary

REMEMBERED = 200
"""Changes of one namespace."""

Wake = Callable[[], None]


class RunChange(NamedTuple):
    """A run is new, has changed, or is deleted."""

    number: int
    """Changes of all namespaces are counted."""
    version: int
    """Version up to which changes had arrived from the API server."""
    uid: str
    name: str
    is_deleted: bool


class RunChanges:
    """The last changes of each namespace."""

    def __init__(self, runs: KeptObjects[RunSummary]) -> None:
        self._runs = runs
        self._wakes: dict[str, set[Wake]] = {}
        """Functions by namespace or uid."""
        self._changes: defaultdict[str, deque[RunChange]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._forgotten: dict[str, RunChange] = {}
        """Newest change of each namespace that was forgotten."""
        self._number = 0
        runs.listeners.append(self._on_change)

    def subscribe(self, place: str, wake: Wake) -> Wake:
        """Call `wake` after each change in the namespace, or of the run with this uid. Returns a function that ends the
        subscription."""
        self._wakes.setdefault(place, set()).add(wake)

        def unsubscribe() -> None:
            wakes = self._wakes.get(place, set())
            wakes.discard(wake)
            if not wakes:
                self._wakes.pop(place, None)

        return unsubscribe

    @property
    def number(self) -> int:
        """Number of the newest change."""
        return self._number

    def after(self, namespace: str, number: int) -> list[RunChange] | None:
        """Return the changes after one. None: some of them are forgotten."""
        forgotten = self._forgotten.get(namespace)
        if forgotten is not None and forgotten.number > number:
            return None
        return [change for change in self._changes.get(namespace, ()) if change.number > number]

    def since_version(self, namespace: str, version: int) -> list[RunChange] | None:
        """Return all changes since a version of the API server, and maybe earlier ones. None: some are forgotten."""
        forgotten = self._forgotten.get(namespace)
        if version < self._runs.first_version or (forgotten is not None and forgotten.version >= version):
            return None
        return [change for change in self._changes.get(namespace, ()) if change.version >= version]

    def _on_change(self, change: ObjectChange[KeptObject[RunSummary]]) -> None:
        kept = change.cached
        self._number += 1
        changes = self._changes[kept.namespace]
        if len(changes) == REMEMBERED:
            self._forgotten[kept.namespace] = changes[0]
        # A list finds changes that are newer than the version up to which all have arrived.
        version = max(self._runs.version, kept.version)
        changes.append(RunChange(self._number, version, kept.uid, kept.name, change.is_deleted))
        for place in (kept.uid, kept.namespace):
            for wake in tuple(self._wakes.get(place, ())):
                wake()
