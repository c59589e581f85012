"""A trainer that is told to stop saves what is nowhere else, in the time that it has."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Store, Unreachable
from rlrun_trainer.optimization.step import step_units
from rlrun_trainer.runtime.compute_thread import Units

from tests.support import tiny_model
from tests.support.trainer_client import Client


async def test_training_continues_from_the_saved_checkpoint_without_a_difference(
    make_client: Callable[..., Any], store: Store, run_uri: str
) -> None:
    client = await make_client()
    await client.open(tiny_model.spec(run_uri, lora={"dropout": 0.2}))
    await client.step(0)
    await client.save("checkpoints", 1, '{"orchestratorState": {"cursor": 1}}')
    await client.settled()
    await client.step(1)
    await client.sessions.rescue(30)
    assert (await client.settled()).checkpoints == [1, 2]
    # No step begins any more, and no session opens; what is done is still told.
    status, text = await client.raw_step(2, 2)
    assert (status, Problem.model_validate_json(text).reason) == (503, "TrainerStopping")
    status, text = await client.call(
        "PUT", "/sessions/b", tiny_model.spec(run_uri + "-b").model_dump_json(by_alias=True)
    )
    assert (status, Problem.model_validate_json(text).reason) == (503, "TrainerStopping")
    heard = await client.step(1)
    assert heard.step == 2
    await client.call("DELETE", "/sessions/run")

    saved = RunLayout(S3Uri.parse(run_uri)).checkpoint(2)
    other = await make_client()
    state = await other.open(tiny_model.spec(run_uri, lora={"dropout": 0.2}, resume_from=str(saved)))
    assert (state.step, state.orchestrator_state, state.orchestrator_state_step) == (2, {"cursor": 1}, 1)
    assert state.last is not None
    told, known = state.last.metrics, heard.metrics
    assert {name: told[name] for name in known if not name.startswith("time/")} == {
        name: value for name, value in known.items() if not name.startswith("time/")
    }, "an orchestrator that went at the same moment still hears how the step went"
    again = (await other.step(2)).policy.digest
    whole = await make_client()
    await whole.open(tiny_model.spec(run_uri + "-whole", lora={"dropout": 0.2}), "whole")
    for step in range(3):
        result = await whole.step(step, "whole")
    assert result.policy.digest == again


async def test_saved_step_is_not_saved_twice(client: Client, store: Store, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.sessions.rescue(30)
    assert (await client.settled()).checkpoints == [], "nothing was learned"
    client.sessions._stopping = False
    client.sessions.get("run")._leaving = False
    await client.step(0)
    await client.save("checkpoints", 1, '{"orchestratorState": {"cursor": 1}}')
    place = RunLayout(S3Uri.parse(run_uri)).checkpoint(1)
    await client.sessions.rescue(30)
    await client.settled()
    first = store.read_manifest(place)
    # The same artifact asked for again is the one that is there.
    await client.save("checkpoints", 1, '{"orchestratorState": {"cursor": 2}}')
    await client.settled()
    assert store.read_manifest(place) == first


async def test_shutdown_waits_for_the_step_in_progress_until_its_deadline(
    client: Client, store: Store, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.step(0)
    started, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Units[dict[str, float]]:
        started.set()
        assert go_on.wait(30)
        return (yield from step_units(*arguments))

    monkeypatch.setattr("rlrun_trainer.torch_backend.collective_executor.step_units", slow)
    step = asyncio.create_task(client.step(1))
    assert await asyncio.to_thread(started.wait, 30)
    await client.sessions.rescue(0.2)
    assert not step.done()
    rescue = asyncio.create_task(client.sessions.rescue(30))
    go_on.set()
    assert (await step).step == 2
    await rescue
    assert (await client.settled()).checkpoints == [2]


async def test_the_last_checkpoint_is_uploaded_before_adapters_and_ignores_the_queue_limit(
    make_client: Callable[..., Any], store: Store, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await make_client(upload_queue=3)
    await client.open(tiny_model.spec(run_uri))
    uploads = client.sessions.get("run").uploads
    uploads.wait = lambda failures: 60.0
    write, order, away = Store.upload_artifact, [], threading.Event()
    away.set()

    def seen(self: Store, source: Any, uri: S3Uri, *rest: Any, **facts: Any) -> Any:
        if away.is_set():
            raise Unreachable("away")
        order.append(uri.key.split("/", 3)[-1])
        return write(self, source, uri, *rest, **facts)

    monkeypatch.setattr(Store, "upload_artifact", seen)
    await client.save("checkpoints", 0)
    await client.save("adapters", 0)
    await client.step(0)
    await client.save("adapters", 1)
    await client.sessions.rescue(30)
    assert uploads.pending == 4
    away.clear()
    # A minute's pause is none for a process that is about to end.
    assert await asyncio.wait_for(client.sessions.drain(30), 20) == 0
    assert [place.split("/")[-2:] for place in order] == [
        ["checkpoints", "step-000000"],
        ["checkpoints", "step-000001"],
        ["adapters", "step-000000"],
        ["adapters", "step-000001"],
    ]


async def test_uploads_of_a_closed_session_end(
    make_client: Callable[..., Any], run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await make_client(upload_tries=2)
    await client.open(tiny_model.spec(run_uri))
    uploads = client.sessions.get("run").uploads
    uploads.wait = lambda failures: 0.0
    tries: list[int] = []

    def away(*_: Any, **__: Any) -> Any:
        tries.append(1)
        raise Unreachable("away")

    monkeypatch.setattr(Store, "upload_artifact", away)
    await client.save("checkpoints", 0)
    async with asyncio.timeout(20):
        while len(tries) < 5:  # noqa: ASYNC110 (a thread counts)
            await asyncio.sleep(0.01)
    await client.call("DELETE", "/sessions/run")
    assert await asyncio.wait_for(client.sessions.drain(20), 30) == 0
    assert uploads.problem is not None
