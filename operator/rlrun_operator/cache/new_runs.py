"""Runs whose names are new to this process: only their first reconciles may rely on watches alone.

A watch may lag behind, and pods of an earlier run with the name may exist that it has not shown. So a name is new only
once, and not new if the process has listed or reconciled a run with it, or has seen one end lately.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlrun.constants import FINALIZER

from rlrun_operator.cache.object_cache import RunName

GONE_SECONDS = 3600.0
"""Time for which the name of a deleted run is remembered. Its pods and lagging watches take minutes."""


class NewRuns:
    """Names of runs that this process knows, and the runs that wait for their first reconcile."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at: dict[RunName, float | None] = {}
        """Time of the end of each known run, None while it exists."""
        self._waiting: dict[RunName, str] = {}
        """Uid of each new run."""

    def __len__(self) -> int:
        """Return the number of names that are remembered."""
        return len(self._ended_at)

    def see_event(self, event: str | None, run: Mapping[str, Any]) -> bool:
        """Record an event; its type is None for a listed run. Return whether it is the creation of a new run."""
        metadata = run["metadata"]
        name = (str(metadata["namespace"]), str(metadata["name"]))
        if event == "DELETED":
            self._end(name)
            return False
        # A run that is restored from a backup gets its status after its creation.
        is_restored = FINALIZER in (metadata.get("finalizers") or ())
        is_new = event == "ADDED" and not run.get("status") and not is_restored and not self._knows(name)
        self._ended_at[name] = None
        if is_new:
            self._waiting[name] = str(metadata["uid"])
        return is_new

    def take(self, name: RunName, uid: str) -> bool:
        """Return whether a reconcile is the first of a new run. The next one is not, even if this one fails."""
        self._ended_at[name] = None
        return self._waiting.pop(name, None) == uid

    def see_list(self, names: Iterable[RunName]) -> None:
        """Record a list of all runs, since a watch may have missed the end of one. Forget old names."""
        listed = set(names)
        for name in [name for name, ended in self._ended_at.items() if ended is None and name not in listed]:
            if name not in self._waiting:
                self._end(name)
        self._ended_at.update(dict.fromkeys(listed))
        for name in [name for name in self._ended_at if not self._knows(name)]:
            del self._ended_at[name]

    def _end(self, name: RunName) -> None:
        self._ended_at[name] = self._clock()
        self._waiting.pop(name, None)

    def _knows(self, name: RunName) -> bool:
        if name not in self._ended_at:
            return False
        ended = self._ended_at[name]
        return ended is None or self._clock() - ended < GONE_SECONDS
