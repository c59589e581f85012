"""Lines of growing files, and their one reader."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from rlrun.storage.layout import S3Uri
from rlrun_server.rest.base.stored_files import StoredFiles
from rlrun_server.rest.streams import file_tail, folder_tail
from rlrun_server.rest.streams.file_tail import Part, Position, end_of, lines_after, list_parts, start_after
from rlrun_server.rest.streams.folder_feed import FolderFeed
from rlrun_server.rest.streams.folder_tail import FolderTail, poll_pause
from rlrun_server.rest.streams.step_events import metric_event, metric_step, sample_step, step_event
from rlrun_server.rest.streams.stream_hub import KINDS
from rlrun_server.rest.streams.stream_models import Topic

from tests.support.fake_s3 import InMemoryStore

BUCKET = "bucket"
FOLDER = S3Uri(BUCKET, "team/uid/metrics")


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore(BUCKET)


def line(step: int, **values: float) -> bytes:
    return json.dumps({"step": step, "time": "t", "progress/step": step, **values}).encode() + b"\n"


def put(store: InMemoryStore, part: str, *lines: bytes) -> None:
    store.put_bytes(FOLDER / f"{part}.jsonl", b"".join(lines))


def read(store: InMemoryStore, position: Position) -> list[int]:
    parts = list_parts(store, FOLDER)
    return [json.loads(found.data)["step"] for found in lines_after(store, FOLDER, parts, position)]


def test_lines_follow_a_position_over_all_files(store: InMemoryStore) -> None:
    put(store, "part-a-0", line(1), line(2))
    put(store, "part-a-1", line(3))
    store.put_bytes(FOLDER / "other.txt", b"x")
    parts = list_parts(store, FOLDER)
    assert [part.name for part in parts] == ["part-a-0", "part-a-1"]
    assert read(store, Position()) == [1, 2, 3]
    after_first = lines_after(store, FOLDER, parts, Position())[0].end
    assert Position.parse(str(after_first)) == after_first
    assert read(store, after_first) == [2, 3]
    end = end_of(parts)
    assert read(store, end) == []
    put(store, "part-a-1", line(3), line(4))
    assert read(store, end) == [4]


@pytest.mark.parametrize(
    ("step", "expected"), [(None, [5]), (-1, [1, 2, 3, 4, 5]), (3, [3, 4, 5]), (0, [1, 2, 3, 4, 5]), (9, [5])]
)
def test_a_stream_begins_before_the_lines_of_later_steps(
    store: InMemoryStore, step: int | None, expected: list[int]
) -> None:
    put(store, "part-a-0", line(1), line(2))
    put(store, "part-a-1", line(3), line(4))
    put(store, "part-b-0", line(5))
    parts = list_parts(store, FOLDER)
    assert read(store, start_after(store, FOLDER, parts, step, metric_step)) == expected


def test_an_empty_folder_has_a_beginning(store: InMemoryStore) -> None:
    assert end_of([]) == Position()
    assert start_after(store, FOLDER, [], None, metric_step) == Position()
    assert read(store, Position("part-a-0", 10)) == []


def test_much_is_read_in_pieces(store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tail, "MAX_BYTES", 2 * len(line(1)) + 5)
    put(store, "part-a-0", *(line(step) for step in range(1, 6)))
    put(store, "part-a-1", line(6), b"x" * 1000 + b"\n", line(7))
    parts, position, found = list_parts(store, FOLDER), Position(), []
    while lines := lines_after(store, FOLDER, parts, position):
        assert len(lines) <= 3
        position = lines[-1].end
        found += [step for each in lines if (step := metric_step(each.data)) is not None]
    assert (found, position) == ([1, 2, 3, 4, 5, 6, 7], end_of(parts))


def test_a_file_that_is_gone_is_passed(store: InMemoryStore) -> None:
    put(store, "part-a-1", line(2))
    parts = [Part("part-a-0", 100), Part("part-a-1", len(line(2)))]
    assert [json.loads(each.data)["step"] for each in lines_after(store, FOLDER, parts, Position())] == [2]


@pytest.mark.parametrize("text", ["", "part-a", "x:1", "part-a:-1", "part-../x:1", f"part-a:{'9' * 13}"])
def test_a_position_of_a_client_is_checked(text: str) -> None:
    assert Position.parse(text) is None


def test_events_of_metrics_have_numbers_alone() -> None:
    data = b'{"step": 3, "time": "t", "a": 1, "b": "text", "c": [1], "d": NaN, "e": 1e999, "f": true, "g": 2.5}\n'
    found = json.loads(metric_event(data) or b"")
    assert found == {
        "step": 3, "time": "t", "values": {"a": 1.0, "g": 2.5}, "isTrained": False, "isComplete": True,
    }  # fmt: skip
    many = json.dumps({"step": 1, **{f"m{number}": 1 for number in range(700)}}).encode()
    cut = json.loads(metric_event(many) or b"")
    assert (len(cut["values"]), cut["isComplete"]) == (500, False)
    for wrong in (b"[]", b"{", b'{"step": -1}', b'{"step": true}', b"[" * 100_000, b"\xff"):
        assert metric_event(wrong) is None
        assert metric_step(wrong) is None


def test_events_of_steps_are_summaries() -> None:
    samples = {"step": 3, "split": "val", "environment": "math", "file": "f", "size": 9, "counts": {"errored": 1}}
    reward = {"mean": 0.5, "quantiles": [0.0]}
    found = json.loads(step_event(json.dumps({**samples, "reward": reward}).encode()) or b"")
    assert found == {"step": 3, "split": "val", "environment": "math", "counts": {"errored": 1}, "reward": 0.5}
    for wrong in (b"{}", b"x", json.dumps({**samples, "step": -1}).encode()):
        assert step_event(wrong) is None
        assert sample_step(wrong) is None


def test_pauses_follow_the_pace_of_the_run() -> None:
    assert poll_pause(0.0, 0.01, is_finished=False) == 2.0
    assert poll_pause(100.0, 0.01, is_finished=False) == 5.0
    assert poll_pause(10_000.0, 0.01, is_finished=False) == 10.0
    assert poll_pause(0.0, 1.0, is_finished=False) == 20.0
    assert poll_pause(0.0, 0.01, is_finished=True) == 30.0


class Shared:
    """A reader, and how often S3 was asked."""

    def __init__(self, store: InMemoryStore) -> None:
        async def renew() -> None:
            pass

        self.files = StoredFiles(store, renew, S3Uri(BUCKET, ""), "test", 1)
        self.tail = FolderTail(self.files, "team", FOLDER, KINDS[Topic.metrics], lambda: False, lambda: 100.0)
        self.woken = 0

    def feed(self, cursor: str = "", after_step: int | None = None) -> FolderFeed:
        return FolderFeed(Topic.metrics, "m", self.tail, cursor, "query/last_event_id", after_step)


@pytest.fixture
async def shared(store: InMemoryStore) -> AsyncIterator[Shared]:
    found = Shared(store)
    yield found
    found.files.close()


async def steps(feed: FolderFeed) -> list[int]:
    found = []
    while events := await feed.collect():
        found += [json.loads(event.data)["step"] for event in events]
    return found


async def test_streams_get_what_is_new_from_one_read(
    store: InMemoryStore, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "part-a-0", line(1), line(2))
    await shared.tail.poll()
    feeds = [shared.feed() for _ in range(20)]
    assert [await steps(feed) for feed in feeds] == [[2]] * 20
    put(store, "part-a-0", line(1), line(2), line(3))
    await shared.tail.poll()
    reads = []
    monkeypatch.setattr(store, "get_range", lambda *_: reads.append(1))
    monkeypatch.setattr(store, "walk", lambda *_: reads.append(1))
    assert [await steps(feed) for feed in feeds] == [[3]] * 20
    assert reads == []


async def test_a_stream_that_comes_back_misses_nothing(
    store: InMemoryStore, shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_tail, "MAX_KEPT", 2)
    put(store, "part-a-0", line(1))
    await shared.tail.poll()
    feed = shared.feed()
    assert await steps(feed) == [1]
    put(store, "part-a-0", *(line(step) for step in range(1, 8)))
    put(store, "part-a-1", line(8))
    await shared.tail.poll()
    assert await steps(shared.feed(feed.position)) == [2, 3, 4, 5, 6, 7, 8]
    other = Shared(store)
    assert await steps(other.feed(feed.position)) == [2, 3, 4, 5, 6, 7, 8], "another replica"
    other.files.close()


async def test_a_stream_begins_after_the_step_that_the_client_has(store: InMemoryStore, shared: Shared) -> None:
    put(store, "part-a-0", line(1), line(2), line(3))
    assert await steps(shared.feed(after_step=1)) == [2, 3]
    feed = shared.feed(after_step=3)
    assert await steps(feed) == []
    put(store, "part-a-0", line(1), line(2), line(3), line(2))
    assert await steps(feed) == [2], "a step that is repeated after a restart is new"


async def test_the_reader_works_while_somebody_listens(store: InMemoryStore, shared: Shared) -> None:
    woken = asyncio.Event()
    unsubscribe = shared.tail.subscribe(woken.set)
    async with asyncio.timeout(60):
        await woken.wait()
    assert shared.tail.is_used
    unsubscribe()
    assert not shared.tail.is_used
