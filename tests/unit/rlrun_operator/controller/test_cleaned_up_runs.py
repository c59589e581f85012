"""Finished runs in which nothing is left to clean up, as far as the watches tell."""

from datetime import timedelta

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.kinds import CONFIG_MAP, JOB, POD, SERVICE, ResourceKind
from rlrun.kube.objects import Obj
from rlrun_operator.cache.child_kinds import PODS_AND_CHILDREN
from rlrun_operator.cache.run_index import RunIndex
from rlrun_operator.controller.cleaned_up_runs import is_cleaned_up

from tests.support.clocks import START
from tests.support.cluster_objects import run_object


def run(before: timedelta = timedelta(days=1)) -> Obj:
    status = RLRunStatus(phase=Phase.completed, completion_time=START - before)
    return {**run_object("first", uid="uid-1"), "status": status.to_json_dict()}


def child(run_uid: str = "uid-1") -> Obj:
    labels = {"rlrun.dev/run": "first", "rlrun.dev/run-uid": run_uid}
    return {"metadata": {"name": "first-orchestrator", "namespace": "team", "uid": "uid-of-child", "labels": labels}}


def index(**of_kind: Obj) -> RunIndex:
    found = RunIndex()
    for kind in PODS_AND_CHILDREN:
        found.watch_opened(kind, None, [of_kind[kind.kind]] if kind.kind in of_kind else [])
    return found


def test_the_orchestrators_job_and_its_pod_are_kept() -> None:
    assert is_cleaned_up(index(Job=child(), Pod=child()), run(), START)
    assert is_cleaned_up(index(), run(), START)


@pytest.mark.parametrize("kind", [kind for kind in PODS_AND_CHILDREN if kind not in (JOB, POD)], ids=lambda k: k.kind)
def test_any_other_object_is_left_to_clean_up(kind: ResourceKind) -> None:
    assert not is_cleaned_up(index(**{kind.kind: child()}), run(), START)


@pytest.mark.parametrize("kind", [JOB, POD], ids=lambda k: k.kind)
def test_objects_of_an_earlier_run_of_the_name_are_left_to_clean_up(kind: ResourceKind) -> None:
    assert not is_cleaned_up(index(**{kind.kind: child("uid-0")}), run(), START)


@pytest.mark.parametrize("kind", [POD, SERVICE, CONFIG_MAP], ids=lambda k: k.kind)
def test_nothing_is_known_while_a_kind_is_not_watched(kind: ResourceKind) -> None:
    found = index()
    found.watch_closed(kind, None)
    assert not is_cleaned_up(found, run(), START)


def test_a_run_that_ended_lately_or_has_a_place_is_looked_at() -> None:
    assert not is_cleaned_up(index(), run(timedelta(minutes=5)), START)
    waiting = run()
    waiting["status"]["queue"] = {"position": 1}
    assert not is_cleaned_up(index(), waiting, START)
