"""A session starts from the checkpoint that the operator has verified, or not at all."""

import hashlib
from typing import Any

import pytest
from rlrun.service.errors import ProblemError
from rlrun.storage.layout import MANIFEST
from rlrun.storage.manifest import ArtifactKind
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_trainer.sessions.test_shutdown_budget import CountingBackend

RUN_URI = "s3://bucket/runs/team/uid-1"
SOURCE = "s3://bucket/runs/other/uid-0/checkpoints/step-000010"


class Restoring(CountingBackend):
    """A model that counts the checkpoints that it was given."""

    restored = 0

    def restore(self, *_: Any) -> CheckpointProgress:
        self.restored += 1
        return CheckpointProgress(10, "uid-0", {})


def save(store: InMemoryStore, weights: bytes) -> str:
    """Publish the checkpoint, and return the digest of its manifest."""
    store.publish(SOURCE, {"adapter_model.safetensors": weights}, ArtifactKind.checkpoint)
    return hashlib.sha256(store.objects[f"{SOURCE}/{MANIFEST}"]).hexdigest()


async def test_a_run_does_not_train_from_weights_that_were_swapped_after_the_checkpoint_was_ready() -> None:
    compute, store, backend = Compute(), InMemoryStore(), Restoring()
    sessions = Sessions(backend, compute, store, TrainerSettings())  # type: ignore[arg-type]
    spec = trainer_requests.spec(RUN_URI, warm_start_from=SOURCE, warm_start_digest=save(store, b"good weights"))
    assert (await sessions.open("run", spec)).state.step == 0
    await sessions.close("run")

    found = save(store, b"evil weights")
    with pytest.raises(ProblemError) as refused:
        await sessions.open("again", spec)
    assert (refused.value.status, refused.value.problem.reason) == (422, "ArtifactChanged")
    for part in (SOURCE, str(spec.warm_start_digest), found):
        assert part in refused.value.problem.message
    assert backend.restored == 1
    compute.close()
