"""When S3 is listed again, and when the last listing is used."""

from dataclasses import replace
from typing import Any

import pytest
from rlrun.api.base.phases import Phase
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import Reason
from rlrun.kube.objects import Obj
from rlrun.protocol.orchestrator import RunPhase, RunStatus
from rlrun.protocol.problem import Problem
from rlrun.storage.store import StoreError
from rlrun_operator.planning.artifacts import UploadSchedule
from rlrun_operator.storage.artifact_listings import SLOW_SECONDS, ArtifactListings, ListingRequest
from rlrun_operator.storage.artifact_store import TooManyObjects
from rlrun_operator.storage.store_call import CallTooLong

from tests.support.cluster_objects import run_object
from tests.support.fake_artifacts import FakeArtifacts, manifest
from tests.support.operator_world import SETTINGS

URI = "s3://rlrun/team/uid-1/checkpoints/step-000005"
WARNING = Problem(reason=Reason.UPLOADS_BEHIND, message="m")


def report(step: int = 6, **more: Any) -> RunStatus:
    return RunStatus(phase=RunPhase.running, step=step, max_steps=100, **more)


def pod(phase: str = "Running") -> Obj:
    return {"metadata": {"uid": "p-1", "name": "p"}, "status": {"phase": phase}}


def ready(size: int = 100) -> Obj:
    status = {"phase": "Ready", "sizeBytes": size}
    metadata = {"name": "reverse-5", "namespace": "team"}
    return {"kind": "RLCheckpoint", "metadata": metadata, "spec": {"step": 5, "uri": URI}, "status": status}


class Bench:
    def __init__(self) -> None:
        self.now = 0.0
        self.artifacts = FakeArtifacts()
        self.artifacts.folders[URI] = manifest(5)
        self.listings = ArtifactListings(self.artifacts, SETTINGS, lambda: self.now, lambda: 1.0)
        run = run_object(checkpoints={"interval": 5}, maxSteps=100)
        schedule = UploadSchedule.of(RLRunSpec.model_validate(run["spec"]), None, SETTINGS)
        status = RLRunStatus(phase=Phase.running, attempt=1)
        self.request = ListingRequest(run, status, schedule, {"A": "b"}, [ready()], [pod()], report())

    async def is_kept(self, *, is_fresh: bool = False, **changes: Any) -> bool:
        return (await self.listings.list(replace(self.request, **changes), is_fresh=is_fresh)).is_kept


@pytest.fixture
async def bench() -> Bench:
    made = Bench()
    assert not await made.is_kept()
    assert await made.is_kept()
    return made


async def test_a_pod_that_has_not_begun_has_uploaded_nothing(bench: Bench) -> None:
    new = {"metadata": {"uid": "p-2", "name": "q"}, "status": {"phase": "Pending"}}
    assert await bench.is_kept(pods=[pod(), new])
    assert not await bench.is_kept(pods=[pod(), {**new, "status": {"phase": "Running"}}])


async def test_a_decision_uses_no_earlier_listing(bench: Bench) -> None:
    assert not await bench.is_kept(is_fresh=True)
    assert await bench.is_kept()


@pytest.mark.parametrize(
    "changes",
    [
        {"report": report(warnings=[WARNING])},
        {"report": report(waiting_for=WARNING)},
        {"report": report(problem=WARNING)},
        {"report": None},
        {"pods": [pod("Succeeded")]},
        {"pods": []},
        {"status": RLRunStatus(phase=Phase.running, attempt=2)},
        {"status": RLRunStatus(phase=Phase.stopped, attempt=1)},
        {"objects": []},
        {"objects": [ready(99)]},
        {"report": report(5)},
        {"run": run_object(uid="uid-2")},
    ],
)
async def test_a_sign_of_an_upload_or_a_loss_lists_again(bench: Bench, changes: dict[str, Any]) -> None:
    assert not await bench.is_kept(**changes)


async def test_steps_without_an_artifact_list_nothing(bench: Bench) -> None:
    for step in (7, 8, 9):
        assert await bench.is_kept(report=report(step))


async def test_a_due_upload_is_looked_for_until_it_is_there(bench: Bench) -> None:
    for _ in range(3):
        assert not await bench.is_kept(report=report(10))
    bench.artifacts.folders[URI.replace("05", "10")] = manifest(10)
    assert not await bench.is_kept(report=report(10))
    assert await bench.is_kept(report=report(11))


async def test_the_sweep_lists_again(bench: Bench) -> None:
    bench.now = SETTINGS.artifact_sweep_seconds - 1
    assert await bench.is_kept()
    bench.now += 1
    assert not await bench.is_kept()


async def test_an_error_is_reported_and_not_kept(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: Any) -> None:
        raise StoreError("no answer")

    bench.listings.forget(bench.request.key)
    monkeypatch.setattr(bench.artifacts, "list", refuse)
    for _ in range(2):
        found = await bench.listings.list(bench.request)
        assert (found.folders, found.is_kept) == (None, False)
        assert found.problem == Problem(reason=Reason.S3_ERROR, message="no answer")


@pytest.mark.parametrize(
    ("error", "pause"),
    [(TooManyObjects(URI, 5), SETTINGS.artifact_sweep_seconds), (CallTooLong("over after 20 s"), SLOW_SECONDS)],
    ids=["files", "time"],
)
async def test_a_run_with_too_many_files_is_listed_once_in_each_sweep(
    bench: Bench, error: StoreError, pause: float
) -> None:
    """Its trainer may change reports and pods as often as it likes, and other runs are listed as always."""
    listings, artifacts = bench.listings, bench.artifacts
    artifacts.errors["list"] = error
    first = await listings.list(bench.request, is_fresh=True)
    assert first.problem
    assert (first.folders, first.problem.reason, first.is_kept) == (None, error.reason, False)
    assert first.problem.message == f"{error}. The operator lists the run's artifacts again after about {pause:.0f} s."
    del artifacts.errors["list"]
    bench.now = pause - 1
    listings.forget(bench.request.key)
    for changes in ({}, {"report": report(10)}, {"pods": []}, {"status": RLRunStatus(phase=Phase.failed)}):
        found = await listings.list(replace(bench.request, **changes), is_fresh=True)
        assert (found.folders, found.problem, found.is_kept) == (None, first.problem, True)
    assert (await listings.list(replace(bench.request, run=run_object("other", uid="uid-2")))).problem is None
    assert (await listings.list(replace(bench.request, run=run_object(uid="uid-3")))).problem is None
    bench.now += 1
    assert (await listings.list(bench.request)).folders


async def test_failures_of_deleted_runs_are_not_kept(bench: Bench) -> None:
    bench.artifacts.errors["list"] = TooManyObjects(URI, 5)
    for number in range(3):
        await bench.listings.list(replace(bench.request, run=run_object(f"run-{number}")))
        bench.now += SETTINGS.artifact_sweep_seconds
    assert len(bench.listings._failed) == 1
