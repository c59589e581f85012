"""The kept objects follow list and watch."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN, ResourceKind
from rlrun.kube.objects import Obj
from rlrun_server.rest.objects import watched_objects
from rlrun_server.rest.objects.summaries import RunSummary, summarize_run
from rlrun_server.rest.objects.watched_objects import ListingCluster, WatchedObjects
from typing_extensions import override

from tests.support.rest_api import run_object, uid_of

Step = list[Obj] | list[tuple[str, Obj]] | ApiError


class Scripted(ListingCluster):
    """Lists and watches in the order of a script. At its end a watch hangs."""

    def __init__(self, lists: list[list[Obj] | ApiError], watches: list[list[tuple[str, Obj]] | ApiError]) -> None:
        self.lists = lists
        self.watches = watches
        self.versions: list[str] = []
        self.stored: dict[str, Obj] = {}
        self.read: list[str] = []
        self.is_done = asyncio.Event()

    @override
    async def all_pages(self, kind: ResourceKind) -> AsyncIterator[tuple[list[Obj], str]]:
        found = self.lists.pop(0)
        if isinstance(found, ApiError):
            raise found
        for start in range(0, len(found), 100):
            yield found[start : start + 100], "10"
        yield [], "10"

    @override
    async def read_listed(self, kind: ResourceKind, namespace: str | None, name: str) -> Obj | None:
        self.read.append(name)
        return self.stored.get(name)

    @override
    async def watch(self, kind: ResourceKind, version: str, seconds: float) -> AsyncIterator[tuple[str, Obj]]:
        self.versions.append(version)
        if not self.watches:
            self.is_done.set()
            await asyncio.Event().wait()
        found = self.watches.pop(0)
        if isinstance(found, ApiError):
            raise found
        for event in found:
            yield event


async def follow(cluster: Scripted) -> WatchedObjects[RunSummary]:
    objects = WatchedObjects(cluster, RLRUN, summarize_run)
    assert not objects.is_listed
    task = asyncio.create_task(objects.follow())
    await asyncio.wait_for(cluster.is_done.wait(), 60)
    task.cancel()
    return objects


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_objects, "PAUSE_SECONDS", 0.0)


def bookmark(version: int) -> tuple[str, Obj]:
    return "BOOKMARK", {"metadata": {"resourceVersion": str(version)}}


async def test_changes_arrive_and_the_next_watch_begins_after_them() -> None:
    first, second, changed = (
        run_object("a", number=1),
        run_object("b", number=2),
        run_object("a", number=1, phase="Failed"),
    )
    changed["metadata"]["resourceVersion"] = "12"
    gone = {**second, "metadata": {**second["metadata"], "resourceVersion": "13"}}
    cluster = Scripted([[first, second]], [[("MODIFIED", changed), ("DELETED", gone)], [bookmark(20)]])
    objects = await follow(cluster)
    (kept,) = objects.all()
    assert (kept.name, kept.summary.phase) == ("a", "Failed")
    assert "managedFields" not in kept.read()["metadata"]
    assert RunSummary.model_validate_json(kept.text) == kept.summary
    assert cluster.versions == ["10", "13", "20"]
    assert objects.find("team", "b") is None
    assert objects.find_uid("team", uid_of(2)) is None
    assert objects.find_uid("other", uid_of(1)) is None


async def test_an_outdated_watch_and_a_failed_list_begin_again() -> None:
    gone, away = ApiError(410, "Expired", "too old"), ApiError(0, "Unreachable", "away")
    cluster = Scripted([away, [run_object("a")], [run_object("b")]], [gone])
    objects = await follow(cluster)
    assert [kept.name for kept in objects.all()] == ["b"]


async def test_objects_stay_while_the_api_server_is_away() -> None:
    away = ApiError(0, "Unreachable", "away")
    objects = await follow(Scripted([[run_object("a")], away, [run_object("a")]], [away]))
    assert objects.find("team", "a") is not None


async def test_an_older_version_replaces_no_newer_one() -> None:
    objects = WatchedObjects(Scripted([], []), RLRUN, summarize_run)
    objects.put(run_object("a", number=9, phase="Failed"))
    objects.put(run_object("a", number=3))
    found = objects.find("team", "a")
    assert found is not None
    assert found.summary.phase == "Failed"


async def test_an_object_made_again_under_its_name_has_another_uid() -> None:
    objects = WatchedObjects(Scripted([], []), RLRUN, summarize_run)
    objects.put(run_object("a", number=1))
    objects.put(run_object("a", number=2))
    assert objects.find_uid("team", uid_of(1)) is None
    assert objects.find_uid("team", uid_of(2)) is not None


async def test_an_object_without_a_summary_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bad = run_object("bad", number=3)
    bad["metadata"]["creationTimestamp"] = "never"
    cluster = Scripted(
        [[run_object("a", number=1), bad]], [[("MODIFIED", bad)] * 5 + [("ADDED", run_object("b", number=12))]]
    )
    objects = await follow(cluster)
    assert sorted(kept.name for kept in objects.all()) == ["a", "b"]
    assert cluster.versions == ["10", "12"], "the watch went on"
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "RLRun team/bad" in caplog.text


async def test_others_use_the_event_loop_while_a_list_is_converted() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    cluster = Scripted([[run_object(f"run-{n}", number=n) for n in range(200)]], [])
    other = asyncio.create_task(count())
    objects = WatchedObjects(cluster, RLRUN, summarize_run)
    await objects._list()
    other.cancel()
    assert turns >= 10
    assert len(list(objects.all())) == 200


async def test_an_answer_that_comes_after_the_deletion_revives_nothing() -> None:
    run = run_object("a", number=11)
    objects = await follow(Scripted([[]], [[("ADDED", run), ("DELETED", run)]]))
    objects.put(run)
    assert objects.find("team", "a") is None
    assert objects.find_uid("team", uid_of(11)) is None


async def test_an_answer_that_comes_after_a_list_without_the_object_revives_nothing() -> None:
    run, away = run_object("a", number=1), ApiError(410, "Expired", "too old")
    objects = await follow(Scripted([[run], []], [away]))
    objects.put(run)
    assert not list(objects.all())


async def test_what_is_written_during_a_list_is_kept_if_it_is_newer() -> None:
    old, changed = run_object("old", number=1), run_object("old", number=1, phase="Failed")
    changed["metadata"]["resourceVersion"] = "12"

    class Writing(Scripted):
        @override
        async def all_pages(self, kind: ResourceKind) -> AsyncIterator[tuple[list[Obj], str]]:
            async for page in super().all_pages(kind):
                yield page
            objects.put(changed)
            objects.put(run_object("new", number=11))
            objects.put(run_object("deleted-before", number=9))

    objects = WatchedObjects(Writing([[old], [old]], []), RLRUN, summarize_run)
    await objects._list()
    assert {kept.name: kept.summary.phase for kept in objects.all()} == {"old": "Failed", "new": "Running"}
    await objects._list()
    assert {kept.name for kept in objects.all()} == {"old", "new"}


async def test_removed_objects_are_remembered_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_objects, "MAX_REMOVED", 3)
    runs = [run_object(f"run-{n}", number=n) for n in range(1, 9)]
    objects = await follow(Scripted([runs], [[("DELETED", run) for run in runs]]))
    for run in runs:
        objects.put(run)
    assert sorted(kept.name for kept in objects.all()) == [f"run-{n}" for n in range(1, 6)]


async def test_listeners_are_told_of_each_change_after_the_first_list() -> None:
    first, second = run_object("a", number=1), run_object("b", number=2)
    changed = {**first, "metadata": {**first["metadata"], "resourceVersion": "12"}}
    gone = ApiError(410, "Expired", "too old")
    cluster = Scripted([[first, second], [changed]], [[("MODIFIED", changed), bookmark(13)], gone])
    objects = WatchedObjects(cluster, RLRUN, summarize_run)
    told: list[tuple[str, int, bool]] = []
    objects.listeners.append(lambda change: told.append((change.kept.name, change.kept.version, change.is_deleted)))
    task = asyncio.create_task(objects.follow())
    await asyncio.wait_for(cluster.is_done.wait(), 60)
    task.cancel()
    # The second list lacks one, and has nothing new of the other.
    assert told == [("a", 12, False), ("b", 2, True)]
    assert (objects.first_version, objects.version) == (10, 10)


async def test_the_same_version_is_no_change() -> None:
    objects = WatchedObjects(Scripted([], []), RLRUN, summarize_run)
    told: list[tuple[str, bool]] = []
    objects.listeners.append(lambda change: told.append((change.kept.uid, change.is_deleted)))
    for number in (1, 1, 2):
        objects.put(run_object("a", number=number))
    assert told == [(uid_of(1), False), (uid_of(1), True), (uid_of(2), False)]


def large_run(run: str, number: int, size: int = 1_300_000) -> Obj:
    """Return a run whose arguments cannot be compressed."""
    text = base64.b85encode(random.Random(number).randbytes(size * 4 // 5)).decode()
    return run_object(run, number=number, env=[{"id": "me/reverse", "args": {"text": text}}])


async def test_large_objects_are_not_kept_but_read_when_needed() -> None:
    """200 runs of 1.3 MB must not need a quarter of a gigabyte."""
    large, small = large_run("large", 1), run_object("small", number=2)
    cluster = Scripted([[large, small]], [[("ADDED", large_run("later", 11))]])
    objects = await follow(cluster)
    kept = {each.name: each for each in objects.all()}
    assert {name for name, each in kept.items() if each.data is None} == {"large", "later"}
    assert kept["large"].size > 1_300_000
    assert objects.kept_bytes == len(kept["small"].data or b"")
    with pytest.raises(ValueError, match="team/large is not kept whole"):
        kept["large"].read()

    cluster.stored = {"large": large}
    assert await objects.load(kept["small"]) is kept["small"]
    loaded = await objects.load(kept["large"])
    assert loaded is not None
    assert loaded.read()["spec"] == large["spec"]
    assert await objects.load(kept["later"]) is None, "it was deleted"
    cluster.stored = {"large": large_run("large", 3)}
    assert await objects.load(kept["large"]) is None, "another run has its name"
    assert cluster.read == ["large", "later", "large"]


async def test_small_objects_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_objects, "MAX_KEPT_BYTES", 50_000)
    runs = [large_run(f"run-{n}", n, 15_000) for n in range(1, 9)]
    objects = await follow(Scripted([runs], [[]]))
    for number in range(9, 12):
        objects.put(large_run(f"run-{number}", number, 15_000))
    kept = list(objects.all())
    assert len(kept) == 11
    assert 30_000 < objects.kept_bytes == sum(len(each.data or b"") for each in kept) <= 50_000
    for run in runs:
        objects._remove(run)
    assert objects.kept_bytes == 0
    objects.put(large_run("run-12", 12, 15_000))
    assert objects.kept_bytes > 0


async def test_what_kubectl_applied_is_not_kept_a_second_time() -> None:
    run = run_object("a")
    run["metadata"]["annotations"] = {watched_objects.LAST_APPLIED: "{}", "mine": "yes"}
    objects = await follow(Scripted([[run]], []))
    (kept,) = objects.all()
    assert kept.read()["metadata"]["annotations"] == {"mine": "yes"}
