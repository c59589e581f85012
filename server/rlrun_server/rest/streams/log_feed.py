"""Feed of new lines of a run's pods, read with the rights of the caller.

A position has the time of the last line of each pod, because pods write at the same time.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from rlrun.kube import requests
from rlrun.kube.async_client import read_end
from rlrun.kube.errors import ApiError

from rlrun_server.rest.base.problems import from_api_error
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.rest.logs.live_logs import NO_LOG
from rlrun_server.rest.logs.log_lines import LineFilter, ParsedLine, merge_lines, parse_lines, time_text
from rlrun_server.rest.logs.run_pods import LogCluster, PodSelection, RunPod, list_pods
from rlrun_server.rest.streams.feed import Feed, StreamEvent, Wake
from rlrun_server.rest.streams.stream_cursor import not_a_cursor
from rlrun_server.rest.streams.stream_models import LogLines, Topic

PERIOD_SECONDS = 3.0
FIRST_LINES = 100
"""Last lines of each pod with which a stream begins."""
MAX_LINES = 2000
"""Lines of one event, and bytes that are read for it, of all pods."""
READ_BYTES = 256 * 1024
MIN_POD_BYTES = 16 * 1024
READ_SECONDS = 10.0
CONCURRENT_READS = 16
"""Logs that are read at a time for all streams: a node that does not answer must not take all connections."""
POSITION = re.compile(r"([0-9a-f]{6}\.[0-9]{1,19})(,[0-9a-f]{6}\.[0-9]{1,19}){0,31}")
SECOND = 10**9

FindCluster = Callable[[], Awaitable[LogCluster]]
"""Returns the API server as the caller may use it now: its token may be a new one."""


class LogSources:
    """Shared parts of all streams of logs."""

    def __init__(self) -> None:
        self.reads = asyncio.Semaphore(CONCURRENT_READS)
        self.parsing = TenantQueue(1, "stream-logs")


class LogFeed(Feed):
    """New lines of the selected pods of one run, for one stream."""

    letter = "l"
    pause = PERIOD_SECONDS
    period = PERIOD_SECONDS

    def __init__(
        self,
        cluster: FindCluster,
        sources: LogSources,
        run: tuple[str, str, str],
        wanted: PodSelection,
        cursor: str,
        pointer: str,
    ) -> None:
        """`run`: namespace, name and uid. Raises RestError for a cursor that is none."""
        self._cluster = cluster
        self._sources = sources
        self._namespace, self._run, self._uid = run
        self._wanted = wanted
        self._times: dict[str, int] = {}
        """Nanoseconds of the last line by pod."""
        self._begins = not cursor
        if cursor:
            if not POSITION.fullmatch(cursor):
                raise not_a_cursor(pointer)
            self._times = {pod: int(time) for pod, time in (part.split(".") for part in cursor.split(","))}

    @property
    def position(self) -> str:
        """Times of the last lines."""
        return ",".join(f"{pod}.{time}" for pod, time in self._times.items())

    def subscribe(self, wake: Wake) -> Wake:
        """Return at once: it is collected now and then, and never woken."""
        return lambda: None

    async def collect(self) -> list[StreamEvent]:
        """Return the next lines. Raises RestError, ProblemError."""
        cluster = await self._cluster()
        pods = await list_pods(cluster, self._namespace, self._run, self._uid, self._wanted)
        keys = {short_name(pod.origin.pod): pod for pod in pods}
        # Times of pods that are gone are not needed.
        self._times = {key: time for key, time in self._times.items() if key in keys}
        limit = max(MIN_POD_BYTES, READ_BYTES // max(1, len(keys)))
        read = [(pod, key, await self._read(cluster, pod, key, limit)) for key, pod in keys.items()]
        self._begins = False
        lines = await self._sources.parsing.run(self._namespace, self._parse, read, limit)
        if not lines:
            return []
        log_lines = LogLines(lines=merge_lines([lines], len(lines))[0])
        return [
            StreamEvent(Topic.log, log_lines.model_dump_json(by_alias=True, exclude_none=True).encode(), self.position)
        ]

    async def _read(self, cluster: LogCluster, pod: RunPod, key: str, limit: int) -> bytes:
        """Return the next bytes of a pod. Raises RestError."""
        since = self._times.get(key)
        request = requests.log(
            self._namespace,
            pod.origin.pod,
            pod.container,
            since_time="" if since is None else time_text(since + 1),
            tail_lines=FIRST_LINES if self._begins and since is None else None,
            limit_bytes=limit,
            timestamps=True,
        )
        try:
            async with self._sources.reads, cluster.stream(replace(request, seconds=READ_SECONDS)) as chunks:
                data, _ = await read_end(chunks, limit)
        except ApiError as error:
            if error.status in NO_LOG:
                return b""
            raise from_api_error(error) from error
        return data

    def _parse(self, read: list[tuple[RunPod, str, bytes]], limit: int) -> list[ParsedLine]:
        """Return the lines that are new. Runs in a thread; nothing else changes the times meanwhile."""
        parsed: list[ParsedLine] = []
        for pod, key, data in read:
            known = self._times.get(key, 0)
            is_full = len(data) >= limit
            # The last line of a read that is full is not whole, and comes again.
            whole = data[: data.rfind(b"\n") + 1] if is_full else data
            lines = parse_lines(whole, pod.origin, LineFilter(), timestamps=True)
            new = [line for line in lines if line.nanoseconds > known][: MAX_LINES // len(read)]
            if new:
                self._times[key] = new[-1].nanoseconds
            elif is_full:
                # More bytes in this second than are read, or one line: the rest of the second is left out.
                first = next(parse_lines(data, pod.origin, LineFilter(), timestamps=True), None)
                second = max(known, 0 if first is None else first.nanoseconds) // SECOND
                self._times[key] = (second + 1) * SECOND - 1
            parsed += new
        return parsed


def short_name(pod: str) -> str:
    """Return a short name of a pod, for positions."""
    return hashlib.blake2s(pod.encode(), digest_size=3).hexdigest()
