"""S3 fails at every call of a session's life in turn: the run goes on, and in the end everything is there and whole."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.trainer import SessionState
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store
from rlrun_trainer.artifacts import policy_publisher

from tests.support import tiny_model
from tests.support.s3_faults import Faults
from tests.support.train_bodies import body_of
from tests.support.trainer_client import Client

LAST = 2
MOST_CALLS = 80


async def patiently(client: Client, method: str, path: str, body: str) -> str:
    """As the orchestrator does it: 503 is asked again."""
    async with asyncio.timeout(60):
        while True:
            status, text = await client.call(method, path, body)
            if status != 503:
                assert status < 400, text
                return text
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["silence", "lost answer"])
async def test_an_s3_failure_at_any_call_delays_uploads_and_loses_none(
    make_client: Callable[..., Any], store: Store, s3_server: Any, run_uri: str, how: str, monkeypatch: Any
) -> None:
    monkeypatch.setattr(policy_publisher, "FIRST_WAIT", 0.01)
    client = await make_client()
    victim = s3_server.store()
    client.sessions._store = victim
    faults = Faults(victim._s3, how)
    for at in range(1, MOST_CALLS):
        uri = f"{run_uri}-{at}"
        faults.arm(at)
        spec = tiny_model.spec(uri, max_steps=LAST).model_dump_json(by_alias=True)
        await patiently(client, "PUT", "/sessions/run", spec)
        uploads = client.sessions.get("run").uploads
        uploads.wait = lambda failures: 0.01
        for step in range(LAST):
            batch = body_of(tiny_model.samples(2, step))
            await patiently(client, "POST", f"/sessions/run/steps/{step}", batch)
            await patiently(client, "POST", f"/sessions/run/checkpoints/{step + 1}", "{}")
        await patiently(client, "POST", f"/sessions/run/adapters/{LAST}", "{}")
        state = await client.settled()
        async with asyncio.timeout(30):
            while state.problem is not None:
                await asyncio.sleep(0.01)
                state = await client.state()
        _whole(store, uri, state)
        await client.call("DELETE", "/sessions/run")
        if not faults.struck:
            assert at > 15
            return
    raise AssertionError("a session with no end")


def _whole(store: Store, uri: str, state: SessionState) -> None:
    layout = RunLayout(S3Uri.parse(uri))
    # The second checkpoint may have taken the place of the first one while that was waiting.
    assert LAST in state.checkpoints
    assert state.adapters == [LAST]
    assert store.is_complete(S3Uri.parse(state.policy.uri))
    for folder in (layout.checkpoints, layout.adapters, layout.root / "policy"):
        for name in store.list_folders(folder):
            assert store.is_complete(folder / name) or store.read_manifest(folder / name) is None
    assert store.is_complete(layout.checkpoint(LAST))
    assert store.is_complete(layout.adapter(LAST))
