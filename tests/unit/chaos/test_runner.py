"""The fault tests can fail: a lost artifact, a hang and an exception each become what they are."""

import asyncio
import json
import time
from pathlib import Path

from rlrun.storage.manifest import FileEntry

from tests.chaos import invariants
from tests.chaos.document import document
from tests.chaos.invariants import Picture, Stored
from tests.chaos.report import Report, read, table
from tests.chaos.runner import run_one
from tests.chaos.scenario import Outcome, Result, Scenario, require
from tests.support.fake_artifacts import manifest

FOLDER = "team/uid-1/checkpoints/step-000002"


def played(play: object, seconds: float = 5.0) -> Result:
    return run_one(Scenario("story", "unit", play, seconds=seconds))  # type: ignore[arg-type]


def test_outcomes() -> None:
    def lose(_: object) -> None:
        require(["one", "two"])

    async def fail(_: object) -> None:
        raise ValueError("nobody expected this")

    assert played(lambda _: None).outcome is Outcome.survived
    assert (played(lose).outcome, played(lose).detail) == (Outcome.lost, "one; two")
    assert played(fail).outcome is Outcome.broken
    assert "nobody expected this" in played(fail).detail


def test_a_hang_is_an_outcome_whether_it_waits_or_turns_in_a_circle() -> None:
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
    report = Report(tmp_path / "chaos.json")
    report.add(Result("a/1", "unit", 3, Outcome.survived))
    report.add(Result("a/2", "unit", 4, Outcome.lost, "a checkpoint", 1.5))
    report.add(Result("a/1", "unit", 3, Outcome.hung, "again"))
    entries = json.loads((tmp_path / "chaos.json").read_text())["scenarios"]
    assert [(e["name"], e["outcome"]) for e in entries] == [("a/2", "lost"), ("a/1", "hung")]
    assert read(tmp_path / "chaos.json") == report.results
    assert "lost: unit a/2 (seed 4): a checkpoint" in table(report.results)
    text = document(report.results)
    assert "| unit | a | 2 | 0 |" in text
    assert "- lost: unit a/2 (seed 4)" in text


def checkpoint(**status: str) -> dict[str, object]:
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


def test_what_belongs_to_nothing_is_found() -> None:
    service = {"kind": "Service", "metadata": {"name": "s", "labels": {"rlrun.dev/run-uid": "uid-1"}}}
    run = {"kind": "RLRun", "metadata": {"name": "r", "uid": "uid-1"}, "status": {"phase": "Completed"}}
    deployment = {"kind": "Deployment", "metadata": {"name": "d", "labels": {"rlrun.dev/run-uid": "uid-1"}}}
    assert invariants.orphans(Picture([service]))
    assert not invariants.orphans(Picture([service, run]))
    assert invariants.orphans(Picture([deployment, run]))
    assert invariants.orphans(Picture([checkpoint()]))
    assert invariants.uncatalogued(Picture([], {f"{FOLDER}/a": Stored(1, "x")}), "team/uid-1")
    assert invariants.left_after_deletion(Picture([], {f"{FOLDER}/a": Stored(1, "x")}), "team/uid-1")


def test_steps_are_told_once_each_but_for_one_gap_that_is_known() -> None:
    told = invariants.steps_told
    assert told([1, 2, 3, 4], 4) == []
    for wrong in ([1, 2, 4], [1, 2, 3], [1, 2, 2, 3, 4], [2, 1, 3, 4], [1, 2, 3, 4, 5], []):
        assert told(wrong, 4), wrong
    assert told([1, 2, 5], 5, gap_after=1) == []
    assert told([1, 2, 3, 4, 5], 5, gap_after=1) == []
    for wrong in ([1, 5], [1, 2, 4, 6], [1, 2, 3, 4], [1, 2, 2, 5]):
        assert told(wrong, 6 if 6 in wrong else 5, gap_after=2), wrong
