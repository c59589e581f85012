"""The server as the orchestrator sees it: HTTP in front, a real S3 behind."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from rlrun.api.base.s3_connection import S3Connection
from rlrun.protocol.problem import Problem
from rlrun.protocol.trainer import StepResult
from rlrun.storage.layout import ADAPTER_WEIGHTS, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Store
from rlrun_trainer.artifacts import upload_queue as uploads_module
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.model.peft_format import CONFIG, digest
from rlrun_trainer.optimization.step import step_units
from rlrun_trainer.runtime.compute_thread import Units
from rlrun_trainer.server.http_server import Server

from tests.support import tiny_model
from tests.support.seaweedfs import S3Server
from tests.support.train_bodies import body_of
from tests.support.trainer_client import Client


def layout(run_uri: str) -> RunLayout:
    return RunLayout(S3Uri.parse(run_uri))


def files(store: Store, uri: S3Uri, *names: str) -> list[bytes]:
    return [store.get_bytes(uri / name) for name in names]


async def test_opening_publishes_version_zero(client: Client, store: Store, run_uri: str) -> None:
    state = await client.open(tiny_model.spec(run_uri))
    assert state.step == state.policy.version == 0
    uri = S3Uri.parse(state.policy.uri)
    assert uri == layout(run_uri).policy(0, state.policy.digest)
    manifest = store.read_manifest(uri)
    assert manifest is not None
    assert manifest.kind == ArtifactKind.policy
    assert (manifest.run_uid, manifest.model, manifest.policy_version) == ("uid-1", tiny_model.MODEL, 0)
    weights, config = files(store, uri, ADAPTER_WEIGHTS, CONFIG)
    assert digest({ADAPTER_WEIGHTS: weights, CONFIG: config}) == state.policy.digest
    assert await client.open(tiny_model.spec(run_uri)) == state


async def test_steps_publish_the_next_version_before_they_answer(client: Client, store: Store, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    seen = set()
    for step in range(3):
        result = await client.step(step)
        assert result.step == result.policy.version == step + 1
        assert store.is_complete(S3Uri.parse(result.policy.uri))
        seen.add(result.policy.digest)
        for key in ("loss/mean", "mismatch_kl/all/mean", "optim/lr", "time/step", "time/broadcast_weights"):
            assert key in result.metrics
    assert len(seen) == 3
    assert (await client.state()).policy.version == 3


async def test_a_step_asked_for_twice_is_made_once(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    first = await client.step(0)
    assert await client.step(0) == first
    both = await asyncio.gather(client.step(1), client.step(1))
    assert both[0] == both[1]
    assert (await client.state()).step == 2


async def test_a_result_names_the_batch_that_its_step_was_made_of(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    for batch in ("first", "second"):
        status, text = await client.raw_step(0, 0, batch_id=batch)
        assert status == 200
        assert StepResult.model_validate_json(text).batch_id == "first"
    last = (await client.state()).last
    assert last is not None
    assert last.batch_id == "first"


async def test_more_steps_take_effect_on_the_open_session(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri, max_steps=1))
    await client.step(0)
    assert (await client.raw_step(1, 1))[0] == 422
    state = await client.open(tiny_model.spec(run_uri, max_steps=2, resume_from=f"{run_uri}/checkpoints/step-000001"))
    assert state.step == 1
    await client.step(1)
    status, text = await client.call(
        "PUT", "/sessions/run", tiny_model.spec(run_uri, max_steps=1).model_dump_json(by_alias=True)
    )
    assert status == 422
    assert "max_steps is 2, but 1 was requested" in text
    more = tiny_model.spec(run_uri, max_steps=9, learning_rate=5e-3).model_dump_json(by_alias=True)
    assert (await client.call("PUT", "/sessions/run", more))[0] == 422
    assert (await client.raw_step(2, 2))[0] == 422


@pytest.mark.parametrize("step", [0, 1, 4])
async def test_other_steps_are_a_conflict_with_the_current_one(client: Client, run_uri: str, step: int) -> None:
    await client.open(tiny_model.spec(run_uri))
    for number in range(3):
        await client.step(number)
    status, text = await client.raw_step(step, 0)
    assert status == 409
    problem = Problem.model_validate_json(text)
    assert problem.reason == "StepConflict"
    assert "at step 3" in problem.message


async def test_old_policies_are_pruned_and_the_newest_stay(
    make_client: Callable[..., Any], store: Store, run_uri: str
) -> None:
    client = await make_client(keep_policies=3)
    await client.open(tiny_model.spec(run_uri))
    for step in range(6):
        await client.step(step)
    for _ in range(100):
        names = store.list_folders(layout(run_uri).root / "policy")
        if len(names) <= 3:
            break
        await asyncio.sleep(0.05)
    assert [name[:7] for name in names] == ["v000004", "v000005", "v000006"]


async def test_checkpoint_and_adapter_are_complete_with_their_facts(client: Client, store: Store, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.step(0)
    body = '{"orchestratorState": {"progress": {"reward": 0.25}, "buffer": [1, 2]}}'
    state = await client.save("checkpoints", 1, body)
    assert state.checkpoints == []
    await client.save("adapters", 1)
    state = await client.settled()
    assert (state.checkpoints, state.adapters, state.uploads_pending, state.problem) == ([1], [1], 0, None)
    for uri, kind in ((layout(run_uri).checkpoint(1), "Checkpoint"), (layout(run_uri).adapter(1), "Adapter")):
        manifest = store.read_manifest(uri)
        assert manifest is not None
        assert manifest.kind == kind
        assert manifest.step == 1
        assert manifest.details["rank"] == 4
        assert manifest.details["alpha"] == 8.0
        assert manifest.details["model"] == tiny_model.MODEL
        assert manifest.details["policy_version"] == 1
        assert manifest.details["reward"] == 0.25
        assert store.is_complete(uri)
    assert files(store, layout(run_uri).adapter(1), ADAPTER_WEIGHTS) == files(
        store, S3Uri.parse(state.policy.uri), ADAPTER_WEIGHTS
    )
    await client.step(1)
    await client.save("checkpoints", 2)
    assert (await client.settled()).checkpoints == [1, 2]


async def test_a_checkpoint_of_another_step_is_a_conflict(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.step(0)
    for step in (0, 2):
        status, text = await client.call("POST", f"/sessions/run/checkpoints/{step}", "{}")
        assert status == 409
        assert "StepConflict" in text


async def test_a_checkpoint_has_the_weights_at_the_time_of_its_request(
    client: Client, store: Store, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.open(tiny_model.spec(run_uri))
    first = await client.step(0)
    may_write = threading.Event()
    write = Store.upload_artifact

    def slow(self: Store, source: Any, uri: S3Uri, *rest: Any, **facts: Any) -> Any:
        if "checkpoints" in uri.key:
            assert may_write.wait(30)
        return write(self, source, uri, *rest, **facts)

    monkeypatch.setattr(Store, "upload_artifact", slow)
    await client.save("checkpoints", 1)
    for step in (1, 2):
        await client.step(step)
    assert (await client.state()).uploads_pending == 1
    may_write.set()
    await client.settled()
    [weights] = files(store, layout(run_uri).checkpoint(1), ADAPTER_WEIGHTS)
    assert digest({ADAPTER_WEIGHTS: weights}) == first.policy.digest


async def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(
    make_client: Callable[..., Any], base: BaseModel, run_uri: str
) -> None:
    client = await make_client()
    changes: dict[str, Any] = {"lora": {"dropout": 0.2}}
    await client.open(tiny_model.spec(run_uri, **changes))
    for step in range(3):
        await client.step(step)
    await client.save("checkpoints", 3, '{"orchestratorState": {"cursor": 17}}')
    digests = [(await client.step(step)).policy.digest for step in (3, 4, 5)]
    await client.settled()
    await client.call("DELETE", "/sessions/run")
    assert (await client.call("GET", "/sessions/run"))[0] == 404

    other = await make_client()
    state = await other.open(tiny_model.spec(run_uri, resume_from=str(layout(run_uri).checkpoint(3)), **changes))
    assert state.step == state.policy.version == 3
    assert state.checkpoints == [3]
    assert (state.orchestrator_state, state.orchestrator_state_step) == ({"cursor": 17}, 3)
    assert [(await other.step(step)).policy.digest for step in (3, 4, 5)] == digests


async def test_a_warm_start_continues_the_learning_at_step_zero(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    for step in range(2):
        await client.step(step)
    await client.save("checkpoints", 2, '{"orchestratorState": {"cursor": 17}}')
    expected = await client.step(2)
    await client.settled()
    spec = tiny_model.spec(run_uri + "-second", uid="uid-2", warm_start_from=str(layout(run_uri).checkpoint(2)))
    state = await client.open(spec, "second")
    assert (state.step, state.policy.version) == (0, 0)
    # What that run knew of the examples, of no step of this one.
    assert (state.orchestrator_state, state.orchestrator_state_step) == ({"cursor": 17}, None)
    status, text = await client.raw_step(0, 2, "second")
    assert status == 200
    result = StepResult.model_validate_json(text)
    assert result.step == 1
    # Moments and random numbers came along: the next update is the very one that the first run made.
    assert result.policy.digest == expected.policy.digest


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        ({"uid": "uid-2"}, "CheckpointMismatch", "warmStartFrom"),
        ({"lora": {"rank": 8}}, "CheckpointMismatch", "rank is 4 in the checkpoint and 8 in this run"),
        ({"model": "other/model"}, "CheckpointMismatch", "other/model"),
        ({"lora": {"target_modules": ["q_proj"]}}, "CheckpointMismatch", "target_modules"),
        ({"resume_from": "missing"}, "S3NotFound", "no manifest"),
        ({"resume_from": "adapter"}, "CheckpointMismatch", "of kind Adapter, not Checkpoint"),
        ({"resume_from": "http://x"}, "SessionInvalid", "s3://"),
        ({"run_uri": "/tmp/x"}, "SessionInvalid", "s3://"),
        ({"lora": {"target_modules": ["nope"]}, "resume_from": None}, "AdapterInvalid", "nope"),
    ],
)
async def test_a_session_that_cannot_open_leaves_its_slot_free(
    client: Client, run_uri: str, changes: dict[str, Any], reason: str, words: str
) -> None:
    await client.open(tiny_model.spec(run_uri), "first")
    await client.save("checkpoints", 0, name="first")
    await client.save("adapters", 0, name="first")
    await client.settled("first")
    uris = {"missing": f"{run_uri}/checkpoints/step-000999", "adapter": str(layout(run_uri).adapter(0))}
    given = {"resume_from": str(layout(run_uri).checkpoint(0))} | changes
    given["resume_from"] = uris.get(given["resume_from"], given["resume_from"])
    uri = given.pop("run_uri", run_uri)
    for _ in range(2):
        status, text = await client.call(
            "PUT", "/sessions/second", tiny_model.spec(uri, **given).model_dump_json(by_alias=True)
        )
        problem = Problem.model_validate_json(text)
        assert (status, problem.reason) == (422, reason)
        assert words in problem.message.replace("manifest.json", "manifest")
    await client.open(tiny_model.spec(run_uri + "-2", uid="uid-3"), "second")


async def test_a_checkpoint_fits_another_spelling_of_the_same_layers(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.save("checkpoints", 0)
    await client.settled()
    await client.call("DELETE", "/sessions/run")
    resumed = {"lora": {"target_modules": ["all-linear"]}, "resume_from": str(layout(run_uri).checkpoint(0))}
    await client.open(tiny_model.spec(run_uri, **resumed))
    await client.call("DELETE", "/sessions/run")
    # Layers are compared, not names: a part of the layers does not fit.
    await client.open(tiny_model.spec(run_uri + "-2", uid="uid-2", lora={"target_modules": ["q_proj"]}), "second")
    await client.save("checkpoints", 0, name="second")
    await client.settled("second")
    await client.call("DELETE", "/sessions/second")
    other = {"lora": {"target_modules": ["all-linear"]}, "warm_start_from": str(layout(run_uri + "-2").checkpoint(0))}
    status, text = await client.call(
        "PUT", "/sessions/third", tiny_model.spec(run_uri + "-3", uid="uid-3", **other).model_dump_json(by_alias=True)
    )
    problem = Problem.model_validate_json(text)
    assert (status, problem.reason) == (422, "CheckpointMismatch")
    assert "lora.targetModules" in problem.message


async def test_findings_about_model_and_adapter_are_in_the_state(client: Client, base: BaseModel, run_uri: str) -> None:
    base.warnings.append(Problem(reason="PackingDisabled", message="one sample per row"))
    state = await client.open(tiny_model.spec(run_uri))
    base.slots["run"].warnings.append(Problem(reason="LoraTargetsIncomplete", message="conv"))
    assert state.warnings == base.warnings
    assert [w.reason for w in (await client.state()).warnings] == ["PackingDisabled", "LoraTargetsIncomplete"]


async def test_the_same_session_with_another_spec_is_refused(client: Client, run_uri: str) -> None:
    state = await client.open(tiny_model.spec(run_uri))
    body = tiny_model.spec(run_uri, learning_rate=5e-3).model_dump_json(by_alias=True)
    status, text = await client.call("PUT", "/sessions/run", body)
    assert status == 422
    assert "learning_rate is 0.01" in text
    body = tiny_model.spec(run_uri, sampling={"temperature": 0.5}).model_dump_json(by_alias=True)
    status, text = await client.call("PUT", "/sessions/run", body)
    assert status == 422
    assert "sampling.temperature is 1.0, but 0.5 was requested" in text
    # Where to start from means nothing to a session that is open.
    assert await client.open(tiny_model.spec(run_uri, resume_from=f"{run_uri}/checkpoints/step-000007")) == state


async def test_more_runs_than_slots_wait(client: Client, run_uri: str) -> None:
    for name in ("a", "b"):
        await client.open(tiny_model.spec(f"{run_uri}-{name}", uid=name), name)
    body = tiny_model.spec(f"{run_uri}-c", uid="c").model_dump_json(by_alias=True)
    status, text = await client.call("PUT", "/sessions/c", body)
    assert (status, Problem.model_validate_json(text).reason) == (503, "NoFreeSlot")
    assert (await client.call("DELETE", "/sessions/a"))[0] == 204
    assert (await client.call("DELETE", "/sessions/a"))[0] == 204
    await client.open(tiny_model.spec(f"{run_uri}-c", uid="c"), "c")


async def test_a_step_that_was_not_published_is_published_when_asked_again(
    client: Client, s3_server: S3Server, store: Store, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.open(tiny_model.spec(run_uri))
    await client.step(0)
    publisher = client.sessions.get("run")._publisher
    trained: list[int] = []

    def counted(*arguments: Any) -> Units[dict[str, float]]:
        trained.append(1)
        return (yield from step_units(*arguments))

    monkeypatch.setattr("rlrun_trainer.torch_backend.collective_executor.step_units", counted)
    stranger = Store(S3Connection(endpoint=s3_server.endpoint), access_key_id="x", secret_access_key="y")
    monkeypatch.setattr(publisher, "_store", stranger)
    status, text = await client.raw_step(1, 1)
    assert (status, Problem.model_validate_json(text).reason) == (503, "S3AccessDenied")
    state = await client.state()
    assert (state.step, state.policy.version) == (2, 1)
    monkeypatch.setattr(publisher, "_store", store)
    result = await client.step(1)
    assert (result.step, result.policy.version) == (2, 2)
    assert store.is_complete(S3Uri.parse(result.policy.uri))
    assert len(trained) == 1


def test_waits_grow_to_a_bound() -> None:
    assert [uploads_module.wait_after(n) for n in (1, 2, 3, 7, 50)] == [1, 2, 4, 60, 60]


async def test_health_answers_while_a_step_computes(
    client: Client, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.open(tiny_model.spec(run_uri))
    started, go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Units[dict[str, float]]:
        started.set()
        assert go_on.wait(30)
        return (yield from step_units(*arguments))

    monkeypatch.setattr("rlrun_trainer.torch_backend.collective_executor.step_units", slow)
    step = asyncio.create_task(client.step(0))
    assert await asyncio.to_thread(started.wait, 30)
    for path in ("/healthz", "/readyz", "/metrics", "/sessions/run"):
        status, _ = await asyncio.wait_for(client.call("GET", path), 5)
        assert status == 200
    assert not step.done()
    go_on.set()
    assert (await step).step == 1


async def test_a_client_that_gives_up_does_not_stop_the_step(
    client: Client, run_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.open(tiny_model.spec(run_uri))
    go_on = threading.Event()

    def slow(*arguments: Any) -> Units[dict[str, float]]:
        assert go_on.wait(30)
        return (yield from step_units(*arguments))

    monkeypatch.setattr("rlrun_trainer.torch_backend.collective_executor.step_units", slow)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.step(0), 0.5)
    go_on.set()
    result = await client.step(0)
    assert result.step == 1
    assert (await client.state()).step == 1


async def test_bad_bodies_name_the_field(client: Client, run_uri: str) -> None:
    status, text = await client.call("PUT", "/sessions/run", '{"runUri": 1}')
    assert status == 422
    problem = Problem.model_validate_json(text)
    assert problem.reason == "SessionSpecInvalid"
    assert "runUri: Input should be a valid string" in problem.message
    await client.open(tiny_model.spec(run_uri))
    status, text = await client.call("POST", "/sessions/run/steps/0", "not json")
    assert (status, Problem.model_validate_json(text).reason) == (422, "TrainBatchInvalid")
    status, text = await client.call("POST", "/sessions/run/steps/0", body_of([]))
    assert (status, Problem.model_validate_json(text).reason) == (422, "BatchInvalid")
    assert (await client.state()).step == 0
    status, text = await client.call("POST", "/sessions/other/steps/0", body_of([]))
    assert (status, Problem.model_validate_json(text).reason) == (404, "SessionMissing")
    status, text = await client.call("GET", "/nowhere")
    assert (status, Problem.model_validate_json(text).reason) == (404, "NotFound")


async def test_no_step_beyond_the_last(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri, max_steps=1))
    await client.step(0)
    status, text = await client.raw_step(1, 1)
    assert (status, Problem.model_validate_json(text).reason) == (422, "RunComplete")


async def test_a_trainer_of_one_model_refuses_others(make_client: Callable[..., Any], run_uri: str) -> None:
    client = await make_client(model="some/other")
    status, text = await client.call("PUT", "/sessions/run", tiny_model.spec(run_uri).model_dump_json(by_alias=True))
    assert (status, Problem.model_validate_json(text).reason) == (422, "ModelMismatch")


async def test_a_missing_bucket_or_wrong_key_is_reported_when_a_session_opens(
    client: Client, s3_server: S3Server, run_uri: str
) -> None:
    status, text = await client.call(
        "PUT", "/sessions/run", tiny_model.spec("s3://no-such-bucket/x").model_dump_json(by_alias=True)
    )
    assert (status, Problem.model_validate_json(text).reason) == (503, "S3BucketMissing")
    client.sessions._store = Store(S3Connection(endpoint=s3_server.endpoint), access_key_id="x", secret_access_key="y")
    status, text = await client.call("PUT", "/sessions/run", tiny_model.spec(run_uri).model_dump_json(by_alias=True))
    assert (status, Problem.model_validate_json(text).reason) == (503, "S3AccessDenied")


async def test_prometheus_sees_the_newest_step(client: Client, run_uri: str) -> None:
    await client.open(tiny_model.spec(run_uri))
    result = await client.step(0)
    _, text = await client.call("GET", "/metrics")
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert float(values['trainer_step{session="run"}']) == 1
    assert float(values['trainer_loss{session="run"}']) == pytest.approx(result.metrics["loss/mean"])
    assert float(values['trainer_throughput_tokens_per_sec{session="run"}']) > 0
    for name in (
        "last_step_timestamp_seconds",
        "grad_norm",
        "learning_rate",
        "entropy",
        "mismatch_kl",
    ):
        assert f'trainer_{name}{{session="run"}}' in values
    await client.call("DELETE", "/sessions/run")
    _, text = await client.call("GET", "/metrics")
    assert 'session="run"' not in text


async def test_not_ready_before_the_model_is_loaded() -> None:
    http: TestClient[Any, Any] = TestClient(TestServer(Server().application()))
    await http.start_server()
    try:
        async with http.get("/healthz") as response:
            assert response.status == 200
        for method, path in (("GET", "/readyz"), ("GET", "/sessions/x"), ("PUT", "/sessions/x")):
            async with http.request(method, path) as response:
                assert response.status == 503
                assert (await response.json())["reason"] == "TrainerLoading"
    finally:
        await http.close()
