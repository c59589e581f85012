"""When a run is looked at again if nothing happens."""

import random
import uuid
from typing import Any

import pytest
from rlrun.api.run_status import Progress, RLRunStatus
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_operator.planning.plan.actions import ConditionChange
from rlrun_operator.planning.plan.artifact_catalog import ArtifactCatalog, ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.plan.observation import RunObservation
from rlrun_operator.planning.policies.running.quiet_runs import QUIET_SECONDS, seconds_to_next_reconcile, spread

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.fake_poller import training
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import at, run_spec, started

SOON = SETTINGS.poll_seconds
QUIET = QUIET_SECONDS * spread(run_object()["metadata"]["uid"])
RUNNING = ConditionChange("Running", True, "Running")
NO_ANSWER = Problem(reason="Unreachable", message="no answer")
STARTING = (ConditionChange("Running", False, "Starting"),)


def folder(kind: ArtifactObjectKind, step: int, *, complete: bool = True) -> ObservedArtifact:
    of_kind = ArtifactKind.checkpoint if kind == "RLCheckpoint" else ArtifactKind.adapter
    manifest = Manifest(kind=of_kind, files=[], created_at=START) if complete else None
    return ObservedArtifact(kind, step, f"s3://rlrun/x/{step}", manifest)


def next_look(
    *folders: ObservedArtifact,
    step: int = 7,
    after: float = 100,
    conditions: tuple[ConditionChange, ...] = (RUNNING,),
    spec: dict[str, Any] | None = None,
    **observed: Any,
) -> float:
    status: RLRunStatus = started(*conditions, when=10)
    status.progress = Progress(step=step, max_steps=100, last_step_time=at(90))
    found_spec = run_spec(maxSteps=100, **(spec or {}))
    run = run_object()
    catalog = ArtifactCatalog.build(run, (), folders, found_spec)
    observation = RunObservation(run=run, catalog=catalog, **{"is_watched": True, **observed})
    return seconds_to_next_reconcile(observation, status, found_spec, SETTINGS, at(after))


def test_a_run_that_is_watched_and_trains_is_left_alone() -> None:
    assert next_look() == QUIET


def test_runs_that_began_together_are_not_looked_at_together() -> None:
    source = random.Random(1)
    found = sorted(spread(str(uuid.UUID(int=source.getrandbits(128), version=4))) for _ in range(1000))
    assert found[0] >= 0.75
    assert found[-1] < 1.25
    for limit in (0.85, 0.95, 1.05, 1.15):
        share = sum(factor < limit for factor in found) / len(found)
        assert share == pytest.approx((limit - 0.75) / 0.5, abs=0.05)


@pytest.mark.parametrize(
    "changes",
    [
        {"is_watched": False},
        {"conditions": STARTING, "poll_error": NO_ANSWER, "is_watched": False},
        {"conditions": STARTING, "poll": RunStatus(phase=RunPhase.starting, max_steps=100)},
        {"conditions": STARTING, "artifacts_problem": Problem(reason="S3Unreachable", message="no answer")},
        {"conditions": STARTING, "after": 15},
        {"conditions": (RUNNING, ConditionChange("TrainerReady", False, "ContainerCrashed", "exit code 1"))},
        {"artifacts_problem": Problem(reason="S3Unreachable", message="no answer")},
    ],
    ids=[
        "polled",
        "without a report",
        "with a report",
        "starting without S3",
        "starting since a moment",
        "with a problem",
        "without S3",
    ],
)
def test_another_run_is_looked_at_soon(changes: dict[str, Any]) -> None:
    assert next_look(**changes) == SOON


@pytest.mark.parametrize("poll_error", [None, NO_ANSWER])
@pytest.mark.parametrize(("after", "expected"), [(30, 3), (100, 10), (1000, 20), (3598, 2), (3605, SOON)])
def test_a_run_whose_pods_do_not_start_is_looked_at_less_often_the_longer_it_waits(
    after: float, expected: float, poll_error: Problem | None
) -> None:
    spec = {"startDeadlineSeconds": 3600}
    assert next_look(conditions=STARTING, after=after, spec=spec, poll_error=poll_error) == expected


def test_a_run_whose_orchestrator_does_not_answer_is_left_alone() -> None:
    shown = ConditionChange("OrchestratorReady", False, "OrchestratorUnreachable", "no status")
    assert next_look(poll_error=NO_ANSWER) == QUIET
    assert next_look(poll_error=NO_ANSWER, conditions=(RUNNING, shown)) == QUIET
    of_environment = ConditionChange("EnvironmentsReady", False, "OrchestratorUnreachable", "no package")
    assert next_look(conditions=(RUNNING, of_environment)) == SOON
    broken = ConditionChange("TrainerReady", False, "ContainerCrashed", "exit code 1")
    assert next_look(poll_error=NO_ANSWER, conditions=(RUNNING, broken)) == SOON


@pytest.mark.parametrize(
    ("limits", "after", "expected"),
    [
        ({"activeDeadlineSeconds": 130}, 100, 30),
        ({"stallDeadlineSeconds": 60}, 100, 50),
        ({"activeDeadlineSeconds": 101}, 100, SOON),
        ({"activeDeadlineSeconds": 1000}, 100, QUIET),
    ],
)
def test_a_deadline_is_not_missed(limits: dict[str, Any], after: float, expected: float) -> None:
    assert next_look(after=after, spec=limits) == expected


CHECKPOINTS = {"checkpoints": {"interval": 5}}
ADAPTERS = {"adapters": {"interval": 5}}


@pytest.mark.parametrize(
    ("spec", "folders", "step", "after", "expected"),
    [
        (CHECKPOINTS, (), 4, 100, QUIET),
        (CHECKPOINTS, (), 5, 100, SOON),
        (CHECKPOINTS, (folder("RLCheckpoint", 5, complete=False),), 7, 100, SOON),
        (CHECKPOINTS, (folder("RLCheckpoint", 5),), 7, 100, QUIET),
        (CHECKPOINTS, (folder("RLCheckpoint", 5),), 11, 100, SOON),
        (CHECKPOINTS, (folder("RLAdapter", 5),), 7, 100, SOON),
        (CHECKPOINTS, (), 7, 90 + 301, QUIET),
        (ADAPTERS, (), 5, 100, SOON),
        (ADAPTERS, (folder("RLAdapter", 5),), 5, 100, QUIET),
        ({}, (), 50, 100, SOON),
        ({}, (folder("RLCheckpoint", 50),), 50, 100, QUIET),
    ],
)
def test_an_upload_that_is_due_is_looked_for(
    spec: dict[str, Any], folders: tuple[ObservedArtifact, ...], step: int, after: float, expected: float
) -> None:
    assert next_look(*folders, step=step, after=after, spec=spec) == expected


async def test_a_quiet_run_is_looked_at_once_a_minute_and_each_change_counts(world: World) -> None:
    await world.start()
    world.poller.watches = True
    await world.hear(training())
    assert await world.reconcile() == QUIET
    writes = world.cluster.writes
    assert await world.reconcile() == QUIET
    assert world.cluster.writes == writes
    assert await world.hear(None) == QUIET
    world.poller.watches = False
    assert await world.reconcile() == SOON
