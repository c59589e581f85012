"""Artifacts count as complete if S3 has them and nothing waits to replace them."""

from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun_trainer.artifacts.upload_queue import completed_steps

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
    assert completed_steps(store, LAYOUT.adapters) == [1, 3]
