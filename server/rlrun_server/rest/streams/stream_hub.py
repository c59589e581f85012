"""Shared parts of all streams: limits, changes of runs, and one reader of each folder that is followed."""

from collections.abc import Callable
from dataclasses import dataclass

from rlrun.api.base.phases import Phase
from rlrun.constants import Reason

from rlrun_server.authentication.users import User
from rlrun_server.rest.base.concurrency_limit import ConcurrencyLimit
from rlrun_server.rest.base.problems import RestError
from rlrun_server.rest.base.stored_files import StoredFiles
from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import RunSummary
from rlrun_server.rest.streams.client_stream import ClientStream
from rlrun_server.rest.streams.feed import Wake
from rlrun_server.rest.streams.folder_tail import FolderKind, FolderTail
from rlrun_server.rest.streams.log_feed import LogSources
from rlrun_server.rest.streams.run_changes import RunChanges
from rlrun_server.rest.streams.step_events import metric_event, metric_step, sample_step, step_event
from rlrun_server.rest.streams.stream_models import ByeReason, Topic
from rlrun_server.runtime.metrics import STREAMS

STREAMS_PER_USER = 50
LOG_STREAMS_PER_USER = 10
LOG_STREAMS = 64
"""Streams with the topic `log`: each asks the API server every few seconds."""
FOLDERS = {Topic.metrics: "metrics", Topic.steps: "rollouts/steps"}
FINISHED = frozenset({Phase.completed.value, Phase.failed.value, Phase.stopped.value, Phase.suspended.value})
KINDS = {Topic.metrics: FolderKind(metric_event, metric_step), Topic.steps: FolderKind(step_event, sample_step)}


@dataclass(frozen=True)
class _TailKey:
    namespace: str
    uid: str
    topic: Topic


class StreamHub:
    """All streams of this server."""

    def __init__(
        self, runs: KeptObjects[RunSummary], files: StoredFiles, clock: Callable[[], float], max_streams: int
    ) -> None:
        """`max_streams`: streams of all users together."""
        self.runs = runs
        self.changes = RunChanges(runs)
        self.logs = LogSources()
        self.clock = clock
        self._files = files
        self._streams = ConcurrencyLimit("streams", STREAMS_PER_USER, max_streams)
        self._log_streams = ConcurrencyLimit("streams with logs", LOG_STREAMS_PER_USER, LOG_STREAMS)
        self._tails: dict[_TailKey, FolderTail] = {}
        self._open: set[ClientStream] = set()
        self._is_closed = False
        runs.listeners.append(lambda change: self._hurry(change.cached.namespace, change.cached.uid))

    @property
    def count(self) -> int:
        """Number of open streams."""
        return len(self._open)

    def tail(self, namespace: str, uid: str, topic: Topic) -> FolderTail:
        """Return the reader of a folder, the same for all streams. Raises RestError."""
        key = _TailKey(namespace, uid, topic)
        folder_tail = self._tails.get(key)
        if folder_tail is None:
            # Those of streams that have ended.
            self._tails = {key: tail for key, tail in self._tails.items() if tail.is_used}
            folder = self._files.layout(namespace, uid).root / FOLDERS[topic]
            folder_tail = FolderTail(
                self._files, namespace, folder, KINDS[topic], lambda: self._is_finished(key), self.clock
            )
            self._tails[key] = folder_tail
        return folder_tail

    def take(self, user: User, *, with_log: bool) -> Wake:
        """Count one more stream of the user. Returns a function that releases it. Raises RestError."""
        if self._is_closed:
            raise RestError(503, Reason.SERVER_NOT_READY, "rlrun-server ends. Repeat the request.")
        self._streams.take(user)
        try:
            if with_log:
                self._log_streams.take(user)
        except RestError:
            self._streams.release(user)
            raise

        def release() -> None:
            self._streams.release(user)
            if with_log:
                self._log_streams.release(user)

        return release

    def add(self, stream: ClientStream) -> None:
        """Know an open stream."""
        self._open.add(stream)
        STREAMS.inc()
        if self._is_closed:
            stream.end(ByeReason.reconnect, "rlrun-server ends. Open the stream again.")

    def remove(self, stream: ClientStream) -> None:
        """Forget a stream that has ended."""
        self._open.discard(stream)
        STREAMS.dec()

    def end_all(self) -> None:
        """End all streams and admit no new ones: the server is shutting down."""
        self._is_closed = True
        for stream in tuple(self._open):
            stream.end(ByeReason.reconnect, "rlrun-server ends. Open the stream again.")

    def close(self) -> None:
        """End all streams and threads, without waiting for S3."""
        self.end_all()
        self._files.close()
        self.logs.parsing.close()

    def _hurry(self, namespace: str, uid: str) -> None:
        """Poll soon for new lines of a run that has changed."""
        for topic in FOLDERS:
            tail = self._tails.get(_TailKey(namespace, uid, topic))
            if tail is not None:
                tail.hurry()

    def _is_finished(self, key: _TailKey) -> bool:
        run = self.runs.find_uid(key.namespace, key.uid)
        return run is None or run.summary.phase in FINISHED
