"""A run whose trainer is killed and continues from a recovery copy ends as an uninterrupted one, to the bit."""

from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.train_batch import SampleLoss
from rlrun.protocol.trainer import StepResult
from rlrun.storage.layout import ADAPTER_WEIGHTS, RunLayout, S3Uri
from rlrun.storage.store import Store

from tests.support import tiny_model, trainer_requests
from tests.support.train_bodies import body_of
from tests.support.trainer_client import Client

STEPS = 6
COPIED = 3


async def make_step(client: Client, step: int) -> StepResult:
    """Make a step on demonstrations."""
    samples = trainer_requests.samples(10, step)
    for sample in samples:
        sample.loss = SampleLoss.cross_entropy
        sample.logprobs = [0.0] * len(sample.token_ids)
    status, text = await client.call("POST", f"/sessions/run/steps/{step}", body_of(samples, f"batch {step}"))
    assert status == 200, text
    return StepResult.model_validate_json(text)


async def adapter_of(client: Client, store: Store, run_uri: str) -> bytes:
    await client.save("adapters", STEPS)
    await client.settled()
    return store.get_bytes(RunLayout(S3Uri.parse(run_uri)).adapter(STEPS) / ADAPTER_WEIGHTS)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
async def test_a_supervised_run_continues_from_a_recovery_copy_without_a_difference(
    make_client: Callable[..., Any], store: Store, run_uri: str, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"lora": {"dropout": dropout}, "max_steps": STEPS + 1}
    whole = await make_client()
    await whole.open(tiny_model.spec(run_uri + "-whole", **changes))
    for step in range(STEPS):
        await make_step(whole, step)
    expected = await adapter_of(whole, store, run_uri + "-whole")

    killed = await make_client(recovery_seconds=1e-9)
    await killed.open(tiny_model.spec(run_uri, **changes))
    for step in range(COPIED):
        result = await make_step(killed, step)
        assert result.recovery_copy
        await killed.sessions.get("run")._copying
        await killed.settled()
    killed.sessions.get("run")._settings = whole.sessions._settings
    await make_step(killed, COPIED)

    # Its pod is gone, and what it had made since the copy.
    other = await make_client(recovery_seconds=1e-9)
    await killed.call("DELETE", "/sessions/run")
    state = await other.open(tiny_model.spec(run_uri, **changes))
    assert state.step == state.policy.version == COPIED
    assert state.last is not None
    assert (state.last.batch_id, state.checkpoints) == (f"batch {COPIED - 1}", [])
    assert state.last.metrics["loss/mean"] == result.metrics["loss/mean"]
    for step in range(COPIED, STEPS):
        await make_step(other, step)
    assert await adapter_of(other, store, run_uri) == expected
