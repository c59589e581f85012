"""The fault tests can fail: a lost artifact, a hang and an exception each become what they are."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from rlrun.constants import FINALIZER
from rlrun.storage.manifest import FileEntry

from tests.chaos import invariants
from tests.chaos.invariants import Expected, Obj, Picture, Stored
from tests.chaos.report import Report, read, table
from tests.chaos.runner import run_one
from tests.chaos.scenario import Origin, Outcome, Result, Scenario, require, require_strike
from tests.support.fake_artifacts import manifest

FOLDER = "team/uid-1/checkpoints/step-000002"


def played(play: object, seconds: float = 5.0) -> Result:
    return run_one(Scenario("story", "unit", play, seconds=seconds))  # type: ignore[arg-type]


def test_outcomes() -> None:
    def lose(_: object) -> None:
        require(["one", "two"])

    async def fail(_: object) -> None:
        raise ValueError("nobody expected this")

    def miss(_: object) -> None:
        require_strike(False, "the trainer dies")

    assert played(lambda _: None).outcome is Outcome.survived
    assert (played(lose).outcome, played(lose).detail) == (Outcome.lost, "one; two")
    assert played(miss).outcome is Outcome.not_struck
    assert "the trainer dies" in played(miss).detail
    assert played(fail).outcome is Outcome.broken
    assert "nobody expected this" in played(fail).detail


def test_a_waiting_scenario_and_a_busy_loop_are_reported_as_hung() -> None:
    async def wait(_: object) -> None:
        await asyncio.Event().wait()

    def turn(_: object) -> None:
        while True:
            try:
                time.sleep(0)
            except Exception:
                continue

    assert played(wait, 0.2).outcome is Outcome.hung
    assert played(turn, 0.2).outcome is Outcome.hung


def test_results_are_on_disk_after_each_scenario(tmp_path: Path) -> None:
    before = Report(tmp_path / "chaos.json", origin=Origin("c0", "yesterday", "2 cores", 0))
    before.add(Result("a/1", "unit", 3, Outcome.survived))
    before.add(Result("a/2", "unit", 4, Outcome.lost, "a checkpoint", 1.5))
    report = Report(tmp_path / "chaos.json", read(tmp_path / "chaos.json"), Origin("c1", "today", "2 cores", 7))
    report.add(Result("a/1", "unit", 3, Outcome.hung, "again"))
    entries = json.loads((tmp_path / "chaos.json").read_text())["scenarios"]
    assert [(e["name"], e["outcome"]) for e in entries] == [("a/2", "lost"), ("a/1", "hung")]
    assert read(tmp_path / "chaos.json") == report.results
    assert [r.origin.commit for r in read(tmp_path / "chaos.json") if r.origin] == ["c0", "c1"]
    assert "lost: unit a/2 (seed 4): a checkpoint" in table(report.results)


def checkpoint(**status: str) -> Obj:
    return {
        "kind": "RLCheckpoint",
        "metadata": {"name": "c", "labels": {"rlrun.dev/run-uid": "uid-1"}},
        "spec": {"uri": f"s3://rlrun/{FOLDER}", "step": 2, "runUid": "uid-1"},
        "status": {"phase": "Ready", **status},
    }


def test_a_ready_checkpoint_needs_every_file_as_its_manifest_has_it() -> None:
    promised = manifest(2).model_copy(update={"files": [FileEntry(name="a", size=1, sha256="x")]})
    for files, whole in (
        ({f"{FOLDER}/a": Stored(1, "x")}, True),
        ({f"{FOLDER}/a": Stored(2, "x")}, False),
        ({f"{FOLDER}/a": Stored(1, "y")}, False),
        ({}, False),
    ):
        seen = Picture([checkpoint()], files, {FOLDER: promised})
        assert (invariants.partly_ready(seen) == []) is whole
    assert invariants.partly_ready(Picture([checkpoint()]))
    assert not invariants.partly_ready(Picture([checkpoint(phase="Deleting")]))


def test_objects_and_files_without_a_run_are_found() -> None:
    service = {"kind": "Service", "metadata": {"name": "s", "labels": {"rlrun.dev/run-uid": "uid-1"}}}
    run = {"kind": "RLRun", "metadata": {"name": "r", "uid": "uid-1"}, "status": {"phase": "Completed"}}
    deployment = {"kind": "Deployment", "metadata": {"name": "d", "labels": {"rlrun.dev/run-uid": "uid-1"}}}
    assert invariants.orphans(Picture([service]))
    unfinished = {**run, "status": {"phase": "Running"}}
    assert not invariants.orphans(Picture([service, unfinished]))
    assert invariants.orphans(Picture([service, run]))
    for phase, may_run in (("Running", True), ("Succeeded", False)):
        pod = labelled("Pod", "p") | {"status": {"phase": phase}}
        pod["metadata"]["deletionTimestamp"] = "now"
        assert (invariants.orphans(Picture([service, pod, run])) == []) is may_run
    assert invariants.orphans(Picture([deployment, run]))
    assert invariants.orphans(Picture([checkpoint()]))
    assert invariants.uncatalogued(Picture([], {f"{FOLDER}/a": Stored(1, "x")}), "team/uid-1")
    assert invariants.left_after_deletion(Picture([], {f"{FOLDER}/a": Stored(1, "x")}), "team/uid-1")


def artifacts(kind: str, *steps: int, deployed: tuple[int, ...] = (), whole: bool = True) -> Picture:
    folders = {step: f"team/uid-1/{invariants.FOLDERS[kind]}/step-{step:06d}" for step in steps}
    objects = [
        {
            "kind": kind,
            "metadata": {"name": f"c{step}"},
            "spec": {"uri": f"s3://rlrun/{folder}", "step": step, "deployed": step in deployed},
            "status": {"phase": "Ready"},
        }
        for step, folder in folders.items()
    ]
    return Picture(objects, {}, {f: manifest(s) for s, f in folders.items()} if whole else {})


def kept_of(made: set[int], keep: int, seen: Picture, kind: str = "RLCheckpoint", **more: set[int]) -> list[str]:
    return invariants.retention(seen, "team/uid-1", kind, keep, made, **more)


def test_exactly_the_newest_artifacts_are_kept() -> None:
    made = {2, 4, 6}
    assert kept_of(made, 2, artifacts("RLCheckpoint", 4, 6)) == []
    assert kept_of(made, -1, artifacts("RLCheckpoint", 2, 4, 6)) == []
    assert kept_of(made, 2, artifacts("RLCheckpoint", 2, 4, 6), needed={2}) == []
    for keep, there, says in (
        (2, (6,), "step 4 is lost"),
        (2, (2, 6), "step 4 is lost"),
        (2, (2, 4, 6), "step 2 is kept, though not among the newest 2"),
        (1, (2,), "step 6 is lost"),
        (-1, (4, 6), "step 2 is lost"),
    ):
        assert says in "; ".join(kept_of(made, keep, artifacts("RLCheckpoint", *there))), (keep, there)
    assert "lost its files" in "; ".join(kept_of({2}, 1, artifacts("RLCheckpoint", 2, whole=False)))


def test_a_deployed_adapter_is_kept_in_addition_to_the_newest() -> None:
    kind = "RLAdapter"
    assert kept_of({3, 6}, 1, artifacts(kind, 3, 6, deployed=(3,)), kind) == []
    assert kept_of({3, 6}, 1, artifacts(kind, 6, deployed=(6,)), kind)
    assert kept_of({3, 6}, 1, artifacts(kind, 6, deployed=(6,)), kind, expired={3}) == []


def test_an_artifact_expires_only_with_enough_newer_ones_that_stay() -> None:
    folder = "team/uid-1/adapters/step-000002"
    assert invariants.expired_early(artifacts("RLAdapter", 2, 4, 6), folder, 2) == []
    assert invariants.expired_early(artifacts("RLAdapter", 2, 4, 6), folder, 3)
    assert invariants.expired_early(artifacts("RLAdapter", 2, 4, 6), folder, -1)
    assert invariants.expired_early(artifacts("RLAdapter", 2, 4, 6, deployed=(4,)), folder, 2)
    assert invariants.expired_early(artifacts("RLAdapter", 2, 4, 6, deployed=(2,)), folder, 2)


def test_counters_are_exact_unless_a_range_is_expected() -> None:
    status = {"restarts": 2, "runRestarts": 1, "attempt": 3, "phase": "Failed"}
    run = {"metadata": {"uid": "uid-1"}, "spec": {}, "status": status}
    seen = Picture([])
    assert invariants.counters(run, seen, Expected(restarts=2, run_restarts=1, attempts=3)) == []
    assert invariants.counters(run, seen, Expected(restarts=(0, 2), attempts=(1, 3))) == []
    for wrong in (Expected(restarts=1), Expected(restarts=3), Expected(run_restarts=0), Expected(attempts=(1, 2))):
        assert invariants.counters(run, seen, wrong), wrong


def test_active_seconds_beyond_the_duration_of_the_run_are_found() -> None:
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:01:00Z"}
    run: Obj = {"metadata": {"uid": "uid-1"}, "spec": {}, "status": {**times, "pastActiveSeconds": 60}}
    assert invariants.counters(run, Picture([]), Expected()) == []
    run["status"]["pastActiveSeconds"] = 61
    assert invariants.counters(run, Picture([]), Expected())
    assert invariants.counters(run, Picture([]), Expected(steady_clock=False)) == []


def test_a_status_that_regresses_is_found() -> None:
    done = {"phase": "Completed", "restarts": 2, "attempt": 3, "completionTime": "2026-01-01T00:01:00Z"}
    assert invariants.regressed(done, done) == []
    assert invariants.regressed({"phase": "Running"}, {"phase": "Pending"}) == []
    for change in (
        {"phase": "Running"},
        {"restarts": 1},
        {"attempt": None},
        {"completionTime": "2026-01-02T00:00:00Z"},
    ):
        assert invariants.regressed(done, {**done, **change}), change


def labelled(kind: str, name: str, *, attempt: str = "1", status: Obj | None = None) -> Obj:
    labels = {"rlrun.dev/run-uid": "uid-1", "rlrun.dev/component": "trainer", "rlrun.dev/attempt": attempt}
    return {"kind": kind, "metadata": {"name": name, "labels": labels}, "status": status or {}}


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_run_needs_its_finalizer_before_its_children(policy: str) -> None:
    metadata: Obj = {"name": "r", "uid": "uid-1"}
    run: Obj = {"kind": "RLRun", "metadata": metadata, "spec": {"artifactPolicy": policy}}
    child = labelled("ConfigMap", "c")
    assert not invariants.unprotected(Picture([run]))
    assert invariants.unprotected(Picture([run, child]))
    metadata["finalizers"] = [FINALIZER]
    assert not invariants.unprotected(Picture([run, child]))


def test_pods_of_one_component_or_of_two_attempts_do_not_run_side_by_side() -> None:
    running: Obj = {"phase": "Running"}
    one, two = labelled("Pod", "a", status=running), labelled("Pod", "b", status=running)
    assert invariants.doubled(Picture([one])) == []
    assert invariants.doubled(Picture([one, two]))
    next_attempt = labelled("Pod", "b", status=running, attempt="2")
    leaving = {**one, "metadata": {**one["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert invariants.doubled(Picture([leaving, two])) == []
    assert invariants.overlapping(Picture([one, two])) == []
    assert invariants.overlapping(Picture([leaving, next_attempt]))
    assert invariants.overlapping(Picture([{**one, "status": {"phase": "Failed"}}, next_attempt])) == []


def test_no_workload_starts_for_a_run_that_ended() -> None:
    run: Obj = {"kind": "RLRun", "metadata": {"name": "r", "uid": "uid-1"}, "spec": {}, "status": {"phase": "Running"}}
    job = labelled("Job", "j")
    assert invariants.started_late(job, [run]) == []
    assert invariants.started_late(job, [])
    assert invariants.started_late(job, [{**run, "status": {"phase": "Failed"}}])
    assert invariants.started_late(job, [{**run, "spec": {"suspend": True}}])
    assert invariants.started_late(job, [{**run, "metadata": {**run["metadata"], "deletionTimestamp": "now"}}])
    assert invariants.started_late(labelled("ConfigMap", "c"), []) == []


def test_a_protected_adapter_outlives_its_run_with_object_and_files() -> None:
    folder = "team/uid-1/adapters/step-000003"
    files = {f"{folder}/a": Stored(1, "x")}
    ready = artifacts("RLAdapter", 3, deployed=(3,)).objects
    assert invariants.left_after_deletion(Picture(ready, files), "team/uid-1", [folder]) == []
    assert invariants.left_after_deletion(Picture([], files), "team/uid-1", [folder])
    assert invariants.left_after_deletion(Picture(ready), "team/uid-1", [folder])
    assert invariants.left_after_deletion(Picture(ready), "team/uid-1")


def test_steps_are_reported_once_in_order_except_for_one_declared_gap() -> None:
    told = invariants.steps_told
    assert told([1, 2, 3, 4], 4) == []
    for wrong in ([1, 2, 4], [1, 2, 3], [1, 2, 2, 3, 4], [2, 1, 3, 4], [1, 2, 3, 4, 5], []):
        assert told(wrong, 4), wrong
    assert told([1, 2, 5], 5, gap_after=1) == []
    assert told([1, 2, 3, 4, 5], 5, gap_after=1) == []
    for wrong in ([1, 5], [1, 2, 4, 6], [1, 2, 3, 4], [1, 2, 2, 5]):
        assert told(wrong, 6 if 6 in wrong else 5, gap_after=2), wrong
