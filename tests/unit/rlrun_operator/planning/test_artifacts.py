"""After which steps a run has another checkpoint or adapter to look for.

The catalogue of what lies in S3: whole, broken, gone, and what other runs still need.
"""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.api.run_status import RLRunStatus
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLRUN
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun.storage.store import AccessDenied
from rlrun_operator.planning.actions import ArtifactDeletion, PlanPart
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog, ArtifactObjectKind, ObservedArtifact
from rlrun_operator.planning.artifacts import (
    DELETION_RETRY_SECONDS,
    UploadSchedule,
    deletion_problem,
    failed_deletion_status,
    list_artifacts,
)
from rlrun_operator.planning.observation import RunObservation

from tests.support.clocks import START
from tests.support.cluster_objects import checkpoint_object, run_object
from tests.support.expectations import present
from tests.support.fake_artifacts import digest_of, manifest
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


ROOT = "s3://rlrun/team/uid-1"


def place(step: int, folder: str = "checkpoints") -> str:
    return f"{ROOT}/{folder}/step-{step:06d}"


def save(world: World, *steps: int) -> None:
    for step in steps:
        world.artifacts.folders[place(step)] = manifest(step)


def phases(world: World, kind: str = "RLCheckpoint") -> dict[int, str]:
    return {o["spec"]["step"]: o["status"]["phase"] for o in world.cluster.all(kind)}


def name(step: int) -> str:
    return f"reverse-step-{step:06d}-uid-1"


async def test_an_object_with_another_uri_is_not_ready(world: World) -> None:
    await world.reconcile(2)
    save(world, 5)
    await world.put(checkpoint_object("by-hand", 5, "s3://rlrun/other"))
    assert phases(world) == {5: "Failed"}
    assert place(5) in world.cluster.held("RLCheckpoint", "by-hand")["status"]["message"]
    assert "lastCheckpoint" not in world.status

    del world.cluster.objects["RLCheckpoint", "team", "by-hand"]
    await world.reconcile()
    assert phases(world) == {5: "Ready"}


async def test_ready_means_that_every_file_is_there(world: World) -> None:
    await world.start()
    save(world, 1)
    world.artifacts.broken[place(1)] = "model.safetensors is missing"
    await world.reconcile()
    assert phases(world) == {1: "Failed"}
    assert "model.safetensors" in world.cluster.all("RLCheckpoint")[0]["status"]["message"]
    assert "lastCheckpoint" not in world.status
    world.artifacts.broken.clear()
    await world.reconcile()
    assert phases(world) == {1: "Ready"}
    assert "message" not in world.cluster.all("RLCheckpoint")[0]["status"]
    assert world.status["lastCheckpoint"] == name(1)


async def test_a_ready_checkpoint_whose_files_disappear_becomes_failed(world: World) -> None:
    await world.start()
    save(world, 1, 2)
    await world.reconcile()
    assert phases(world) == {1: "Ready", 2: "Ready"}
    world.artifacts.folders[place(1)] = None
    del world.artifacts.folders[place(2)]
    await world.reconcile()
    assert phases(world) == {1: "Failed", 2: "Failed"}
    messages = [o["status"]["message"] for o in world.cluster.all("RLCheckpoint")]
    assert "manifest.json is missing" in messages[0]
    assert "All files" in messages[1]
    assert "checkpoints" not in world.status
    assert await world.written(2) == 0


async def test_other_files_in_the_place_of_a_ready_checkpoint_are_not_it(world: World) -> None:
    """Of the same size, or of another one."""
    await world.start()
    save(world, 1, 2)
    await world.reconcile()
    ready = {o["spec"]["step"]: dict(o["status"]) for o in world.cluster.all("RLCheckpoint")}
    assert ready[1]["digest"] == digest_of(manifest(1))
    for other in (manifest(1, reward=0.5), manifest(1, size=200)):
        world.artifacts.folders[place(1)] = other
        await world.reconcile()
        assert phases(world) == {1: "Failed", 2: "Ready"}
        status = world.cluster.held("RLCheckpoint", name(1))["status"]
        assert status["digest"] == ready[1]["digest"], "the operator never rewrites it"
        [condition] = status["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Verified", "False", "ArtifactChanged")
        for part in (place(1), ready[1]["digest"], digest_of(other)):
            assert part in condition["message"]
        assert [c["step"] for c in world.status["checkpoints"]] == [2]
    assert await world.written(2) == 0
    save(world, 1)
    await world.reconcile()
    assert world.cluster.held("RLCheckpoint", name(1))["status"] == ready[1]


async def test_a_checkpoint_of_an_earlier_version_gets_its_digest(world: World) -> None:
    await world.start()
    save(world, 1)
    await world.reconcile()
    obj = world.cluster.held("RLCheckpoint", name(1))
    del obj["status"]["digest"]
    await world.put(obj, 2)
    assert world.cluster.held("RLCheckpoint", name(1))["status"]["digest"] == digest_of(manifest(1))


async def test_failed_checkpoints_do_not_count_for_retention_and_expire_with_older_ones(
    make_world: Callable[..., World],
) -> None:
    world = make_world(checkpoints={"keepCloud": 2})
    await world.start()
    save(world, 1, 2, 3)
    world.artifacts.broken[place(2)] = "cut off"
    await world.reconcile(3)
    assert phases(world) == {1: "Ready", 2: "Failed", 3: "Ready"}
    world.artifacts.broken[place(1)] = "cut off"
    await world.reconcile(3)
    assert phases(world) == {1: "Failed", 2: "Failed", 3: "Ready"}, "people see what is wrong while there is room"
    save(world, 4)
    await world.reconcile(3)
    assert phases(world) == {3: "Ready", 4: "Ready"}


async def test_retention_announces_first_and_deletes_then(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoints={"keepCloud": 1})
    await world.start()
    save(world, 1)
    await world.reconcile()
    save(world, 2)
    await world.reconcile()
    assert phases(world) == {1: "Deleting", 2: "Ready"}
    assert place(1) in world.artifacts.folders
    assert [c["step"] for c in world.status["checkpoints"]] == [2]
    await world.reconcile()
    assert phases(world) == {2: "Ready"}
    assert place(1) not in world.artifacts.folders


async def test_retention_of_a_finished_run_is_carried_through(make_world: Callable[..., World]) -> None:
    world = make_world()
    save(world, 1, 2)
    await world.start()
    world.change_spec(stop=True, checkpoints={"keepCloud": 1})
    again: float | None = 0
    for _ in range(6):
        if again is None:
            break
        again = await world.reconcile()
    assert again is None
    assert list(world.artifacts.folders) == [place(2)]


def other_run(namespace: str = "team", status: Obj | None = None, **spec: Any) -> Obj:
    found = run_object("other", namespace, "uid-2", **spec)
    return {**found, "status": status or {}}


HAS_ITS_OWN = {"phase": "Running", "lastCheckpoint": "other-step-000001-uid-2"}


class TestClaims:
    """Another run starts from checkpoint 1, of which the run's own rule would keep nothing."""

    @pytest.fixture
    def world(self, make_world: Callable[..., World]) -> World:
        return make_world(checkpoints={"keepCloud": 1})

    async def kept(self, world: World, other: Obj) -> bool:
        await world.start()
        save(world, 1)
        await world.reconcile()
        world.cluster.put(other)
        save(world, 2)
        await world.reconcile(4)
        assert place(2) in world.artifacts.folders
        return place(1) in world.artifacts.folders

    @pytest.mark.proves("checkpointId")
    @pytest.mark.parametrize("phase", [None, "Pending", "Running", "Suspended"])
    async def test_unfinished_run_keeps_what_it_starts_from(self, world: World, phase: str | None) -> None:
        assert await self.kept(world, other_run(status={"phase": phase} if phase else {}, checkpointId=name(1)))
        assert phases(world) == {1: "Ready", 2: "Ready"}

    @pytest.mark.parametrize(
        "other",
        [
            *(other_run(status={"phase": phase}, checkpointId=name(1)) for phase in ("Completed", "Failed", "Stopped")),
            other_run(status=HAS_ITS_OWN, checkpointId=name(1)),
            other_run(checkpointId=name(2)),
            other_run("else", checkpointId=f"team/{name(1)}"),
            other_run("else", checkpointId=name(1)),
        ],
        ids=[
            *("completed", "failed", "stopped", "has a checkpoint of its own", "starts from another one"),
            *("of another namespace, not shared", "the same name in another namespace"),
        ],
    )
    async def test_another_run_keeps_nothing_that_it_does_not_need(self, world: World, other: Obj) -> None:
        assert not await self.kept(world, other)

    async def test_run_of_another_namespace_keeps_what_is_shared(self, world: World) -> None:
        await world.start()
        save(world, 1)
        await world.reconcile()
        obj = world.cluster.all("RLCheckpoint")[0]
        world.cluster.put({**obj, "spec": {**obj["spec"], "sharedWith": ["else"]}})
        assert await self.kept(world, other_run("else", checkpointId=f"team/{name(1)}"))

    async def test_a_reference_made_during_deletion_keeps_the_checkpoint(self, world: World) -> None:
        await world.start()
        save(world, 1, 2)
        await world.reconcile()
        assert phases(world) == {1: "Deleting", 2: "Ready"}
        await world.put(other_run(checkpointId=name(1)), 3)
        assert phases(world) == {1: "Ready", 2: "Ready"}
        assert place(1) in world.artifacts.folders

    async def test_end_of_the_claim_is_the_end_of_the_checkpoint(self, world: World) -> None:
        assert await self.kept(world, other_run(checkpointId=name(1)))
        await world.put(other_run(status={"phase": "Stopped"}, checkpointId=name(1)), 2)
        assert phases(world) == {2: "Ready"}

    async def test_nothing_is_deleted_while_claims_are_not_known(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        usual = world.cluster.list

        async def refuse(request: KubeRequest) -> Obj:
            if request.kind is RLRUN:
                raise ApiError(403, "Forbidden", "no")
            return await usual(request)

        monkeypatch.setattr(world.cluster, "list", refuse)
        await world.start()
        save(world, 1, 2)
        await world.reconcile(4)
        assert phases(world) == {1: "Ready", 2: "Ready"}


REFUSED = AccessDenied("s3:DeleteObject is not allowed")


async def test_failed_s3_deletion_is_retried_without_delaying_others(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoints={"keepCloud": 1})
    world.artifacts.errors["delete"] = REFUSED
    await world.start()
    save(world, 1, 2)
    await world.reconcile(3)
    assert phases(world) == {1: "Deleting", 2: "Ready"}
    found = world.condition("ArtifactsCleanedUp")
    assert (found["status"], found["reason"]) == ("False", "S3AccessDenied")
    assert "DeleteObject" in found["message"]
    assert world.condition("Validated")["status"] == "True"
    assert await world.written(3) == 0, "the same refusal is told once"
    world.artifacts.errors.clear()
    await world.reconcile(2)
    assert phases(world) == {2: "Ready"}
    assert world.condition("ArtifactsCleanedUp")["status"] == "True"


async def test_deletion_that_fails_is_tried_again_after_the_end_of_the_run(make_world: Callable[..., World]) -> None:
    world = make_world(checkpoints={"keepCloud": 1})
    world.artifacts.errors["delete"] = REFUSED
    await world.start()
    save(world, 1, 2)
    await world.change(4, stop=True)
    assert world.status["phase"] == "Stopped"
    assert await world.reconcile() == 30


async def test_deployed_adapter_that_was_about_to_go_is_ready_again(make_world: Callable[..., World]) -> None:
    world = make_world(adapters={"keepLast": 1})
    await world.start()
    for step in (1, 2):
        world.artifacts.folders[place(step, "adapters")] = manifest(step)
    await world.reconcile()
    assert phases(world, "RLAdapter") == {1: "Deleting", 2: "Ready"}
    obj = world.cluster.all("RLAdapter")[0]
    await world.put({**obj, "spec": {**obj["spec"], "deployed": True}}, 3)
    assert phases(world, "RLAdapter") == {1: "Ready", 2: "Ready"}


@pytest.mark.proves("checkpointId")
async def test_warm_start_from_a_checkpoint_whose_files_are_gone_is_refused(make_world: Callable[..., World]) -> None:
    world = make_world(checkpointId="old")
    uri = "s3://rlrun/team/uid-0/checkpoints/step-000005"
    world.artifacts.broken[uri] = "trainer.pt is missing"
    await world.put(checkpoint_object("old", 5, uri, run="old", uid="uid-0"))
    found = world.condition("Validated")
    assert found["reason"] == "CheckpointIncomplete"
    assert "trainer.pt is missing" in found["message"]
    world.artifacts.broken.clear()
    await world.reconcile()
    assert world.condition("Validated")["status"] == "True"


@pytest.mark.proves("checkpointId")
@pytest.mark.parametrize("loss", ["deleted", "incomplete"])
async def test_a_run_with_a_checkpoint_continues_without_its_start_checkpoint(
    make_world: Callable[..., World], loss: str
) -> None:
    world = make_world(checkpointId="old")
    uri = "s3://rlrun/team/uid-0/checkpoints/step-000005"
    world.artifacts.folders[uri] = manifest(5)
    old = checkpoint_object("old", 5, uri, run="old", uid="uid-0")
    world.cluster.put(old)
    await world.train()
    await world.change(suspend=True)
    if loss == "deleted":
        del world.cluster.objects[("RLCheckpoint", "team", "old")]
    else:
        world.artifacts.broken[uri] = "trainer.pt is missing"
    await world.change(2, suspend=False)
    reason = {"deleted": "CheckpointNotFound", "incomplete": "CheckpointIncomplete"}[loss]
    assert world.condition("Validated")["reason"] == reason, "the run would start from the base model"
    save(world, 3)
    await world.start()
    assert world.status["lastCheckpoint"] == name(3)
    assert world.condition("Validated")["status"] == "True"
    assert world.status["attempt"] == 2
    assert "warmStartFrom" not in world.config
    assert world.config["spec"]["checkpointId"] == "old"


@pytest.mark.proves("checkpointId")
async def test_a_run_that_has_lost_all_its_checkpoints_needs_its_start_checkpoint_again(
    make_world: Callable[..., World],
) -> None:
    world = make_world(checkpointId="old")
    uri = "s3://rlrun/team/uid-0/checkpoints/step-000005"
    world.artifacts.folders[uri] = manifest(5)
    world.cluster.put(checkpoint_object("old", 5, uri, run="old", uid="uid-0"))
    save(world, 3)
    await world.train()
    await world.change(suspend=True)
    assert world.status["lastCheckpoint"] == name(3)
    del world.cluster.objects[("RLCheckpoint", "team", "old")]
    del world.artifacts.folders[place(3)]
    await world.change(2, suspend=False)
    assert world.condition("Validated")["reason"] == "CheckpointNotFound"
    assert world.cluster.all("Job", "ReplicaSet") == []


@pytest.mark.parametrize("is_noticed", [False, True], ids=["first", "after its operator"])
async def test_a_run_does_not_start_from_a_checkpoint_that_was_changed(
    make_world: Callable[..., World], is_noticed: bool
) -> None:
    world = make_world(checkpointId="old")
    uri = "s3://rlrun/team/uid-0/checkpoints/step-000005"
    old = checkpoint_object("old", 5, uri, run="old", uid="uid-0")
    old["status"]["digest"] = "a" * 64
    if is_noticed:
        condition = {
            "type": "Verified",
            "status": "False",
            "reason": "ArtifactChanged",
            "message": f"{uri}: {'a' * 64}",
        }
        old["status"] |= {"phase": "Failed", "conditions": [condition | {"lastTransitionTime": "2026-01-01T00:00:00Z"}]}
    world.artifacts.folders[uri] = manifest(5)
    await world.put(old)
    found = world.condition("Validated")
    assert (found["status"], found["reason"]) == ("False", "ArtifactChanged")
    assert uri in found["message"]
    assert "a" * 64 in found["message"]
    assert not world.cluster.all("ConfigMap")


def stored(step: int, **details: Any) -> ObservedArtifact:
    return ObservedArtifact("RLCheckpoint", step, place(step), manifest(step, **details))


def checkpoint(step: int, phase: str = "Ready") -> Obj:
    return checkpoint_object(name(step), step, place(step), phase=phase)


def listed(*folders: ObservedArtifact, objects: tuple[Obj, ...] = (), keep: int = 1) -> PlanPart:
    run = run_object(checkpoints={"keepCloud": keep})
    spec = run_spec(checkpoints={"keepCloud": keep})
    catalog = ArtifactCatalog.build(run, objects, folders, spec).with_references("team", [])
    part = present(list_artifacts(RunObservation(run, catalog=catalog), RLRunStatus(), spec, SETTINGS, START))
    assert part.artifacts is not None
    return part


def test_list_has_the_complete_artifacts_that_stay_newest_first() -> None:
    part = listed(stored(1, reward=0.25), stored(2, reward=0.5), stored(3, reward=0.75), keep=2)
    assert [(c.step, c.name, c.uri, c.reward) for c in part.status.fields["checkpoints"]] == [
        (3, name(3), place(3), 0.75),
        (2, name(2), place(2), 0.5),
    ]
    assert part.status.fields["last_checkpoint"] == name(3)
    assert [(c.type, c.value, c.reason) for c in part.status.conditions] == [("ArtifactsListed", True, "Listed")]


def test_run_without_artifacts_has_an_empty_list_and_needs_no_further_look() -> None:
    part = listed()
    assert (part.status.fields["checkpoints"], part.status.fields["last_checkpoint"]) == ([], None)
    assert part.requeue_after is None


def test_bucket_that_cannot_be_listed_is_a_condition_and_changes_no_list() -> None:
    problem = Problem(reason="S3Unreachable", message="no answer")
    away = RunObservation(run_object(), artifacts_problem=problem)
    part = present(list_artifacts(away, RLRunStatus(), run_spec(), SETTINGS, START))
    assert [(c.type, c.value, c.reason, c.message) for c in part.status.conditions] == [
        ("ArtifactsListed", False, "S3Unreachable", "no answer")
    ]
    assert (part.status.fields, part.artifacts) == ({}, None)
    assert list_artifacts(RunObservation(run_object()), RLRunStatus(), run_spec(), SETTINGS, START) is None


def test_deletion_follows_soon_and_its_retry_later() -> None:
    marked = listed(stored(1), stored(2))
    assert [(s["metadata"]["name"], s["status"]["phase"]) for s in marked.artifacts.statuses] == [  # type: ignore[union-attr]
        (name(1), "Deleting"),
        (name(2), "Ready"),
    ]
    assert marked.requeue_after == SETTINGS.poll_seconds
    deleting = (checkpoint(1, "Deleting"), checkpoint(2))
    removed = listed(stored(1), stored(2), objects=deleting)
    assert removed.artifacts is not None
    assert removed.artifacts.removals == [ArtifactDeletion(deleting[0], place(1))]
    assert removed.requeue_after == DELETION_RETRY_SECONDS
    both = listed(stored(1), stored(2), stored(3), objects=deleting)
    assert both.requeue_after == min(SETTINGS.poll_seconds, DELETION_RETRY_SECONDS)


def test_objects_whose_files_are_gone_fail_or_go_if_retention_deleted_them() -> None:
    part = listed(objects=(checkpoint(1, "Deleting"), checkpoint(2), checkpoint(3, "Failed")))
    assert part.artifacts is not None
    assert [ref.name for ref in part.artifacts.deletes] == [name(1)]
    assert [(s["metadata"]["name"], s["status"]["phase"]) for s in part.artifacts.statuses] == [(name(2), "Failed")]
    assert "Delete this object." in part.artifacts.statuses[0]["status"]["message"]


def test_failed_deletion_is_recorded_once_in_the_object() -> None:
    removal = ArtifactDeletion(checkpoint(1, "Deleting"), place(1))
    problem = Problem(reason="S3AccessDenied", message="no")
    status = present(failed_deletion_status(removal, problem, START))
    assert status["status"]["phase"] == "Deleting"
    assert deletion_problem(status) == problem
    assert status["status"]["conditions"] == [
        {
            "type": "Deleted",
            "status": "False",
            "reason": "S3AccessDenied",
            "message": "no",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "observedGeneration": 0,
        }
    ]
    again = ArtifactDeletion({**removal.obj, "status": status["status"]}, place(1))
    assert failed_deletion_status(again, problem, START) is None
    other = Problem(reason="S3Unreachable", message="no answer")
    assert failed_deletion_status(again, other, START) is not None
