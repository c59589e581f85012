"""Feed of the lines of one folder of a run: its metrics, or the samples of its steps."""

import math

from rlrun_server.rest.streams.feed import Feed, StreamEvent, Wake
from rlrun_server.rest.streams.file_tail import Position
from rlrun_server.rest.streams.folder_tail import FolderTail
from rlrun_server.rest.streams.stream_cursor import not_a_cursor
from rlrun_server.rest.streams.stream_models import Topic


class FolderFeed(Feed):
    """Lines of one folder for one stream."""

    pause = 0.0
    period = math.inf

    def __init__(
        self, topic: Topic, letter: str, tail: FolderTail, cursor: str, pointer: str, after_step: int | None
    ) -> None:
        """`cursor`: position from which to continue; empty: after a step, or with the newest line. Raises RestError."""
        self.letter = letter
        self._topic = topic
        self._tail = tail
        self._after_step = after_step
        self._position: Position | None = None
        self._filtered_until = Position()
        """Lines before it are left out if they are not of later steps."""
        if cursor:
            self._position = Position.parse(cursor)
            if self._position is None:
                raise not_a_cursor(pointer)

    @property
    def position(self) -> str:
        """File and offset."""
        return "" if self._position is None else str(self._position)

    def subscribe(self, wake: Wake) -> Wake:
        """Call `wake` when there are new lines."""
        return self._tail.subscribe(wake)

    async def collect(self) -> list[StreamEvent]:
        """Return the next lines. Raises RestError."""
        if self._position is None:
            self._position, self._filtered_until = await self._tail.start(self._after_step)
        while True:
            tail_events = await self._tail.after(self._position)
            events = [
                StreamEvent(self._topic, line.data, str(line.end))
                for line in tail_events
                if line.data is not None and self._is_wanted(line.end, line.step)
            ]
            if tail_events:
                self._position = tail_events[-1].end
            if events or not tail_events:
                return events

    def _is_wanted(self, end: Position, step: int | None) -> bool:
        if self._after_step is None or step is None or end > self._filtered_until:
            return True
        return step > self._after_step
