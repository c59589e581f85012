"""Checkpoints that other runs start from."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from rlrun.kube.async_client import PAGE_LIMIT
from rlrun.kube.objects import Obj
from rlrun_operator.planning.plan.checkpoint_references import keep_reference, needs_start_checkpoint, referenced_steps

from tests.support.cluster_objects import run_object
from tests.support.fake_artifacts import manifest
from tests.support.operator_world import World

ROOT = "s3://rlrun/team/uid-1"


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
