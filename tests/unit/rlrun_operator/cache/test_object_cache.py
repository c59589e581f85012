"""What is kept, and what makes it go."""

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rlrun.kube.kinds import CONFIG_MAP, POD, SECRET, SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun_operator.cache import object_cache
from rlrun_operator.cache.object_cache import KEPT_SECONDS, ObjectCache, PendingRead, Question

RUN = ("team", "first")
LABELS = {"rlrun.dev/run": "first"}
PODS = Question.of_labels(POD, "team", LABELS)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> ObjectCache:
    found = ObjectCache(clock, spread=lambda: 1.0)
    for kind in (POD, SECRET, SERVICE):
        found.watch_opened(kind, None, ())
    return found


def pod(name: str = "a", version: int = 1, run: str = "first", **metadata: Any) -> Obj:
    labels = {"rlrun.dev/run": run}
    known = {"namespace": "team", "name": name, "uid": f"uid-{name}", "labels": labels}
    return {"kind": "Pod", "metadata": {**known, "resourceVersion": str(version), **metadata}}


def keep(cache: ObjectCache, question: Question, *objects: Obj, run: tuple[str, str] = RUN) -> None:
    with cache.reading(question) as read:
        cache.keep(question, read, objects, run)


def test_an_answer_is_kept_without_what_nobody_reads_and_readers_cannot_change_it(cache: ObjectCache) -> None:
    keep(cache, PODS, pod(managedFields=[{"manager": "x"}]))
    found = cache.find(PODS, RUN)
    assert found == [pod()]
    found[0]["metadata"]["name"] = "changed"
    assert cache.find(PODS, RUN) == [pod()]
    assert cache.find(Question.of_labels(POD, "team", {"rlrun.dev/run": "second"}), RUN) is None


def test_the_moment_of_a_read_stays_when_a_watch_opens_again(cache: ObjectCache) -> None:
    keep(cache, PODS, pod())
    moment = cache.moment()
    cache.watch_opened(POD, None, [pod()])
    read_at = cache.read_at(PODS)
    assert read_at is not None
    assert read_at < moment
    cache.forget_run(RUN)
    assert cache.read_at(PODS) is None


def test_nothing_is_kept_of_a_kind_that_nobody_watches(cache: ObjectCache) -> None:
    question = Question.one(CONFIG_MAP, "team", "first")
    keep(cache, question)
    assert cache.find(question, RUN) is None
    cache.watch_opened(CONFIG_MAP, "team", ())
    keep(cache, question)
    assert cache.find(question, RUN) == []
    keep(cache, other := Question.one(CONFIG_MAP, "other", "first"))
    assert cache.find(other, RUN) is None, "another namespace is not watched"
    cache.watch_closed(CONFIG_MAP, "team")
    assert cache.find(question, RUN) is None


@pytest.mark.parametrize(
    ("listed", "is_kept"),
    [
        ([pod(), pod("b")], True),
        ([pod(), pod("b"), pod("c", run="second"), pod("d", run="")], True),
        ([pod(), pod("b", version=2)], False),
        ([pod(), pod("b", version=0)], False),
        ([pod()], False),
        ([pod(), pod("b"), pod("c")], False),
        ([pod(), pod("b", uid="another")], False),
        ([pod(), pod("b", namespace="other")], False),
    ],
    ids=["the same", "others of other runs", "changed", "older", "gone", "new", "made again", "elsewhere"],
)
def test_after_a_gap_an_answer_is_kept_if_the_new_list_has_the_same_objects(
    cache: ObjectCache, listed: list[Obj], is_kept: bool
) -> None:
    token, name = Question.one(SECRET, "team", "first-token"), Question.one(POD, "team", "a")
    keep(cache, token)
    keep(cache, PODS, pod(), pod("b"))
    keep(cache, name, pod())
    cache.watch_closed(POD)
    assert cache.find(PODS, RUN) is None
    assert cache.has_answer(POD, RUN)
    cache.watch_opened(POD, None, listed)
    assert cache.find(name, RUN) == [pod()]
    assert (cache.find(PODS, RUN) is not None) is is_kept
    assert (cache.find(token, RUN) is not None) is is_kept, "a Secret may be what a changed pod lacks"


def reopened(cache: ObjectCache, *listed: Obj) -> bool:
    """Open the watch of pods again. Returns whether the run needs no look."""
    cache.watch_opened(POD, None, listed)
    return cache.has_answer(POD, RUN)


@pytest.mark.parametrize("seen", [[], [2], [2, 3]])
def test_an_own_write_whose_event_was_missed_may_hide_a_change_by_others(cache: ObjectCache, seen: list[int]) -> None:
    """Version 2 is of others, version 3 of the operator."""
    keep(cache, PODS, pod())
    cache.store_written(POD, pod(version=3), cache.moment())
    for version in seen:
        cache.changed(POD, pod(version=version))
    cache.watch_closed(POD)
    assert reopened(cache, pod(version=3)) is (seen == [2, 3])


def test_an_object_of_an_own_write_is_confirmed_by_its_event(cache: ObjectCache) -> None:
    keep(cache, PODS)
    cache.store_written(POD, pod(), cache.moment())
    assert not reopened(cache, pod())
    keep(cache, PODS)
    cache.store_written(POD, pod(), cache.moment())
    cache.changed(POD, pod())
    assert reopened(cache, pod())


def test_what_a_look_saw_in_the_gap_alone_is_a_change(cache: ObjectCache) -> None:
    keep(cache, PODS)
    cache.watch_closed(POD)
    keep(cache, PODS)
    assert reopened(cache)
    cache.watch_closed(POD)
    keep(cache, PODS, pod())
    assert not reopened(cache)


def test_an_answer_about_an_earlier_run_of_the_name_is_none_about_this_one(cache: ObjectCache) -> None:
    keep(cache, PODS)
    keep(cache, other := Question.of_labels(POD, "team", {"rlrun.dev/run-uid": "new"}), pod())
    assert reopened(cache) is False
    assert cache.find(PODS, RUN) == []
    assert cache.find(other, RUN) is None


def test_a_secret_that_was_read_in_the_gap_of_the_pods_is_read_again(cache: ObjectCache) -> None:
    token = Question.one(SECRET, "team", "first-token")
    cache.watch_closed(POD)
    keep(cache, token)
    with cache.reading(token) as read:
        assert not reopened(cache)
        cache.keep(token, read, [], RUN)
    assert cache.find(token, RUN) is None


def test_an_object_without_a_version_is_a_change(cache: ObjectCache) -> None:
    keep(cache, PODS, pod(resourceVersion="opaque"))
    assert not reopened(cache, pod(resourceVersion="opaque"))


def test_only_objects_that_answers_are_about_are_compared(cache: ObjectCache) -> None:
    assert not cache.has_answer_about(POD, pod())
    keep(cache, PODS)
    assert cache.has_answer_about(POD, pod())
    assert not cache.has_answer_about(POD, pod(run="second"))


def test_the_list_of_a_namespace_says_nothing_about_others(cache: ObjectCache) -> None:
    keep(cache, PODS, pod())
    cache.watch_opened(POD, "other", [])
    assert cache.find(PODS, RUN) == [pod()]
    assert not cache.has_answer(POD, ("team", "second"))
    cache.watch_opened(POD, "team", [])
    assert cache.find(PODS, RUN) is None
    assert not cache.has_answer(POD, RUN)


def test_a_read_that_began_before_the_list_is_not_kept(cache: ObjectCache) -> None:
    with cache.reading(PODS) as read:
        cache.watch_closed(POD)
        cache.watch_opened(POD, None, [])
        cache.keep(PODS, read, [pod()], RUN)
    assert cache.find(PODS, RUN) is None


def test_a_large_answer_is_not_kept(cache: ObjectCache, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(cache, PODS, pod())
    monkeypatch.setattr(object_cache, "LARGEST_ANSWER", 200)
    noise = "".join(map(str, range(1000)))
    keep(cache, PODS, pod(annotations={"note": noise}))
    assert cache.find(PODS, RUN) is None
    assert cache.size() == 0
    assert cache.changed(POD, pod(version=2))
    keep(cache, PODS, pod())
    assert cache.find(PODS, RUN) == [pod()]


def test_an_answer_ends_by_itself(cache: ObjectCache, clock: Clock) -> None:
    keep(cache, PODS, pod())
    clock.now += KEPT_SECONDS - 1
    assert cache.find(PODS, RUN) is not None
    clock.now += 1
    assert cache.find(PODS, RUN) is None


@pytest.mark.parametrize(
    ("event", "deleted", "is_news"),
    [
        (pod(version=2), False, True),
        (pod("b", version=2), False, True),
        (pod(version=1), False, False),
        (pod(version=1), True, True),
        (pod("a", version=9, run="second"), False, True),
        ({**pod(version=9), "metadata": {**pod(version=9)["metadata"], "labels": {}}}, False, True),
    ],
)
def test_an_event_is_news_unless_its_version_is_known(
    cache: ObjectCache, event: Obj, deleted: bool, is_news: bool
) -> None:
    keep(cache, PODS, pod())
    assert cache.changed(POD, event, deleted=deleted) is is_news
    assert (cache.find(PODS, RUN) is None) is is_news


def test_an_object_that_is_forgotten_takes_the_answers_with_it_along(cache: ObjectCache) -> None:
    keep(cache, PODS, pod())
    cache.forget_object(POD, "team", "a")
    assert cache.find(PODS, RUN) is None


def test_an_answer_that_was_read_while_something_changed_is_not_kept(cache: ObjectCache) -> None:
    with cache.reading(PODS) as read:
        cache.changed(POD, pod("b"))
        cache.keep(PODS, read, [pod()], RUN)
    assert cache.find(PODS, RUN) is None
    for spoil in (
        lambda: cache.watch_opened(POD, None, []),
        lambda: cache.watch_opened(POD, "team", []),
        lambda: cache.forget_object(POD, "team", "x"),
        lambda: cache.store_written(POD, pod("b"), cache.moment()),
    ):
        with cache.reading(PODS) as read:
            spoil()
            cache.keep(PODS, read, [pod()], RUN)
        assert cache.find(PODS, RUN) is None
    with cache.reading(PODS) as read:
        cache.watch_opened(POD, "other", [])
        cache.keep(PODS, read, [pod()], RUN)
    assert cache.find(PODS, RUN) is not None


def test_an_own_write_is_in_the_kept_answers_and_its_event_is_no_news(cache: ObjectCache) -> None:
    one = Question.one(POD, "team", "a")
    keep(cache, PODS, pod())
    keep(cache, one, pod())
    cache.store_written(POD, pod(version=5), cache.moment())
    assert cache.find(PODS, RUN) == [pod(version=5)]
    assert cache.find(one, RUN) == [pod(version=5)]
    assert not cache.changed(POD, pod(version=3))
    assert not cache.changed(POD, pod(version=5))
    cache.store_written(POD, pod(version=4), cache.moment())
    assert cache.find(one, RUN) == [pod(version=5)], "an older answer that came later"
    cache.store_written(POD, pod("b", version=6), cache.moment())
    assert cache.find(PODS, RUN) == [pod(version=5), pod("b", version=6)]
    assert not cache.changed(POD, pod("b", version=6))
    assert cache.changed(POD, pod(version=7))


def test_a_new_object_joins_only_answers_from_before_its_write(cache: ObjectCache) -> None:
    began = cache.moment()
    keep(cache, PODS)
    cache.store_written(POD, pod(version=6), began)
    assert cache.find(PODS, RUN) is None, "it may have been deleted before the read"
    keep(cache, PODS)
    cache.store_written(POD, pod(version=7), cache.moment())
    assert cache.find(PODS, RUN) == [pod(version=7)]
    cache.forget_object(POD, "team", "a")
    assert cache.find(PODS, RUN) is None


def test_a_list_of_all_shows_what_events_have_missed(cache: ObjectCache) -> None:
    gone, changed, same = (Question.one(POD, "team", name) for name in "abc")
    for question, name in ((gone, "a"), (changed, "b"), (same, "c")):
        keep(cache, question, pod(name))
    keep(cache, new := Question.one(POD, "team", "d"))
    listed = [pod("b", version=2), pod("c"), pod("d")]
    cache.forget_missing(POD, listed)
    for obj in listed:
        cache.changed(POD, obj)
    assert [cache.find(q, RUN) for q in (gone, changed, same, new)] == [None, None, [pod("c")], None]


def test_an_answer_of_another_run_is_forgotten_for_both(cache: ObjectCache) -> None:
    shared = Question.of_labels(POD, "team", None)
    keep(cache, shared, pod(), run=("team", "second"))
    assert cache.find(shared, RUN) == [pod()]
    cache.forget_run(RUN)
    assert cache.find(shared, ("team", "second")) is None


def test_expired_answers_take_no_memory(cache: ObjectCache, clock: Clock) -> None:
    keep(cache, PODS, pod())
    assert cache.size() > 0
    clock.now += KEPT_SECONDS
    cache.drop_expired()
    assert (cache.size(), len(cache)) == (0, 0)


@pytest.mark.parametrize("answer", [pod(version=5, deletionTimestamp="now"), {**pod(), "metadata": {"name": "a"}}])
def test_an_own_write_after_which_the_object_may_be_gone_is_forgotten(cache: ObjectCache, answer: Obj) -> None:
    keep(cache, PODS, pod())
    answer["metadata"].setdefault("namespace", "team")
    cache.store_written(POD, answer, cache.moment())
    assert cache.find(PODS, RUN) is None


def test_a_change_of_a_pod_forgets_the_secrets_of_its_run(cache: ObjectCache) -> None:
    mine, other = Question.one(SECRET, "team", "first-token"), Question.one(SECRET, "team", "second-token")
    for question, run in ((mine, RUN), (other, ("team", "second"))):
        keep(cache, question, run=run)
    assert cache.changed(POD, pod(version=2))
    assert cache.find(mine, RUN) is None
    assert cache.find(other, RUN) == []


def test_forgetting_a_run_forgets_its_answers_only(cache: ObjectCache) -> None:
    other = Question.of_labels(POD, "team", {"rlrun.dev/run": "second"})
    keep(cache, PODS, pod())
    keep(cache, other, run=("team", "second"))
    cache.forget_run(RUN)
    assert (cache.find(PODS, RUN), cache.find(other, RUN), len(cache)) == (None, [], 1)
    cache.forget_run(RUN)


@pytest.mark.parametrize(("version", "is_news"), [(2, False), (3, True)], ids=["own write", "change by others"])
def test_an_event_that_comes_before_the_answer_to_an_own_write_waits_for_it(
    cache: ObjectCache, version: int, is_news: bool
) -> None:
    keep(cache, PODS, pod())
    told: list[bool] = []
    event = pod(version=version)
    with cache.writing(POD, "team", "a"):
        cache.after_own_write(POD, event, lambda: told.append(cache.changed(POD, event)))
        cache.after_own_write(POD, pod("b"), lambda: told.append(True))
        assert told == [True], "it is about another object"
        cache.store_written(POD, pod(version=2), cache.moment())
        assert len(told) == 1
    assert told == [True, is_news]
    assert cache.find(PODS, RUN) == (None if is_news else [pod(version=2)])
    cache.after_own_write(POD, event, lambda: told.append(True))
    assert len(told) == 3, "no write is under way"


def test_a_change_by_others_between_an_own_write_and_its_answer_is_news(cache: ObjectCache) -> None:
    keep(cache, PODS, pod())
    told: list[bool] = []
    by_others, own = pod(version=2), pod(version=3)
    with cache.writing(POD, "team", "a"):
        for event in (by_others, own):
            cache.after_own_write(POD, event, lambda event=event: told.append(cache.changed(POD, event)))
        cache.store_written(POD, own, cache.moment())
    assert told[0], "the answer to the own write contains the change, but no look has seen it"
    assert cache.find(PODS, RUN) is None


def test_the_event_of_an_earlier_own_write_is_not_news_during_a_later_one(cache: ObjectCache) -> None:
    keep(cache, PODS, pod())
    told: list[bool] = []
    with cache.writing(POD, "team", "a"):
        cache.store_written(POD, pod(version=2), cache.moment())
    with cache.writing(POD, "team", "a"):
        cache.after_own_write(POD, pod(version=2), lambda: told.append(cache.changed(POD, pod(version=2))))
        assert told == [False]
        cache.store_written(POD, pod(version=3), cache.moment())
    assert told == [False]
    assert cache.find(PODS, RUN) == [pod(version=3)]


def test_an_error_in_what_waits_for_a_write_does_not_reach_the_writer(cache: ObjectCache) -> None:
    told: list[str] = []
    with cache.writing(POD, "team", "a"):
        cache.after_own_write(POD, pod(), lambda: told[1])
        cache.after_own_write(POD, pod(), lambda: told.append("second"))
    assert told == ["second"]


# --- any order of events, writes, reads and gaps ----------------------------------------------------------------------

NAMES = ("a", "b")
OPERATION_NAMES = (
    "change, create, own create, delete, write, response, relabel, own delete, deliver, close, open, begin read, "
    "end read"
)
OPERATIONS = st.lists(st.tuples(st.sampled_from(OPERATION_NAMES.split(", ")), st.sampled_from(NAMES)), max_size=40)


class Server:
    """Objects of one kind and run, their events in order, and reads whose answers are on their way."""

    def __init__(self, kind: ResourceKind) -> None:
        self.kind = kind
        self.is_open = True
        self.cache = ObjectCache(lambda: 0.0)
        self.cache.watch_opened(kind, None, ())
        self.versions = itertools.count(1)
        self.objects: dict[str, Obj] = {}
        self.events: list[tuple[Obj, bool]] = []
        self.question = Question.of_labels(kind, "team", LABELS)
        self.reads: list[tuple[Any, PendingRead, list[Obj]]] = []
        self.responses: list[tuple[Obj, int, Any]] = []
        """Responses to own writes, on their way, with the moments before the requests and what these hold back."""

    @property
    def listed(self) -> list[Obj]:
        return [obj for obj in self.objects.values() if obj["metadata"]["labels"] == LABELS]

    def do(self, operation: str, name: str) -> None:
        began = self.cache.moment()
        if operation in ("change", "create", "own create", "write", "relabel"):
            if (name in self.objects) is operation.endswith("create"):
                return
            if operation == "relabel" and self.reads:
                # A read on its way would be kept with the object, until it expires.
                return
            version = next(self.versions)
            uid = f"uid-{version}" if operation.endswith("create") else self.objects[name]["metadata"]["uid"]
            run = "second" if operation == "relabel" else "first"
            self.objects[name] = {**pod(name, version, run, uid=uid), "kind": self.kind.kind}
            self.events.append((self.objects[name], False))
            if operation in ("write", "own create"):
                context = self.cache.writing(self.kind, "team", name)
                context.__enter__()
                self.responses.append((self.objects[name], began, context))
        elif operation == "response" and self.responses:
            obj, before, context = self.responses.pop(0)
            self.cache.store_written(self.kind, obj, before)
            context.__exit__(None, None, None)
        elif operation in ("delete", "own delete") and name in self.objects:
            gone = self.objects.pop(name)
            gone = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(next(self.versions))}}
            self.events.append((gone, True))
            if operation == "own delete":
                self.cache.forget_object(self.kind, "team", name)
        elif operation == "deliver" and self.events and self.is_open:
            obj, deleted = self.events.pop(0)
            self.cache.after_own_write(self.kind, obj, partial(self.cache.changed, self.kind, obj, deleted=deleted))
        elif operation == "close":
            self.is_open = False
            self.cache.watch_closed(self.kind)
        elif operation == "open" and not self.is_open:
            self.is_open = True
            self.events.clear()
            self.cache.watch_opened(self.kind, None, list(self.objects.values()))
        elif operation == "begin read":
            context = self.cache.reading(self.question)
            self.reads.append((context, context.__enter__(), self.listed))
        elif operation == "end read" and self.reads:
            context, read, objects = self.reads.pop(0)
            self.cache.keep(self.question, read, objects, RUN)
            context.__exit__(None, None, None)


def by_name(objects: list[Obj]) -> list[Obj]:
    return sorted(objects, key=lambda obj: str(obj["metadata"]["name"]))


@example([(operation, "a") for operation in ("begin read", "end read", "own create", "delete", "close")])
@settings(max_examples=1000)
@given(OPERATIONS)
def test_after_all_events_a_kept_answer_is_the_servers(operations: list[tuple[str, str]]) -> None:
    server = Server(SERVICE)
    for operation, name in operations:
        server.do(operation, name)
        assert server.is_open or server.cache.find(server.question, RUN) is None
    server.do("open", "a")
    while server.reads or server.events or server.responses:
        server.do("end read", "a")
        server.do("response", "a")
        server.do("deliver", "a")
    found = server.cache.find(server.question, RUN)
    assert found is None or by_name(found) == by_name(server.listed)
