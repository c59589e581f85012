"""rlrun-tinker with the real rlrun-server, which has a fake cluster behind it, and a fake of the trainer."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from rlrun.protocol.client_run import ModelId, client_token
from rlrun_server.client_models import model_objects

from tests.support.signing_server import KEY
from tests.support.tinker_backend import TinkerBackend, serving_tinker
from tests.unit.rlrun_server.client_models.test_client_model_routes import BASE, POOL, RIGHTS, Models
from tests.unit.rlrun_tinker.test_app import body, optim, save

LORA = {"rank": 32, "seed": 7, "train_unembed": True, "train_mlp": True, "train_attn": True}


@dataclass
class World:
    """All programs, and keys of two tenants."""

    tinker: TinkerBackend
    models: Models
    key: str
    other_key: str

    async def create(self, number: int = 0, rank: int = 32) -> tuple[str, str]:
        """Create a session and a model, and return the model's id and the id of the future."""
        session = await self.tinker.post("create_session", {"tags": []}, self.key)
        assert session.status_code == 200, session.text
        model = f"{session.json()['session_id']}:train:{number}"
        new = {"session_id": session.json()["session_id"], "model_seq_id": number, "base_model": BASE}
        lora = {"lora_config": {**LORA, "rank": rank}, "user_metadata": {"renderer_name": "qwen3"}}
        answer = await self.tinker.post("create_model", {**new, **lora}, self.key)
        assert answer.status_code == 200, answer.text
        return model, answer.json()["request_id"]

    def run_begins(self, model: str) -> None:
        """Let the operator give the run a slot of a pool, and the trainer its order."""
        run = ModelId.parse(model).run
        self.models.change(run, {"phase": "Running", "pool": {"name": POOL}})
        uid = self.models.stored(run)["metadata"]["uid"]
        self.tinker.trainer.tokens[uid] = client_token(KEY, uid)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    models = Models()
    keys = []
    for namespace in ("team", "other"):
        changes = [f"{verb} {kind}" for verb in ("get", "patch") for kind in ("rlcheckpoints", "rladapters")]
        rights = [
            *(right.replace("team", namespace) for right in RIGHTS),
            *(f"{each} in {namespace}" for each in changes),
        ]
        headers = await models.rest.key(namespace, *rights)
        keys.append("tml-" + headers["Authorization"].removeprefix("Bearer "))
    async with serving_tinker(run_server=models.rest.app) as tinker:
        monkeypatch.setattr(model_objects, "pool_trainer_url", lambda *_: tinker.trainer.url)
        yield World(tinker, models, *keys)


async def test_a_model_is_created_trained_saved_and_continued(world: World) -> None:
    tinker, key = world.tinker, world.key
    model, future = await world.create()
    waiting = await tinker.post("retrieve_future", {"request_id": future}, key)
    assert (waiting.status_code, waiting.json()["queue_state"]) == (408, "paused_capacity")
    assert "operator" in waiting.json()["queue_state_reason"]
    world.run_begins(model)
    tinker.now[0] += 11
    created = await tinker.post("retrieve_future", {"request_id": future}, key)
    assert created.json() == {"model_id": model, "type": "create_model"}
    info = (await tinker.post("get_info", {"model_id": model}, key)).json()
    assert (info["model_name"], info["lora_rank"]) == (BASE, 32)
    sent = [
        await tinker.send("forward_backward", body(model, 1), key),
        await tinker.post("optim_step", optim(model, 2), key),
        await tinker.post("save_weights", save(model, 3), key),
    ]
    assert [(await tinker.retrieve(each, key)).status_code for each in sent] == [200] * 3
    world.models.save("weights", "a", run=ModelId.parse(model).run)
    path = f"tinker://{model}/weights/a"
    assert (await tinker.post("weights_info", {"tinker_path": path}, key)).json()["base_model"] == BASE
    run = (await tinker.client.get(f"/api/v1/training_runs/{model}", headers={"X-API-Key": key})).json()
    assert run["last_checkpoint"]["tinker_path"] == path
    assert run["user_metadata"] == {"renderer_name": "qwen3"}
    load = {"session_id": model.partition(":")[0], "model_seq_id": 1, "path": path, "optimizer": False}
    loaded = await tinker.post("load_weights", load, key)
    assert loaded.status_code == 200, loaded.text
    next_model = loaded.json()["model_id"]
    world.run_begins(next_model)
    assert (await tinker.retrieve(loaded, key)).json() == {"model_id": next_model, "type": "load_weights"}
    assert (await tinker.post("session_heartbeat", {"session_id": load["session_id"]}, key)).status_code == 200
    assert tinker.trainer.heartbeats.total() == 4, "two creations and two models of the heartbeat"


async def test_another_tenant_and_another_request_are_refused(world: World) -> None:
    tinker = world.tinker
    model, _ = await world.create()
    world.run_begins(model)
    sent = await tinker.send("forward_backward", body(model, 1), world.key)
    assert sent.status_code == 200, sent.text
    answers = [
        await tinker.send("forward_backward", body(model, 2), world.other_key),
        await tinker.retrieve(sent, world.other_key),
        await tinker.post("get_info", {"model_id": model}, world.other_key),
    ]
    assert {answer.status_code for answer in answers} == {404}, [answer.text for answer in answers]
    # A session of which the caller sees no model has none.
    await tinker.post("session_heartbeat", {"session_id": model.partition(":")[0]}, world.other_key)
    assert tinker.trainer.heartbeats.total() == 0
    again = {"session_id": model.partition(":")[0], "model_seq_id": 0, "base_model": BASE, "lora_config": {"rank": 8}}
    conflict = await tinker.post("create_model", again, world.key)
    assert (conflict.status_code, "already exists" in conflict.json()["detail"]) == (400, True)
    too_high = await tinker.post("create_model", {**again, "model_seq_id": 1, "lora_config": {"rank": 128}}, world.key)
    assert (too_high.status_code, "rank" in too_high.json()["detail"]) == (400, True)
    unknown = await tinker.post("get_info", {"model_id": f"{model[:-1]}9"}, world.key)
    assert (unknown.status_code, "does not exist" in unknown.json()["detail"]) == (404, True)


async def test_an_ended_run_is_a_failure(world: World) -> None:
    tinker = world.tinker
    model, future = await world.create()
    world.models.change(ModelId.parse(model).run, {"phase": "Failed"})
    answer = (await tinker.post("retrieve_future", {"request_id": future}, world.key)).json()
    assert (answer["category"], "has ended" in answer["error"]) == ("user", True)
