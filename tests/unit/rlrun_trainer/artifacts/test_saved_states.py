"""Names of saved states survive the trainer, and an object that cannot be read hides none silently."""

from datetime import UTC, datetime

import pytest
from rlrun.protocol.client_run import SavedState, SaveKind
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Corrupt
from rlrun_trainer.artifacts.saved_states import SavedStatesObject

from tests.support.fake_s3 import InMemoryStore

LAYOUT = RunLayout(S3Uri.parse("s3://bucket/runs/team/uid-1"))


def state(step: int) -> SavedState:
    return SavedState(step=step, time=datetime(2026, 1, 1, tzinfo=UTC))


async def test_names_are_read_by_the_next_process() -> None:
    store = InMemoryStore()
    first = SavedStatesObject(store, LAYOUT)
    await first.read()
    assert (len(first), first.newest) == (0, None)
    first.record(SaveKind.weights, "b", state(2))
    first.record(SaveKind.weights, "a", state(1))
    first.record(SaveKind.sampler_weights, "a", state(3))
    second = SavedStatesObject(store, LAYOUT)
    await second.read()
    assert len(second) == 3
    assert second.newest == ("b", state(2))
    assert second.find(SaveKind.sampler_weights, "a") == state(3)
    assert second.find(SaveKind.sampler_weights, "b") is None


async def test_an_object_that_is_not_the_trainers_is_named() -> None:
    store = InMemoryStore()
    store.objects[str(LAYOUT.saved_states)] = b"{"
    with pytest.raises(Corrupt, match=r"checkpoints/saved-states\.json is not .* Delete the object"):
        await SavedStatesObject(store, LAYOUT).read()
