"""Artifacts count as complete if S3 has them and nothing waits to replace them."""

from typing import Any

import pytest
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer.artifacts.upload_queue import UploadJob, UploadQueue, completed_steps

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore

RUN_URI = "s3://bucket/runs/team/uid-1"
LAYOUT = RunLayout(S3Uri.parse(RUN_URI))


def store_with(*steps: int) -> InMemoryStore:
    """A store with adapters of these steps."""
    store = InMemoryStore()
    for step in steps:
        store.publish(str(LAYOUT.adapter(step)), {"a": b"old"}, ArtifactKind.adapter)
    return store


def test_an_unreadable_manifest_hides_no_other_artifact() -> None:
    store = store_with(1, 2, 3)
    store.objects[str(LAYOUT.adapter(2) / MANIFEST)] = b"not JSON"
    assert completed_steps(store, LAYOUT.adapters, 0) == [1, 3]


async def test_an_artifact_that_is_uploaded_again_is_not_complete_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_with(55, 60)
    queue = UploadQueue(store, trainer_requests.spec(RUN_URI), 4, 2**30, 3)
    queue.completed[ArtifactKind.adapter] = [55, 60]
    before: dict[int, list[int]] = {}
    upload = store.upload_artifact

    def watched(*arguments: Any, step: int, **facts: Any) -> Manifest:
        before[step] = list(queue.completed[ArtifactKind.adapter])
        return upload(*arguments, step=step, **facts)

    monkeypatch.setattr(store, "upload_artifact", watched)
    for step in (55, 60):
        queue.submit(UploadJob(ArtifactKind.adapter, step, LAYOUT.adapter(step), {"a": b"new"}, None))
    assert await queue.drain(30) == 0
    assert before == {55: [], 60: [55]}
    assert queue.completed[ArtifactKind.adapter] == [55, 60]


async def test_a_step_that_is_trained_again_keeps_its_first_artifact_and_holds_up_no_other() -> None:
    """Another team may have started from it."""
    store = store_with(55)
    store.publish(str(LAYOUT.adapter(56)), {"a": b"old"}, ArtifactKind.adapter)
    store.objects[str(LAYOUT.adapter(56) / MANIFEST)] = b"not JSON"
    before = dict(store.objects)
    queue = UploadQueue(store, trainer_requests.spec(RUN_URI), 4, 2**30, 3)
    for step in (55, 56, 60):
        queue.submit(UploadJob(ArtifactKind.adapter, step, LAYOUT.adapter(step), {"a": b"new"}, None))
    assert await queue.drain(30) == 0
    assert queue.completed[ArtifactKind.adapter] == [55, 60]
    assert queue.problem is None
    assert store.objects.items() >= before.items()
