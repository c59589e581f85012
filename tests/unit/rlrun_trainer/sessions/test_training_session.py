"""A checkpoint is uploaded once, also when another trainer process saved it."""

from typing import Any

from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun_trainer.artifacts.checkpoint_facts import CheckpointProgress
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.session_registry import Sessions

from tests.support import trainer_requests
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_trainer.sessions.test_shutdown_budget import CountingBackend

RUN_URI = "s3://bucket/runs/team/uid-1"


class Resuming(CountingBackend):
    """A model whose checkpoints are of step 10."""

    def restore(self, *_: Any) -> CheckpointProgress:
        return CheckpointProgress(10, "uid-1", {})


async def test_the_checkpoint_that_a_session_resumed_from_is_not_replaced() -> None:
    compute, store = Compute(), InMemoryStore()
    saved = str(RunLayout(S3Uri.parse(RUN_URI)).checkpoint(10))
    store.publish(saved, {"adapter_model.safetensors": b"weights of another process"}, ArtifactKind.checkpoint)
    sessions = Sessions(Resuming(), compute, store, TrainerSettings())  # type: ignore[arg-type]
    session = await sessions.open("run", trainer_requests.spec(RUN_URI, resume_from=saved))
    state = await session.save_checkpoint(10, {"progress": {}})
    assert (state.checkpoints, state.uploads_pending) == ([10], 0)
    await session.train(10, trainer_requests.samples(2))
    assert (await session.save_checkpoint(11, {})).uploads_pending == 1
    assert await sessions.drain(30) == 0
    compute.close()


async def test_a_session_reads_no_manifests_of_steps_before_its_own() -> None:
    compute, store, layout = Compute(), InMemoryStore(), RunLayout(S3Uri.parse(RUN_URI))
    for step in range(1, 11):
        store.publish(str(layout.checkpoint(step)), {"weights": b"w"}, ArtifactKind.checkpoint)
        store.publish(str(layout.adapter(step)), {"weights": b"w"}, ArtifactKind.adapter)
    sessions = Sessions(Resuming(), compute, store, TrainerSettings())  # type: ignore[arg-type]
    session = await sessions.open("run", trainer_requests.spec(RUN_URI, resume_from=str(layout.checkpoint(10))))
    assert (session.state.checkpoints, session.state.adapters) == ([10], [10])
    await session.train(10, trainer_requests.samples(2))
    await session.save_checkpoint(11, {})
    assert await sessions.drain(30) == 0
    assert (session.state.checkpoints, session.state.adapters) == ([10, 11], [10])
    assert store.reads < 9, "fewer than there are checkpoints before it"
    compute.close()
