"""After which steps a run has another checkpoint or adapter to look for."""

from typing import Any

import pytest
from rlrun.protocol.resolved import ResolvedRun
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_operator.planning.plan.artifact_catalog import ArtifactCatalog, ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.policies.artifacts.upload_schedule import UploadSchedule

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.operator_world import SETTINGS, World
from tests.support.run_states import run_spec

NO_ADAPTERS: dict[str, Any] = {"checkpoints": {"interval": 5}, "adapters": {"interval": 0}}


def catalog(**steps: list[int]) -> ArtifactCatalog:
    kinds: dict[str, ArtifactObjectKind] = {"checkpoints": "RLCheckpoint", "adapters": "RLAdapter"}
    manifest = Manifest(kind=ArtifactKind.checkpoint, files=[], created_at=START)
    folders = [
        ObservedArtifact(kinds[name], step, f"s3://x/{step}", manifest) for name, of in steps.items() for step in of
    ]
    return ArtifactCatalog.build(run_object(), (), folders, None)


@pytest.mark.parametrize(
    ("spec", "step", "steps", "is_due"),
    [
        (NO_ADAPTERS, 4, {}, False),
        (NO_ADAPTERS, 5, {}, True),
        (NO_ADAPTERS, 9, {"checkpoints": [5]}, False),
        (NO_ADAPTERS, 10, {"checkpoints": [5]}, True),
        ({**NO_ADAPTERS, "adapters": {"interval": 2}}, 6, {"checkpoints": [5], "adapters": [4]}, True),
        ({**NO_ADAPTERS, "adapters": {"interval": 2}}, 7, {"checkpoints": [5], "adapters": [6]}, False),
        (NO_ADAPTERS, 12, {"checkpoints": [10], "adapters": [12]}, True),
        (NO_ADAPTERS, 12, {"checkpoints": [12]}, True),
        (NO_ADAPTERS, 12, {"checkpoints": [12], "adapters": [12]}, False),
    ],
)
def test_uploads_are_due_at_intervals_and_after_the_last_step(
    spec: dict[str, Any], step: int, steps: dict[str, list[int]], is_due: bool
) -> None:
    schedule = UploadSchedule.of(run_spec(maxSteps=12, **spec), None, SETTINGS)
    assert schedule.is_upload_due(catalog(**steps), step) is is_due


@pytest.mark.parametrize(
    ("before", "after", "is_passed"),
    [
        (0, 1, False),
        (1, 2, True),
        (2, 3, False),
        (4, 5, True),
        (3, 5, True),
        (6, 7, False),
        (7, 11, True),
        (11, 12, True),
    ],
)
def test_steps_with_an_upload_are_passed(before: int, after: int, is_passed: bool) -> None:
    assert UploadSchedule(checkpoint_interval=5, adapter_interval=2, max_steps=12).is_passed(before, after) is is_passed


def test_a_schedule_without_intervals_has_the_uploads_of_the_last_step() -> None:
    schedule = UploadSchedule(checkpoint_interval=0, adapter_interval=0, max_steps=12)
    assert not schedule.is_passed(3, 11)
    assert schedule.is_passed(11, 12)


async def test_a_run_keeps_the_default_interval_of_its_start(world: World) -> None:
    await world.start()
    (config,) = world.cluster.all("ConfigMap")
    frozen = ResolvedRun.parse(config["data"]["run.json"])
    defaults = SETTINGS.defaults.model_copy(update={"checkpoint_interval": 7})
    later = SETTINGS.model_copy(update={"defaults": defaults})
    spec = run_spec()
    assert UploadSchedule.of(spec, None, later).checkpoint_interval == 7
    assert UploadSchedule.of(spec, frozen, later).checkpoint_interval == SETTINGS.defaults.checkpoint_interval
