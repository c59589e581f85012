"""Feeds of runs' status: of one run, and of the runs of a namespace. Nothing is read for them."""

import math

from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.streams.feed import Feed, StreamEnd, StreamEvent, Wake
from rlrun_server.rest.streams.run_changes import RunChange, RunChanges
from rlrun_server.rest.streams.stream_cursor import not_a_cursor
from rlrun_server.rest.streams.stream_models import ByeReason, DeletedRun, EventType, Reset, Topic

PAUSE_SECONDS = 0.5
MAX_EVENTS = 256
STATUS_LETTER = "s"


def parse_version(text: str, pointer: str) -> int:
    """Return a version of the API server. Raises RestError."""
    if not text.isdecimal() or not text.isascii() or len(text) > 19:
        raise not_a_cursor(pointer)
    return int(text)


class StatusFeed(Feed):
    """Summary of one run, at first and after each change."""

    letter = STATUS_LETTER
    pause = PAUSE_SECONDS
    period = math.inf

    def __init__(
        self, runs: KeptObjects[RunSummary], changes: RunChanges, namespace: str, uid: str, *, is_shown: bool
    ) -> None:
        """`is_shown`: False for a stream without the topic, which ends with the run all the same."""
        self._runs = runs
        self._changes = changes
        self._namespace = namespace
        self._uid = uid
        self._is_shown = is_shown
        self._version: int | None = None

    @property
    def position(self) -> str:
        """Version of the run."""
        return "" if self._version is None or not self._is_shown else str(self._version)

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each change of the run."""
        return self._changes.subscribe(self._uid, wake)

    def resume(self, text: str, pointer: str) -> None:
        """Send no status that the client has. Raises RestError."""
        if text:
            self._version = parse_version(text, pointer)

    async def collect(self) -> list[StreamEvent]:
        """Return the status, if it has changed. Raises StreamEnd."""
        kept = self._runs.find_uid(self._namespace, self._uid)
        if kept is None:
            raise StreamEnd(ByeReason.deleted, "The run is deleted. Its metrics and samples are read by its uid.")
        if kept.version == self._version:
            return []
        self._version = kept.version
        return [StreamEvent(Topic.status, kept.text, self.position)] if self._is_shown else []


class NamespaceFeed(Feed):
    """Summaries of the runs of a namespace that change."""

    letter = STATUS_LETTER
    pause = PAUSE_SECONDS
    period = math.inf

    def __init__(
        self, runs: KeptObjects[RunSummary], changes: RunChanges, namespace: str, cursor: str, pointer: str
    ) -> None:
        """`cursor`: position from which to continue; empty: from now on. Raises RestError."""
        self._runs = runs
        self._changes = changes
        self._namespace = namespace
        self._number: int | None = None
        self._version = parse_version(cursor, pointer) if cursor else None
        if self._version is None:
            self._number = changes.number

    @property
    def position(self) -> str:
        """Version up to which changes have arrived."""
        return str(self._runs.version)

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` after each change in the namespace."""
        return self._changes.subscribe(self._namespace, wake)

    async def collect(self) -> list[StreamEvent]:
        """Return runs that have changed and the names of those that are deleted, or `reset`."""
        newest = self._changes.number
        if self._number is not None:
            changes = self._changes.after(self._namespace, self._number)
        else:
            changes = self._changes.since_version(self._namespace, self._version or 0)
        self._number = newest
        if changes is None:
            reset = Reset(detail="Changes were missed. List the runs again.")
            return [StreamEvent(EventType.reset, reset.model_dump_json(by_alias=True).encode(), self.position)]
        # Of several changes of a run the newest is enough.
        events = (self._event(change) for change in {change.uid: change for change in changes}.values())
        return [event for event in events if event is not None]

    def _event(self, change: RunChange) -> StreamEvent | None:
        if change.is_deleted:
            gone = DeletedRun(namespace=self._namespace, name=change.name, uid=change.uid)
            return StreamEvent(EventType.deleted, gone.model_dump_json(by_alias=True).encode(), self.position)
        kept = self._runs.find_uid(self._namespace, change.uid)
        return None if kept is None else StreamEvent(Topic.status, kept.text, self.position)
