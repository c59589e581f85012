"""What the index of runs says after the events of watches."""

import pytest
from rlrun.kube.kinds import POD, SERVICE
from rlrun.kube.objects import Obj
from rlrun_operator.cache.run_index import RunIndex

RUN = ("team", "first")


def pod(name: str = "a", run: str = "first", namespace: str = "team", run_uid: str = "uid-1", **metadata: str) -> Obj:
    labels = {"rlrun.dev/run": run, "rlrun.dev/run-uid": run_uid} if run else {}
    return {"metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}", "labels": labels, **metadata}}


@pytest.fixture
def index() -> RunIndex:
    found = RunIndex()
    found.watch_opened(POD, None, [pod(), pod("pool", run="")])
    return found


def test_a_run_without_objects_is_known_only_while_the_kind_is_watched(index: RunIndex) -> None:
    assert not index.has_none(POD, RUN)
    assert index.has_none(POD, ("team", "second"))
    assert index.has_none(POD, ("another", "first"))
    assert not index.has_none(SERVICE, RUN), "the kind is not watched"
    index.watch_closed(POD, None)
    assert not index.has_none(POD, ("team", "second"))


def test_objects_come_and_go_and_repeated_events_change_nothing(index: RunIndex) -> None:
    for _ in range(2):
        index.see(POD, None, pod("b"))
    index.see(POD, None, pod(), deleted=True)
    assert not index.has_none(POD, RUN)
    for _ in range(2):
        index.see(POD, None, pod("b"), deleted=True)
    assert index.has_none(POD, RUN)
    index.see(POD, None, pod("b"))
    assert not index.has_none(POD, RUN)


def test_an_object_that_changes_its_label_changes_its_run(index: RunIndex) -> None:
    index.see(POD, None, pod(run="second"))
    assert index.has_none(POD, RUN)
    assert not index.has_none(POD, ("team", "second"))


def test_a_watch_that_opens_again_begins_anew(index: RunIndex) -> None:
    index.watch_opened(POD, None, [pod(run="second")])
    assert index.has_none(POD, RUN)
    assert not index.has_none(POD, ("team", "second"))


def test_watches_of_single_namespaces_say_nothing_about_others() -> None:
    index = RunIndex()
    index.watch_opened(POD, "team", [pod()])
    index.watch_opened(POD, "another", [])
    assert not index.has_none(POD, RUN)
    assert index.has_none(POD, ("another", "first"))
    assert not index.has_none(POD, ("third", "first"))
    index.watch_closed(POD, "another")
    assert not index.has_none(POD, RUN)
    assert index.has_none(POD, ("team", "second"))


def test_objects_of_an_earlier_run_and_those_that_are_deleted_are_told_apart(index: RunIndex) -> None:
    assert index.has_only(POD, RUN, "uid-1")
    assert not index.has_only(POD, RUN, "uid-2"), "it is another run's"
    assert index.has_only(POD, ("team", "second"), "uid-2"), "it has none"
    assert not index.has_only(SERVICE, RUN, "uid-1"), "the kind is not watched"
    for leaving in (pod(deletionTimestamp="2026-01-01T00:00:00Z"), pod("b", run_uid="uid-0"), pod("c", run_uid="")):
        index.see(POD, None, leaving)
        assert not index.has_only(POD, RUN, "uid-1")
        assert not index.has_none(POD, RUN)
        index.see(POD, None, leaving, deleted=True)
        assert index.has_only(POD, RUN, "uid-1")
