"""Checkpoints that other runs start from.

The catalog of a run's artifacts, built once per reconcile.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.artifact import expiry_text
from rlrun.api.run import RLRunSpec
from rlrun.kube.async_client import PAGE_LIMIT
from rlrun.kube.objects import Obj, artifact_name
from rlrun.kube.requests import KubeRequest
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.controller.observer import Observer
from rlrun_operator.planning.artifact_catalog import (
    ArtifactCatalog,
    ArtifactObjectKind,
    ObservedArtifact,
    expired_steps,
    keep_reference,
    needs_start_checkpoint,
    referenced_steps,
)
from rlrun_operator.planning.artifacts import plan_artifacts
from rlrun_operator.planning.observation import RunObservation

from tests.support.clocks import START
from tests.support.cluster_objects import checkpoint_object, run_object
from tests.support.expectations import present
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World
from tests.support.run_states import run_spec


@pytest.mark.proves("artifactPolicy")
@pytest.mark.parametrize("reference", ["reverse-step-000001-uid-1", "cp_team.reverse-step-000001-uid-1"])
async def test_checkpoint_used_by_another_run_survives_the_deletion_of_its_run(
    make_world: Callable[..., World], reference: str
) -> None:
    world = make_world(artifactPolicy="Delete")
    await world.start()
    for step in (1, 2):
        world.artifacts.folders[f"{ROOT}/checkpoints/step-{step:06d}"] = manifest(step)
    await world.reconcile()
    other = run_object("other", uid="uid-2", checkpointId=reference)
    world.cluster.put(other)
    world.cluster.request_deletion(world.run)
    await world.reconcile(3)
    assert world.cluster.find("RLRun", "reverse") is None
    assert list(world.artifacts.folders) == [f"{ROOT}/checkpoints/step-000001"]
    assert [(o["spec"]["step"], o["status"]["phase"]) for o in world.cluster.all("RLCheckpoint")] == [(1, "Ready")]
    assert world.cluster.all("RLCheckpoint")[0]["metadata"].get("ownerReferences") == []


NAMES = {1: "first", 2: "second"}
SHARED: dict[int, Obj] = {2: {"spec": {"sharedWith": ["guests"]}}}


def other(namespace: str = "team", status: Obj | None = None, deleting: bool = False, **spec: Any) -> Obj:
    found = run_object("other", namespace, "uid-2", **spec)
    if deleting:
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return {**found, "status": status}


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (other(checkpointId="first"), {1}),
        (other(checkpointId="team/second"), {2}),
        (other(checkpointId="third"), set()),
        (other(), set()),
        (other("guests", checkpointId="team/second"), {2}),
        (other("guests", checkpointId="team/first"), set()),
        (other("strangers", checkpointId="team/second"), set()),
        (other("guests", checkpointId="second"), set()),
        (other(checkpointId="first", deleting=True), set()),
    ],
)
def test_a_reference_counts_if_the_run_may_use_the_checkpoint(run: Obj, expected: set[int]) -> None:
    assert referenced_steps("team", NAMES, SHARED, [run]) == expected
    assert referenced_steps("team", NAMES, SHARED, [keep_reference(run)]) == expected


def test_runs_without_a_reference_hide_no_others() -> None:
    runs = [other(), other(checkpointId="third"), other(checkpointId="first"), other(checkpointId="second")]
    assert referenced_steps("team", NAMES, SHARED, runs) == {1, 2}


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (None, True),
        ({"phase": "Suspended"}, True),
        ({"phase": "Running", "lastCheckpoint": "own"}, False),
        ({"phase": "Stopped"}, False),
    ],
)
def test_a_run_needs_its_start_until_it_has_a_checkpoint_or_an_end(status: Obj | None, expected: bool) -> None:
    assert needs_start_checkpoint(other(status=status)) is expected
    assert needs_start_checkpoint(other(status=status, deleting=True)) is False


async def test_references_of_large_runs_are_read_without_the_runs(make_world: Callable[..., World]) -> None:
    """300 runs of 1.3 MB must not be in the operator's memory at once."""
    world = make_world(artifactPolicy="Delete")
    await world.start()
    world.artifacts.folders[f"{ROOT}/checkpoints/step-000001"] = manifest(1)
    await world.reconcile()
    large = {"id": "me/reverse", "args": {"text": "x" * 100_000}}
    other = run_object("other", uid="uid-2", checkpointId="reverse-step-000001-uid-1", env=[large])
    world.cluster.put(other)
    kept = await world.reconciler()._observer._runs_with_checkpoint()
    assert kept
    assert all(len(json.dumps(run)) < 1000 for run in kept)
    assert world.cluster.requests[-1].limit_bytes == PAGE_LIMIT


RUN = run_object(checkpoints={"keepCloud": 1}, adapters={"keepLast": 1})
ROOT = "s3://rlrun/team/uid-1"


def spec_of(run: Obj) -> RLRunSpec:
    return run_spec(**run["spec"])


def folder(step: int, kind: ArtifactObjectKind = "RLCheckpoint") -> ObservedArtifact:
    return ObservedArtifact(kind, step, f"{ROOT}/{kind}/step-{step:06d}", manifest(step))


def artifact(step: int, kind: str = "RLCheckpoint", phase: str = "Ready", **spec: Any) -> Obj:
    name, uri = artifact_name("reverse", "uid-1", step), f"{ROOT}/{kind}/step-{step:06d}"
    found = checkpoint_object(name, step, uri, phase=phase)
    return {**found, "kind": kind, "spec": {**found["spec"], **spec}}


def build(*folders: ObservedArtifact, objects: tuple[Obj, ...] = (), spec: RLRunSpec | None = None) -> ArtifactCatalog:
    return ArtifactCatalog.build(RUN, objects, folders, spec or spec_of(RUN))


def test_as_many_artifacts_as_are_kept_need_no_list_of_all_runs() -> None:
    assert not build(folder(1), folder(2, "RLAdapter")).has_deletions


@pytest.mark.parametrize("kind", ["RLCheckpoint", "RLAdapter"])
def test_an_expired_artifact_or_an_unfinished_deletion_needs_the_list_of_all_runs(kind: ArtifactObjectKind) -> None:
    assert build(folder(1, kind), folder(2, kind)).has_deletions
    assert build(folder(1, kind), objects=(artifact(1, kind, "Deleting"),)).has_deletions


@pytest.mark.parametrize("kind", ["RLCheckpoint", "RLAdapter"])
def test_an_artifact_expires_at_its_time_unless_it_is_the_newest_or_in_use(kind: ArtifactObjectKind) -> None:
    folders = [folder(step, kind) for step in (1, 2, 3, 4)]
    deployed = {"deployed": True} if kind == "RLAdapter" else {}
    objects = [until(1, kind, 0), until(2, kind, 1), until(3, kind, -60, **deployed), until(4, kind, -60)]
    run = {**RUN, "spec": {**RUN["spec"], "checkpoints": {"keepCloud": -1}, "adapters": {"keepLast": -1}}}
    catalog = ArtifactCatalog.build(run, objects, folders, spec_of(run), START)
    found = catalog.checkpoints if kind == "RLCheckpoint" else catalog.adapters
    assert found.surplus_steps == ({1} if deployed else {1, 3})
    assert replace(found, referenced=frozenset({1, 3})).surplus_steps == ({1} - {1, 3})
    assert not ArtifactCatalog.build(run, objects, folders, spec_of(run)).has_deletions
    unreadable = [{**obj, "status": {**obj["status"], "expiresAt": "2026-01-01T00:00:00"}} for obj in objects]
    assert not ArtifactCatalog.build(run, unreadable, folders, spec_of(run), START).has_deletions


@pytest.mark.parametrize("kind", ["RLCheckpoint", "RLAdapter"])
@pytest.mark.parametrize("phase", ["Running", "Suspended", "Stopped"])
def test_a_time_in_the_spec_takes_precedence_and_also_expires_the_newest(kind: ArtifactObjectKind, phase: str) -> None:
    folders = [folder(step, kind) for step in (1, 2, 3, 4)]
    deployed: dict[str, Any] = {"deployed": True} if kind == "RLAdapter" else {}
    objects = [
        until(1, kind, -60, expiresAt=time_after(60)),
        until(2, kind, 60, expiresAt=time_after(0)),
        artifact(3, kind, expiresAt=time_after(-1), **deployed),
        artifact(4, kind, expiresAt=time_after(-1)),
    ]
    spec = {**RUN["spec"], "checkpoints": {"keepCloud": -1}, "adapters": {"keepLast": -1}}
    run = {**RUN, "spec": spec, "status": {"phase": phase}}
    catalog = ArtifactCatalog.build(run, objects, folders, spec_of(run), START)
    found = catalog.checkpoints if kind == "RLCheckpoint" else catalog.adapters
    # A restarted run would continue from its newest checkpoint.
    newest = set() if kind == "RLCheckpoint" and phase != "Stopped" else {4}
    assert found.surplus_steps == {2} | newest | (set() if deployed else {3})
    assert replace(found, referenced=frozenset({2, 4})).surplus_steps == (set() if deployed else {3})
    assert catalog.next_expiry == 60
    damaged = replace(folders[1], manifest=None, problem="a file is missing")
    catalog = ArtifactCatalog.build(run, [artifact(2, kind, "Failed", expiresAt=time_after(-1))], [damaged],
                                    spec_of(run), START)  # fmt: skip
    found = catalog.checkpoints if kind == "RLCheckpoint" else catalog.adapters
    assert found.surplus_steps == {2}


def test_what_expires_counts_as_none_that_is_kept() -> None:
    objects = [artifact(1), artifact(2, expiresAt=time_after(-1))]
    run = {**RUN, "status": {"phase": "Stopped"}}
    catalog = ArtifactCatalog.build(run, objects, [folder(1), folder(2)], spec_of(run), START)
    assert catalog.checkpoints.surplus_steps == {2}


def test_an_expired_artifact_without_files_loses_its_object() -> None:
    objects = [artifact(1, expiresAt=time_after(-1)), artifact(2, expiresAt=time_after(1))]
    catalog = ArtifactCatalog.build(RUN, objects, [], spec_of(RUN), START)
    plan = present(plan_artifacts(RunObservation(RUN, catalog=catalog), spec_of(RUN), START))
    assert [ref.name for ref in plan.deletes] == [artifact_name("reverse", "uid-1", 1)]
    assert [each["status"]["phase"] for each in plan.statuses] == ["Failed"]


def time_after(seconds: int) -> str:
    return expiry_text(START + timedelta(seconds=seconds))


def until(step: int, kind: ArtifactObjectKind, seconds: int, **spec: Any) -> Obj:
    """An artifact that expires so many seconds after START."""
    found = artifact(step, kind, **spec)
    return {**found, "status": {**found["status"], "expiresAt": (START + timedelta(seconds=seconds)).isoformat()}}


def test_an_invalid_spec_expires_nothing() -> None:
    assert not ArtifactCatalog.build(RUN, (), [folder(1), folder(2)], None).has_deletions


def test_a_bucket_that_was_not_listed_has_no_deletions() -> None:
    catalog = ArtifactCatalog.build(RUN, [artifact(1, phase="Deleting")], None, spec_of(RUN))
    assert not catalog.is_listed
    assert not catalog.has_deletions


def test_references_of_other_runs_complete_the_catalog_and_leave_the_first_one_alone() -> None:
    first = build(folder(1), folder(2))
    other = run_object("other", uid="uid-2", checkpointId=artifact_name("reverse", "uid-1", 1))
    complete = first.with_references("team", [other])
    assert (first.checkpoints.surplus_steps, first.has_references) == (frozenset({1}), False)
    assert (complete.checkpoints.surplus_steps, complete.has_references) == (frozenset(), True)


def test_no_artifact_is_planned_for_deletion_before_the_references_are_known() -> None:
    catalog = build(folder(1), folder(2))
    waiting = plan_artifacts(RunObservation(RUN, catalog=catalog), spec_of(RUN), START)
    known = plan_artifacts(RunObservation(RUN, catalog=catalog.with_references("team", [])), spec_of(RUN), START)
    assert [s["status"]["phase"] for s in present(waiting).statuses] == ["Ready", "Ready"]
    assert [s["status"]["phase"] for s in present(known).statuses] == ["Deleting", "Ready"]


def test_deployed_adapters_and_referenced_checkpoints_are_in_use() -> None:
    objects = (artifact(1), artifact(2), artifact(3, "RLAdapter", deployed=True), artifact(4, "RLAdapter"))
    other = run_object("other", uid="uid-2", checkpointId=artifact_name("reverse", "uid-1", 2))
    catalog = build(objects=objects).with_references("team", [other])
    assert [(o["kind"], o["spec"]["step"]) for o in catalog.objects_in_use] == [("RLAdapter", 3), ("RLCheckpoint", 2)]


@pytest.mark.parametrize(("complete", "expected"), [((), set()), ((3,), {1})])
def test_an_incomplete_artifact_goes_once_as_many_newer_ones_are_complete_as_are_kept(
    complete: tuple[int, ...], expected: set[int]
) -> None:
    broken = [ObservedArtifact("RLCheckpoint", step, f"{ROOT}/{step}", problem="a file is missing") for step in (1, 4)]
    assert build(*broken, *map(folder, complete)).checkpoints.surplus_steps == expected


def test_remains_of_an_unfinished_deletion_go_and_files_that_are_gone_need_nothing() -> None:
    torn = ObservedArtifact("RLCheckpoint", 1, f"{ROOT}/1", problem="a file is missing")
    deleting = (artifact(1, phase="Deleting"), artifact(2, phase="Deleting"))
    assert build(torn, objects=deleting).checkpoints.surplus_steps == {1}


async def test_one_reconcile_builds_one_catalog_and_lists_all_runs_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.start()
    world.change_spec(checkpoints={"keepCloud": 1})
    for step in (1, 2):
        world.artifacts.folders[f"{ROOT}/checkpoints/step-{step:06d}"] = manifest(step)
    built: list[ArtifactCatalog] = []
    build_catalog = ArtifactCatalog.build.__func__  # type: ignore[attr-defined]

    def count(cls: type[ArtifactCatalog], *args: Any) -> ArtifactCatalog:
        built.append(build_catalog(cls, *args))
        return built[-1]

    monkeypatch.setattr(ArtifactCatalog, "build", classmethod(count))
    listed: list[str] = []
    usual = world.cluster.list

    async def listing(request: KubeRequest) -> Obj:
        listed.append(request.kind.kind)
        return await usual(request)

    monkeypatch.setattr(world.cluster, "list", listing)
    await world.reconcile()
    assert len(built) == 1
    assert listed.count("RLRun") == 1
    observation = await Observer(RunObjects(world.cluster), world.artifacts, world.poller, world.settings).observe(
        "team", "reverse"
    )
    assert observation
    assert observation.catalog.has_references


@pytest.mark.proves("checkpoints.keepCloud", "adapters.keepLast")
@pytest.mark.parametrize(
    ("ready", "keep", "protected", "claimed", "expected"),
    [
        ([], 3, [], [], []),
        ([1, 2, 3], 3, [], [], []),
        ([4, 1, 3, 2], 2, [], [], [1, 2]),
        ([1, 2, 3], 1, [], [], [1, 2]),
        ([1, 2, 3], -1, [], [], []),
        ([1, 2, 3, 4], 1, [2], [], [1, 3]),
        ([1, 2, 3], 1, [3], [], [1]),
        ([1, 2], 1, [1, 2], [], []),
        # Steps that others start from are kept in addition to the newest.
        ([1, 2, 3], 1, [], [1], [2]),
        ([1, 2, 3], 2, [], [3], [1]),
        ([1, 2, 3], 1, [], [1, 2, 3], []),
    ],
)
def test_retention(ready: list[int], keep: int, protected: list[int], claimed: list[int], expected: list[int]) -> None:
    assert expired_steps(ready, keep, protected, claimed) == expected
