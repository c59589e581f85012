"""The Tinker API between a client and fakes of rlrun-server and the trainer, all over TCP."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlrun.api.base.phases import Phase
from rlrun.api.base.received import InputInvalid
from rlrun.constants import Reason
from rlrun.protocol.client_command import (
    MAX_RESULT_BYTES,
    MAX_TARGETS,
    CommandError,
    CommandResult,
    ErrorCategory,
    OptimStep,
    SaveState,
    frame,
)
from rlrun.protocol.client_run import ModelId, SavedState, SavedStates
from rlrun.protocol.problem import Problem
from rlrun_tinker.app import ANSWER_BYTES, MAX_BODY, MAX_JSON
from rlrun_tinker.futures import FutureId, FutureKind
from rlrun_tinker.metrics import REGISTRY
from rlrun_tinker.pool_trainer_client import RESULTS

from tests.support.tinker_backend import MODEL, TinkerBackend, serving_tinker
from tests.support.tinker_messages import message
from tests.unit.rlrun_tinker.test_forward_backward import datum, floats, request

ADAM = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}


@pytest.fixture
async def backend() -> AsyncIterator[TinkerBackend]:
    async with serving_tinker() as found:
        yield found


def body(model: str, seq: int, *datums: Any, **fields: Any) -> bytes:
    made = request(*(datums or [datum([1, 2], target_tokens=floats(2, 3), weights=floats(1, 1))]), **fields)
    made.model_id, made.seq_id = model, seq
    data: bytes = made.SerializeToString()
    return data


def optim(model: str, seq: int, **params: Any) -> dict[str, Any]:
    return {"model_id": model, "seq_id": seq, "adam_params": {**ADAM, **params}, "type": "optim_step"}


def save(model: str, seq: int, name: str | None = "a", **others: Any) -> dict[str, Any]:
    return {"model_id": model, "seq_id": seq, "path": name, **others}


async def test_a_client_begins(backend: TinkerBackend) -> None:
    assert (await backend.client.get("/api/v1/healthz")).json() == {"status": "ok"}
    config = (await backend.post("client/config", {"sdk_version": "0.38.0"})).json()
    assert not config["proto_compress_fwdbwd"]
    assert (await backend.post("client/dynamic_config", {"sdk_version": "x"})).json()["refresh_interval_sec"] == 300
    session = (await backend.post("create_session", {"tags": [], "type": "create_session"})).json()
    assert re.fullmatch(r"ts-[0-9a-f]{12}\.team", session["session_id"])
    assert "train_unembed" in session["warning_message"]
    assert "RLModel" in session["warning_message"], "which may adapt a part of the layers only"
    assert (await backend.post("telemetry", {"events": ["x" * 10_000]})).json() == {"status": "accepted"}
    assert (await backend.post(f"sessions/{session['session_id']}/finish", {"reason": {}})).status_code == 204
    headers = {"X-API-Key": "tml-ann"}
    found = (await backend.client.get("/api/v1/get_server_capabilities", headers=headers)).json()
    assert found["supported_models"] == [
        {"model_name": MODEL, "max_context_length": 4096, "trainable": True, "sampleable": True}
    ]


@pytest.mark.parametrize(
    ("key", "status", "text"),
    [
        ("", 401, "TINKER_API_KEY"),
        ("ann", 401, "TINKER_API_KEY"),
        ("tml-", 401, "TINKER_API_KEY"),
        ("tml-a b", 401, "TINKER_API_KEY"),
        ("tml-unknown", 401, "not valid"),
        ("eyJunknown", 401, "not valid"),
    ],
)
async def test_a_wrong_key_says_what_to_set(backend: TinkerBackend, key: str, status: int, text: str) -> None:
    answer = await backend.post("create_session", {}, key)
    assert answer.status_code == status
    assert text in answer.json()["detail"]


async def test_guesses_of_keys_are_limited(backend: TinkerBackend) -> None:
    await backend.model()
    answers = [(await backend.post("create_session", {}, f"tml-{number}")).status_code for number in range(60)]
    assert answers == [401] * 50 + [429] * 10
    # A key that was accepted is not a guess.
    assert (await backend.post("create_session")).status_code == 200
    backend.now[0] += 3600
    assert (await backend.post("create_session", {}, "tml-x")).status_code == 401
    assert (await backend.post("create_session")).status_code == 200


async def test_new_keys_that_are_valid_are_no_guesses(backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients of an Ingress have one address."""
    monkeypatch.setattr("tests.support.tinker_backend.KEYS", {str(number): "team" for number in range(200)})
    answers = [(await backend.post("create_session", {}, f"tml-{number}")).status_code for number in range(200)]
    assert answers == [200] * 200


async def test_a_key_that_has_ended_is_a_guess_again(backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    await backend.post("create_session")
    monkeypatch.setattr("tests.support.tinker_backend.KEYS", {})
    answers = [(await backend.post("create_session")).status_code for _ in range(60)]
    assert answers == [401] * 51 + [429] * 9


async def test_a_body_of_a_stranger_is_not_decoded(backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = list[bytes]()

    def note(body: bytes, _: Any) -> bytes:
        decoded.append(body)
        raise InputInvalid("x", "y")

    monkeypatch.setattr("rlrun_tinker.app._decode", note)
    for large in (False, True):
        answer = await backend.send("forward_backward", bytes(2**20 if large else 9), "tml-stranger")
        assert answer.status_code == 401
    assert decoded == []
    assert (await backend.send("forward_backward", b"x")).status_code == 400
    assert decoded == [b"x"]


async def test_a_training_step(backend: TinkerBackend) -> None:
    model = await backend.model()
    first = await backend.send("forward_backward", body(model, 1))
    second = await backend.post("optim_step", optim(model, 2))
    assert (first.status_code, second.status_code) == (200, 200)
    output = message("ForwardBackwardOutput")
    answer = await backend.retrieve(first)
    assert answer.headers["Content-Type"] == "application/x-protobuf"
    output.ParseFromString(answer.content)
    assert dict(output.metrics) == {"loss:sum": 1.5}
    assert output.loss_fn_outputs[0].num_datums == 1
    assert (await backend.retrieve(second)).json() == {"metrics": {}}
    # A result can be read again.
    assert (await backend.retrieve(first)).content == answer.content
    uid = backend.server.one().uid
    assert backend.trainer.header(uid, 2) == OptimStep(**ADAM)
    assert backend.trainer.header(uid, 1).loss == "cross_entropy"


async def test_an_early_command_waits_for_those_before_it(backend: TinkerBackend) -> None:
    model = await backend.model()
    later = await backend.send("forward_backward", body(model, 2))
    waiting = await backend.retrieve(later)
    assert waiting.status_code == 408
    assert waiting.json() == {
        "type": "try_again",
        "request_id": later.json()["request_id"],
        "queue_state": "active",
        "queue_state_reason": "another run trains",
    }
    await backend.send("forward_backward", body(model, 1))
    both = await asyncio.gather(backend.retrieve(later), backend.retrieve(later))
    assert [answer.status_code for answer in both] == [200, 200]
    assert both[0].content == both[1].content


async def test_a_replica_that_ends_lets_no_client_wait() -> None:
    async with serving_tinker(poll_seconds=3.0) as backend:
        model = await backend.model()
        later = await backend.post("optim_step", optim(model, 2))
        waiting = asyncio.create_task(backend.retrieve(later))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        backend.api.leave()
        async with asyncio.timeout(2):
            answer = await waiting
        assert (answer.status_code, answer.json()["type"], answer.headers["Connection"]) == (408, "try_again", "close")
        backend.trainer.proves = False
        async with asyncio.timeout(2):
            assert (await backend.post("optim_step", optim(model, 3))).status_code == 503


async def test_a_repeated_request_is_the_same_future_and_another_one_is_refused(backend: TinkerBackend) -> None:
    model = await backend.model()
    answers = [(await backend.send("forward_backward", body(model, 1))).json() for _ in range(2)]
    assert answers[0] == answers[1]
    other = await backend.post("optim_step", optim(model, 1))
    assert other.status_code == 400, "the SDK repeats a request that is refused with 409"
    assert "another content" in other.json()["detail"]


async def test_states_are_saved_shown_and_deleted(backend: TinkerBackend) -> None:
    model = await backend.model(user_metadata=None)
    saved = await backend.post("save_weights", save(model, 1, ttl_seconds=3600, user_metadata={"a": "b"}))
    adapter = await backend.post("save_weights_for_sampler", save(model, 2, "final", type="save_weights_for_sampler"))
    unnamed = await backend.post("save_weights", save(model, 3, None))
    path = f"tinker://{model}/weights/a"
    assert (await backend.retrieve(saved)).json() == {"path": path, "type": "save_weights"}
    sampler = (await backend.retrieve(adapter)).json()
    assert sampler == {"path": f"tinker://{model}/sampler_weights/final", "type": "save_weights_for_sampler"}
    assert (await backend.retrieve(unnamed)).json()["path"] == f"tinker://{model}/weights/000003"
    command = backend.trainer.header(backend.server.one().uid, 1)
    assert isinstance(command, SaveState)
    assert (command.ttl_seconds, command.user_metadata, command.overwrite) == (3600, {"a": "b"}, False)
    info = (await backend.post("weights_info", {"tinker_path": path})).json()
    assert (info["base_model"], info["is_lora"], info["lora_rank"]) == (MODEL, True, 8)
    headers = {"X-API-Key": "tml-ann"}
    run = (await backend.client.get(f"/api/v1/training_runs/{model}", headers=headers)).json()
    assert run["last_checkpoint"]["tinker_path"] == f"tinker://{model}/weights/000003"
    assert run["last_sampler_checkpoint"]["checkpoint_id"] == "sampler_weights/final"
    assert run["last_sampler_checkpoint"]["expires_at"] is None
    place = f"/api/v1/training_runs/{model}/checkpoints/weights/a"
    assert (await backend.client.delete(place, headers=headers)).status_code == 204
    assert (await backend.post("weights_info", {"tinker_path": path})).status_code == 404
    assert (await backend.client.delete(place, headers=headers)).status_code == 404


async def test_the_time_of_a_checkpoint_is_changed(backend: TinkerBackend) -> None:
    model = await backend.model()
    await backend.retrieve(await backend.post("save_weights", save(model, 1, ttl_seconds=3600)))
    headers = {"X-API-Key": "tml-ann"}
    run = f"/api/v1/training_runs/{model}"
    place = f"{run}/checkpoints/weights/a/ttl"
    for seconds in (None, 7200):
        answer = await backend.client.put(place, json={"ttl_seconds": seconds}, headers=headers)
        assert (answer.status_code, answer.content) == (204, b"")
        shown = (await backend.client.get(run, headers=headers)).json()["last_checkpoint"]["expires_at"]
        assert (shown is None) == (seconds is None)
    for body in ({"ttl_seconds": 0}, {"ttl_seconds": 400_000_000}, {}):
        answer = await backend.client.put(place, json=body, headers=headers)
        assert (answer.status_code, "ttl_seconds" in answer.json()["detail"]) == (400, True)
    other = f"{run}/checkpoints/weights/b/ttl"
    assert (await backend.client.put(other, json={"ttl_seconds": None}, headers=headers)).status_code == 404


async def test_a_used_name_is_a_failure_of_the_user(backend: TinkerBackend) -> None:
    model = await backend.model()
    await backend.post("save_weights", save(model, 1))
    answer = await backend.retrieve(await backend.post("save_weights", save(model, 2)))
    assert answer.json() == {"error": "a is used", "category": "user"}


async def test_a_model_starts_from_a_saved_state(backend: TinkerBackend) -> None:
    model = await backend.model()
    session = model.partition(":")[0]
    path = f"tinker://{model}/weights/a"
    load = {"session_id": session, "model_seq_id": 1, "path": path, "optimizer": True, "type": "load_weights"}
    answer = await backend.post("load_weights", load)
    assert (await backend.retrieve(answer)).json() == {"model_id": f"{session}:train:1", "type": "load_weights"}
    _, _, sent = next(each for each in reversed(backend.server.requests) if each[0] == "PUT")
    assert json.loads(sent)["load"] == {"path": path, "optimizer": True}
    info = (await backend.post("get_info", {"model_id": f"{session}:train:1"})).json()
    assert info["model_data"]["model_name"] == info["model_name"] == MODEL


async def test_a_run_that_waits_says_why(backend: TinkerBackend) -> None:
    backend.server.is_full = True
    session = (await backend.post("create_session")).json()["session_id"]
    new = {"session_id": session, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 8}}
    created = await backend.post("create_model", new)
    waiting = await backend.retrieve(created)
    assert waiting.status_code == 408
    assert (waiting.json()["queue_state"], waiting.json()["queue_state_reason"]) == ("paused_capacity", "3 runs ahead")
    early = await backend.send("forward_backward", body(f"{session}:train:0", 1))
    assert (early.status_code, early.headers["Retry-After"]) == (408, "10")
    assert "3 runs ahead" in early.json()["detail"]
    backend.server.is_full = False
    backend.now[0] += 2
    assert (await backend.retrieve(created)).json() == {"model_id": f"{session}:train:0", "type": "create_model"}


async def test_a_trainer_that_does_not_have_the_run_yet_is_asked_again(backend: TinkerBackend) -> None:
    model = await backend.model()
    sent = await backend.send("forward_backward", body(model, 1))
    backend.trainer.tokens.clear()
    backend.now[0] += 2
    opened = backend.server.count("POST", "/open")
    # The first look fails, the second asks rlrun-server again.
    assert (await backend.retrieve(sent)).status_code == 200
    assert backend.server.count("POST", "/open") == opened + 1
    backend.trainer.tokens.clear()
    backend.now[0] += 2
    assert (await backend.send("forward_backward", body(model, 2))).status_code == 200


async def test_requests_that_wait_for_a_trainer_ask_rlrun_server_together(backend: TinkerBackend) -> None:
    """rlrun-server limits the requests of a namespace, whose other users must not notice a trainer that restarts."""
    model = await backend.model()
    sent = [await backend.post("optim_step", optim(model, seq)) for seq in range(1, 9)]
    backend.trainer.proves = False
    backend.now[0] += 2
    opened = backend.server.count("POST", "/open")
    answers = await asyncio.gather(*(backend.retrieve(each) for each in sent))
    assert {answer.status_code for answer in answers} == {408}
    assert backend.server.count("POST", "/open") == opened + 1


async def test_a_command_waits_for_the_trainer_to_have_less_to_do(backend: TinkerBackend) -> None:
    model = await backend.model()
    backend.trainer.refusal = (429, Problem(reason="TooManyCommands", message="64 commands wait"))
    sending = asyncio.create_task(backend.send("forward_backward", body(model, 1)))
    async with asyncio.timeout(10):
        while not backend.trainer.arrived:  # noqa: ASYNC110  # there is no event for it
            await asyncio.sleep(0.01)
    backend.trainer.refusal = None
    assert (await sending).status_code == 200


@pytest.mark.parametrize("attack", ["proof", "address"])
async def test_a_response_without_proof_is_discarded(backend: TinkerBackend, attack: str) -> None:
    model = await backend.model()
    sent = await backend.send("forward_backward", body(model, 1))
    if attack == "proof":
        backend.trainer.proves = False
    else:
        backend.now[0] += 60
        backend.trainer.url = "http://127.0.0.1:1"
    refused = await backend.send("forward_backward", body(model, 2))
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "10")
    answer = await backend.retrieve(sent)
    assert (answer.status_code, answer.json()["queue_state"]) == (408, "paused_capacity")


async def test_a_lost_command_names_the_state_to_continue_from(backend: TinkerBackend) -> None:
    model = await backend.model()
    lost = await backend.send("forward_backward", body(model, 2))
    backend.trainer.restart()
    answer = (await backend.retrieve(lost)).json()
    assert answer["category"] == "server"
    assert "restarted, or the run was suspended, before the result of request 2 was read" in answer["error"]
    assert "no state of this model has been saved" in answer["error"]
    times = {name: SavedState(step=step, time=datetime.now(UTC)) for name, step in (("old", 1), ("new", 5))}
    backend.trainer.names[backend.server.one().uid] = SavedStates(weights=times)
    assert f"tinker://{model}/weights/new" in (await backend.retrieve(lost)).json()["error"]


async def test_a_lost_command_waits_for_rlrun_server(backend: TinkerBackend) -> None:
    """The SDK would repeat a request that is rejected with 503 at once, again and again."""
    model = await backend.model()
    lost = await backend.send("forward_backward", body(model, 2))
    backend.trainer.restart()
    backend.server.failure = (503, Problem(reason="Unavailable", message="rlrun-server ends"))
    began = asyncio.get_running_loop().time()
    answer = await backend.retrieve(lost)
    assert (answer.status_code, answer.json()["queue_state"]) == (408, "paused_capacity")
    assert asyncio.get_running_loop().time() - began >= 0.2
    backend.server.failure = None
    assert (await backend.retrieve(lost)).json()["category"] == "server"


async def test_a_result_that_is_too_large_is_a_failure(backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would ask for it forever."""
    monkeypatch.setattr("rlrun_tinker.pool_trainer_client.MAX_RESULT_BYTES", 100_000)
    model = await backend.model()
    backend.trainer.result_size = 100_001
    answer = await backend.retrieve(await backend.send("forward_backward", body(model, 1)))
    assert answer.json()["category"] == "server"
    assert "more than the maximum" in answer.json()["error"]


def test_the_largest_result_can_be_received() -> None:
    count = 4096
    header = CommandResult(lengths=[MAX_TARGETS // count] * count, widths=[2**24] * count, metrics={"x:sum": 1.0})
    assert len(frame(header)) + 4 * MAX_TARGETS <= MAX_RESULT_BYTES
    assert all(share >= MAX_RESULT_BYTES for share in (*RESULTS, *ANSWER_BYTES))


async def test_a_failed_command_and_an_ended_run_are_failures(backend: TinkerBackend) -> None:
    model = await backend.model()
    backend.trainer.error = CommandError(message="token 7 is out of range", category=ErrorCategory.user)
    sent = await backend.send("forward_backward", body(model, 1))
    assert (await backend.retrieve(sent)).json() == {"error": "token 7 is out of range", "category": "user"}
    backend.server.change(has_ended=True, phase=Phase.failed)
    backend.now[0] += 60
    ended = (await backend.retrieve(sent)).json()
    assert (ended["category"], "has ended (Failed): 3 runs ahead. Create" in ended["error"]) == ("user", True)
    refused = await backend.send("forward_backward", body(model, 2))
    assert (refused.status_code, "has ended" in refused.json()["detail"]) == (400, True)
    # The operator has not seen `spec.stop` yet.
    backend.server.change(has_ended=True, phase=Phase.running)
    backend.now[0] += 60
    assert "was stopped or deleted. Create" in (await backend.retrieve(sent)).json()["error"]


async def test_a_diverged_run_has_metrics_that_are_no_numbers(backend: TinkerBackend) -> None:
    model = await backend.model()
    backend.trainer.metrics = {"loss:sum": float("nan")}
    output = message("ForwardBackwardOutput")
    output.ParseFromString((await backend.retrieve(await backend.send("forward_backward", body(model, 1)))).content)
    assert output.metrics["loss:sum"] != output.metrics["loss:sum"]


async def test_a_large_result_is_announced_first(backend: TinkerBackend) -> None:
    model = await backend.model()
    size = 2 * 1024**2
    targets = message("Tensor")
    targets.dense, targets.dtype, targets.shape[:] = bytes(4 * size), 1, [size]
    sent = await backend.send("forward_backward", body(model, 1, datum([1], target_tokens=targets)))
    announced = await backend.retrieve(sent, allow_metadata_only=True)
    assert announced.json() == {"status": "complete_metadata", "response_payload_size": 4 * size}
    answer = await backend.retrieve(sent, allow_metadata_only=False)
    assert len(answer.content) > 4 * size


@pytest.mark.parametrize(
    ("status", "expected"), [(429, 429), (422, 400), (413, 400), (408, 503), (500, 500), (507, 503)]
)
async def test_refusals_of_the_trainer(backend: TinkerBackend, status: int, expected: int) -> None:
    model = await backend.model()
    backend.trainer.refusal = (status, Problem(reason="TooManyCommands", message="64 commands wait"))
    answer = await backend.send("forward_backward", body(model, 1))
    assert (answer.status_code, answer.json()["detail"]) == (expected, "64 commands wait")


@pytest.mark.parametrize(
    ("status", "expected"), [(429, 429), (404, 404), (403, 403), (409, 400), (500, 503), (503, 503)]
)
async def test_refusals_of_rlrun_server(backend: TinkerBackend, status: int, expected: int) -> None:
    session = (await backend.post("create_session")).json()["session_id"]
    backend.server.failure = (status, Problem(reason=Reason.CLIENT_MODEL_CONFLICT, message="the reason"))
    new = {"session_id": session, "model_seq_id": 0, "base_model": MODEL, "lora_config": {"rank": 8}}
    answer = await backend.post("create_model", new)
    assert answer.status_code == expected
    assert "the reason" in answer.json()["detail"]


async def test_ids_of_another_tenant_are_refused(backend: TinkerBackend) -> None:
    model = await backend.model()
    sent = await backend.send("forward_backward", body(model, 1))
    path = f"tinker://{model}/weights/a"
    headers = {"X-API-Key": "tml-bob"}
    session = model.partition(":")[0]
    answers = [
        await backend.send("forward_backward", body(model, 2), "tml-bob"),
        await backend.post("optim_step", optim(model, 2), "tml-bob"),
        await backend.post("save_weights", save(model, 2), "tml-bob"),
        await backend.retrieve(sent, "tml-bob"),
        await backend.post("get_info", {"model_id": model}, "tml-bob"),
        await backend.post("weights_info", {"tinker_path": path}, "tml-bob"),
        await backend.post("session_heartbeat", {"session_id": session}, "tml-bob"),
        await backend.client.get(f"/api/v1/training_runs/{model}", headers=headers),
        await backend.client.delete(f"/api/v1/training_runs/{model}/checkpoints/weights/a", headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [403] * len(answers)
    assert backend.trainer.arrived == [1]
    assert not backend.trainer.heartbeats[backend.server.one().uid] > 1


async def test_a_model_is_opened_once_in_a_while_for_each_caller(backend: TinkerBackend) -> None:
    model = await backend.model()
    for seq in range(1, 6):
        await backend.post("optim_step", optim(model, seq))
    assert backend.server.count("POST", "/open") == 1
    backend.now[0] += 31
    await backend.post("optim_step", optim(model, 6))
    assert backend.server.count("POST", "/open") == 2


async def test_heartbeats_reach_all_models_of_a_session(backend: TinkerBackend) -> None:
    model = await backend.model()
    session = model.partition(":")[0]
    uid = backend.server.one().uid
    before = backend.trainer.heartbeats[uid]
    beat = {"session_id": session, "type": "session_heartbeat"}
    assert (await backend.post("session_heartbeat", beat)).json() == {"type": "session_heartbeat"}
    assert backend.trainer.heartbeats[uid] == before + 1
    # Another replica knows no model of the session, and finds them. A number without a model may be between.
    second = {"session_id": session, "model_seq_id": 2, "base_model": MODEL, "lora_config": {"rank": 8}}
    await backend.post("create_model", second)
    async with serving_tinker() as other:
        other.server.models, other.server.trainer = backend.server.models, backend.trainer
        assert (await other.post("session_heartbeat", beat)).status_code == 200
        reads = other.server.count("GET")
        await other.post("session_heartbeat", beat)
        assert other.server.count("GET") == reads, "it searches once in a while"
    assert backend.trainer.heartbeats[uid] == before + 3
    assert sum(backend.trainer.heartbeats.values()) == before + 5


async def test_heartbeats_do_not_fail_with_the_trainer(backend: TinkerBackend) -> None:
    model = await backend.model()
    backend.trainer.proves = False
    assert (await backend.post("session_heartbeat", {"session_id": model.partition(":")[0]})).status_code == 200
    backend.server.failure = (500, Problem(reason="InternalError", message="no"))
    # Nothing is known about the models of this session.
    assert (await backend.post("session_heartbeat", {"session_id": "ts-0123456789ab.team"})).status_code == 503


async def test_an_open_run_does_not_wait_for_rlrun_server(
    backend: TinkerBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may accept connections and not respond."""
    monkeypatch.setattr("rlrun_tinker.open_models.KEPT_SECONDS", 0.1)
    monkeypatch.setattr("rlrun_tinker.open_models.HEARTBEAT_SECONDS", 0.5)
    model = await backend.model()
    sent = await backend.send("forward_backward", body(model, 1))
    backend.server.delay = 2.0
    backend.now[0] += 60
    began = asyncio.get_running_loop().time()
    assert (await backend.retrieve(sent)).status_code == 200
    before = backend.trainer.heartbeats.total()
    assert (await backend.post("session_heartbeat", {"session_id": model.partition(":")[0]})).status_code == 200
    assert backend.trainer.heartbeats.total() == before + 1
    assert asyncio.get_running_loop().time() - began < 1.5


async def test_an_open_run_goes_on_without_rlrun_server(backend: TinkerBackend) -> None:
    model = await backend.model()
    backend.server.failure = (503, Problem(reason="Unavailable", message="rlrun-server ends"))
    backend.now[0] += 3000
    sent = await backend.send("forward_backward", body(model, 1))
    assert (await backend.retrieve(sent)).status_code == 200
    before = backend.trainer.heartbeats.total()
    await backend.post("session_heartbeat", {"session_id": model.partition(":")[0]})
    assert backend.trainer.heartbeats.total() == before + 1
    # Another caller has nothing that rlrun-server has opened for it.
    assert (await backend.send("forward_backward", body(model, 2), "tml-bob")).status_code == 503
    other = await backend.retrieve(sent, "tml-bob")
    assert (other.status_code, other.json()["queue_state"]) == (408, "paused_capacity"), "not an immediate repetition"
    backend.server.failure = (403, Problem(reason="AccessForbidden", message="no longer"))
    backend.now[0] += 60
    assert (await backend.retrieve(sent)).status_code == 403


NEW = {"session_id": "ts-0123456789ab.team", "model_seq_id": 0, "base_model": MODEL}
PATH = "tinker://ts-0123456789ab.team:train:0/weights/a"
MODEL_ID = "ts-0123456789ab.team:train:0"


@pytest.mark.parametrize(
    ("route", "sent", "status", "text"),
    [
        ("create_model", NEW, 400, "create_lora_training_client"),
        ("create_model", {**NEW, "lora_config": {"rank": 0}}, 400, "rank: Input should be greater"),
        ("create_model", {**NEW, "lora_config": {"rank": 8, "train_mlp": False}}, 400, "RLModel"),
        ("create_model", {**NEW, "lora_config": {"rank": 8, "seed": -1}}, 400, "seed"),
        (
            "create_model",
            {**NEW, "lora_config": {"rank": 8}, "optimizer_config": {"type": "dimuon"}},
            400,
            "'dimuon' is not supported",
        ),
        ("create_model", {**NEW, "lora_config": {"rank": 8}, "base_model": "x"}, 400, "x does not exist"),
        ("create_model", {**NEW, "lora_config": {"rank": 8}, "user_metadata": {"a": "b" * 20_000}}, 400, "larger than"),
        ("create_model", {**NEW, "session_id": "x"}, 404, "not a session id"),
        ("create_model", {**NEW, "model_seq_id": -1}, 400, "model_seq_id"),
        ("load_weights", {"model_id": MODEL_ID, "seq_id": 1, "path": PATH, "optimizer": True}, 400, "from_state(path)"),
        ("load_weights", {**NEW, "path": "x", "optimizer": True}, 404, "not the path of a saved state"),
        (
            "load_weights",
            {**NEW, "path": PATH.replace("weights", "sampler_weights"), "optimizer": True},
            400,
            "for sampling only",
        ),
        ("load_weights", {**NEW, "path": PATH, "optimizer": True, "weights_access_token": "t"}, 400, "access to its"),
        ("optim_step", {"model_id": MODEL_ID, "seq_id": 1, "optimizer_params": {"type": "dimuon"}}, 400, "'dimuon'"),
        ("optim_step", {"model_id": MODEL_ID, "seq_id": 1, "adam_params": {"beta1": 2}}, 400, "`adam_params`: beta1"),
        ("optim_step", {"model_id": MODEL_ID, "seq_id": 0, "adam_params": {}}, 400, "seq_id"),
        ("optim_step", {"model_id": MODEL_ID, "adam_params": {}}, 400, "seq_id"),
        ("save_weights", {"model_id": MODEL_ID, "seq_id": 1, "path": "a/b"}, 400, "name: String should match"),
        ("create_sampling_session", {}, 400, "session_id"),
        ("asample", {}, 400, "prompt"),
        ("cancel_future", {"request_id": "x"}, 404, "not the id of a request"),
        ("retrieve_future", {"request_id": "x"}, 404, "not the id of a request"),
        ("forward", {}, 400, "tinker 0.38"),
        ("copy_weights", {}, 404, "is not available"),
        ("weights_info", {"tinker_path": "tinker://x/weights/a"}, 404, "not the path"),
        ("create_session", {"project_id": "x" * 2000}, 400, "project_id"),
    ],
)
async def test_what_is_not_supported_says_what_to_use(
    backend: TinkerBackend, route: str, sent: dict[str, Any], status: int, text: str
) -> None:
    answer = await backend.post(route, sent)
    assert (answer.status_code, text in answer.json()["detail"]) == (status, True), answer.text


async def test_a_rejected_call_uses_its_number(backend: TinkerBackend) -> None:
    """The SDK has counted it, and the trainer runs no later call before it."""
    model = await backend.model()
    answers = [
        await backend.send("forward_backward", body(model, 1, loss="stable_reinforce")),
        await backend.post("optim_step", {"model_id": model, "seq_id": 2, "optimizer_params": {"type": "dimuon"}}),
        await backend.post("save_weights", save(model, 3, "a/b")),
        await backend.post("save_weights_for_sampler", save(model, 4, "a/b")),
        await backend.post("load_weights", {"model_id": model, "seq_id": 5, "path": PATH, "optimizer": True}),
        # The SDK sends NaN as null.
        await backend.post("optim_step", optim(model, 6, learning_rate=None)),
        await backend.post("save_weights_for_sampler", save(model, 7, "a" * 2000)),
        await backend.post("save_weights_external", save(model, 8)),
        await backend.send("forward_backward", body(model, 9, datum([1] * (MAX_BODY // 4)))),
    ]
    assert [answer.status_code for answer in answers] == [400] * 7 + [404, 413]
    assert "save_weights_for_sampler" in answers[7].json()["detail"]
    assert (await backend.retrieve(await backend.post("optim_step", optim(model, 10)))).status_code == 200
    foreign = await backend.send("forward_backward", body(model, 11, loss="stable_reinforce"), "tml-bob")
    assert foreign.status_code == 400
    assert backend.trainer.arrived == list(range(1, 11))


async def test_paths_may_have_the_prefix_of_a_shared_host(backend: TinkerBackend) -> None:
    assert (await backend.client.get("/tinker/api/v1/healthz")).json() == {"status": "ok"}
    assert (await backend.client.get("/tinker/tinker/api/v1/healthz")).status_code == 404


async def test_other_methods_and_paths_are_refused_as_json(backend: TinkerBackend) -> None:
    answer = await backend.client.get("/api/v1/optim_step")
    assert (answer.status_code, "not available" in answer.json()["detail"]) == (405, True)
    assert (await backend.client.get("/")).status_code == 404


async def test_other_encodings_are_refused(backend: TinkerBackend) -> None:
    model = await backend.model()
    as_json = await backend.post("forward_backward", {"model_id": model})
    assert (as_json.status_code, "tinker 0.38" in as_json.json()["detail"]) == (400, True)
    answer = await backend.send("forward_backward", b"x", **{"Content-Encoding": "zstd"})
    assert (answer.status_code, "Compressed" in answer.json()["detail"]) == (400, True)


async def test_bodies_are_limited(backend: TinkerBackend) -> None:
    async def declared(path: str, size: int) -> int:
        """Return the status for a body that is only announced."""
        reader, writer = await asyncio.open_connection("127.0.0.1", int(backend.url.rpartition(":")[2]))
        head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: x\r\nX-API-Key: tml-ann\r\nContent-Length: {size}\r\n"
        writer.write(f"{head}Content-Type: application/x-protobuf\r\n\r\n".encode())
        line = await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        return int(line.split()[1])

    assert await declared("forward_backward", MAX_BODY + 1) == 413
    assert await declared("optim_step", MAX_JSON + 1) == 413


async def test_requests_are_counted(backend: TinkerBackend) -> None:
    labels = {"route": "/get_info", "status": "404"}
    before = REGISTRY.get_sample_value("rlrun_tinker_requests_total", labels) or 0.0
    await backend.post("get_info", {"model_id": MODEL_ID})
    assert REGISTRY.get_sample_value("rlrun_tinker_requests_total", labels) == before + 1


FUTURE = str(FutureId(FutureKind.weights, ModelId.parse(MODEL_ID), 1, "a"))
ROUTES = [
    "create_model", "load_weights", "get_info", "optim_step", "save_weights", "retrieve_future", "weights_info",
    "save_weights_for_sampler", "create_sampling_session", "asample", "cancel_future",
]  # fmt: skip
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from([MODEL_ID, PATH, "ts-0123456789ab.other:train:0", FUTURE, "../x", "{}", f"{MODEL_ID}:base"]),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=3),
)
FIELDS = [
    "model_id", "seq_id", "session_id", "model_seq_id", "path", "optimizer", "adam_params", "base_model",
    "lora_config", "request_id", "tinker_path", "user_metadata", "ttl_seconds", "sampling_session_id", "prompt",
    "sampling_session_seq_id", "model_path", "num_samples", "sampling_params",
]  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(route=st.sampled_from(ROUTES), sent=st.dictionaries(st.sampled_from(FIELDS), VALUES), raw=st.binary(max_size=99))
async def test_no_body_breaks_the_server(backend: TinkerBackend, route: str, sent: dict[str, Any], raw: bytes) -> None:
    for data in (json.dumps(sent).encode(), raw):
        answer = await backend.send(route, data)
        assert answer.status_code < 500, answer.text
    answer = await backend.send("forward_backward", raw)
    assert answer.status_code < 500, answer.text
