"""Feed of a run's Events, listed with the rights of the caller."""

from rlrun.kube import requests
from rlrun.kube.informer import version_number
from rlrun.kube.kinds import EVENT

from rlrun_server.rest.routes.events import MAX_EVENTS, event_of
from rlrun_server.rest.streams.feed import Feed, StreamEvent, Wake
from rlrun_server.rest.streams.log_feed import FindCluster
from rlrun_server.rest.streams.run_feeds import parse_version
from rlrun_server.rest.streams.stream_models import Topic

PERIOD_SECONDS = 10.0


class EventFeed(Feed):
    """Events of one run for one stream."""

    letter = "e"
    pause = 2.0
    period = PERIOD_SECONDS

    def __init__(self, cluster: FindCluster, namespace: str, uid: str, cursor: str, pointer: str) -> None:
        """Raises RestError for a cursor that is none."""
        self._cluster = cluster
        self._namespace = namespace
        self._uid = uid
        self._version = parse_version(cursor, pointer) if cursor else 0

    @property
    def position(self) -> str:
        """Version of the newest Event."""
        return str(self._version) if self._version else ""

    def subscribe(self, wake: Wake) -> Wake:
        """Return at once: it is collected now and then, and never woken."""
        return lambda: None

    async def collect(self) -> list[StreamEvent]:
        """Return Events that are new or have happened again. Raises RestError, ProblemError."""
        cluster = await self._cluster()
        request = requests.list_selected(EVENT, self._namespace, f"involvedObject.uid={self._uid}", MAX_EVENTS)
        answer = (await cluster.send(request)).get("items") or []
        versions = [(version_number(str(event["metadata"].get("resourceVersion") or "")), event) for event in answer]
        newer = sorted((pair for pair in versions if pair[0] > self._version), key=lambda pair: pair[0])
        self._version = max([self._version, *(version for version, _ in newer)])
        return [
            StreamEvent(Topic.events, event_of(event).model_dump_json(by_alias=True).encode(), str(version))
            for version, event in newer
        ]
