"""Models of clients' programs: creation, reading, tokens and deletion, with the rights of the caller."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from rlrun.api.artifact import NEVER
from rlrun.api.model import RLModel
from rlrun.api.run import RLRun
from rlrun.constants import (
    CLIENT_METADATA_ANNOTATION,
    CLIENT_SESSION_LABEL,
    REQUEST_ANNOTATION,
    SERVER_FIELD_MANAGER,
    USER_ANNOTATION,
)
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj, artifact_name, ordered_expiry
from rlrun.kube.references import shared_pool_name
from rlrun.protocol.client_run import (
    CLIENT_SESSIONS_PATH,
    MAX_METADATA_BYTES,
    ClientModel,
    SavedState,
    SavedStates,
    SaveKind,
    client_token,
)
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import MANIFEST, RunLayout
from rlrun_server.rest.openapi_document import openapi_text

from tests.support.fake_s3 import InMemoryStore
from tests.support.rest_api import BUCKET, RestApi, rest_api, run_object, uid_of
from tests.support.signing_server import KEY

RIGHTS = [f"{verb} rlruns in team" for verb in ("create", "get", "list")]
GROUP = "ts-0123456789ab"
RUN = f"{GROUP}-0"
MODEL = f"{GROUP}.team:train:0"
BASE = "Qwen/Qwen3-4B"
ASKED = {"baseModel": BASE, "rank": 32, "seed": 7, "userMetadata": {"recipe": "chat", "none": None}}
POOL = shared_pool_name(BASE, "0a1b2c3d")
SAVED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def rl_model(model: str, rank: int = 64, mode: str = "Namespace", **trainer: Any) -> Obj:
    name = model.lower().replace("/", "-")
    found = {
        "apiVersion": "rlrun.dev/v1alpha1",
        "kind": "RLModel",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"},
        "spec": {
            "id": model,
            "source": "s3://models/x",
            "lora": {"rank": rank},
            "sharing": {"mode": mode},
            "trainer": trainer,
        },
    }
    RLModel.from_object(found)
    return found


class Models:
    """API with models, and requests of its users."""

    def __init__(self, **options: Any) -> None:
        self.store = InMemoryStore(BUCKET)
        self.rest: RestApi = rest_api(self.store, **options)
        self.rest.add(
            rl_model(BASE), rl_model("small/model", 16), rl_model("own/trainers", mode="Dedicated"),
            rl_model("two/gpus", gpus=2),
        )  # fmt: skip

    async def send(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        user = self.rest.user("ann", *RIGHTS) if headers is None else headers
        return await self.rest.client.request(method, f"http://server{path}", json=body, headers=user)

    async def create(
        self, body: Any = ASKED, run: str = RUN, namespace: str = "team", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        return await self.send("PUT", path_of(run, namespace), body, headers)

    async def created(self, body: Any = ASKED, run: str = RUN) -> ClientModel:
        return model_of(await self.create(body, run))

    def stored(self, run: str = RUN, namespace: str = "team") -> Obj:
        return self.rest.cluster.objects["RLRun", namespace, run]

    def change(self, run: str = RUN, status: Any = None, **fields: Any) -> None:
        """Let the operator or a user change a run."""
        stored = self.stored(run)
        spec = {**stored["spec"], **fields}
        metadata = {**stored["metadata"], "resourceVersion": str(1 + int(stored["metadata"]["resourceVersion"]))}
        self.rest.add({**stored, "metadata": metadata, "spec": spec, "status": status or stored.get("status") or {}})

    def save(
        self,
        kind: str,
        *names: str,
        run: str = RUN,
        namespace: str = "team",
        are_complete: bool = True,
        expires_at: datetime | None = None,
    ) -> None:
        """Let the trainer save states with steps 1, 2, ..."""
        layout = RunLayout.of(BUCKET, "prefix", namespace, self.stored(run, namespace)["metadata"]["uid"])
        states = SavedStates.model_validate(
            {kind: {name: SavedState(step=n, time=SAVED_AT, expires_at=expires_at) for n, name in enumerate(names, 1)}}
        )
        self.store.put_bytes(layout.saved_states, states.model_dump_json(by_alias=True).encode())
        for step in range(1, len(names) + 1 if are_complete else 1):
            folder = layout.checkpoint(step) if kind == "weights" else layout.adapter(step)
            self.store.put_bytes(folder / MANIFEST, b"{}")

    def record(
        self, kind: str, step: int, run: str = RUN, namespace: str = "team", phase: str = "Ready", **spec: Any
    ) -> str:
        """Let the operator create the object of a saved state."""
        uid = self.stored(run, namespace)["metadata"]["uid"]
        name = artifact_name(run, uid, step)
        metadata = {
            "name": name, "namespace": namespace, "uid": f"uid-of-{name}", "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        fields = {"runName": run, "runUid": uid, "model": BASE, "step": step, "uri": "s3://b/k", **spec}
        self.rest.add({"kind": kind, "metadata": metadata, "spec": fields, "status": {"phase": phase}})
        return name

    def expiry(self, kind: str, name: str, namespace: str = "team") -> datetime | None:
        """Time of expiry that a user has set."""
        return ordered_expiry(self.rest.cluster.objects[kind, namespace, name])

    async def shown(self, kind: str) -> dict[str, SavedState]:
        """States of the model that the server shows."""
        found = model_of(await self.send("GET", path_of())).saved
        assert found is not None
        return found.of(SaveKind(kind))

    @property
    def calls(self) -> list[str]:
        return [str(request) for request in self.rest.cluster.requests]


def path_of(run: str = RUN, namespace: str = "team", rest: str = "") -> str:
    return f"/rlrun/v1/namespaces/{namespace}/client-models/{run}{rest}"


def model_of(answer: httpx.Response) -> ClientModel:
    assert answer.status_code == 200, answer.text
    return ClientModel.model_validate_json(answer.content)


def problem_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Return status, reason and message of an error."""
    problem = Problem.model_validate_json(answer.content)
    return answer.status_code, problem.reason, problem.message


@pytest.fixture
def models() -> Models:
    return Models()


# --- Sessions ---------------------------------------------------------------------------------------------------------


async def test_a_session_is_in_the_namespace_of_the_api_key(models: Models) -> None:
    headers = await models.rest.key("team", "create rlruns in team", "list rlruns in team")
    for body in ({}, {"namespace": "team"}):
        answer = await models.send("POST", CLIENT_SESSIONS_PATH, body, headers)
        assert (answer.status_code, answer.json()) == (200, {"namespace": "team"}), answer.text
    status, reason, message = problem_of(await models.send("POST", CLIENT_SESSIONS_PATH, {"namespace": "b"}, headers))
    assert (status, reason) == (403, "AccessForbidden")
    assert "belongs to namespace team, not to b" in message


async def test_a_session_with_a_token_is_in_the_namespace_of_the_request(models: Models) -> None:
    answer = await models.send("POST", CLIENT_SESSIONS_PATH, {"namespace": "team"})
    assert answer.json() == {"namespace": "team"}


async def test_the_only_namespace_of_a_user_needs_no_name(models: Models) -> None:
    models.rest.add(run_object("first"), run_object("other", "secret", 2))
    assert (await models.send("POST", CLIENT_SESSIONS_PATH)).json() == {"namespace": "team"}
    for user in (
        models.rest.user("bob", *RIGHTS, "list rlruns in secret"),
        models.rest.user("admin", "list rlruns in "),
    ):
        status, reason, message = problem_of(await models.send("POST", CLIENT_SESSIONS_PATH, {}, user))
        assert (status, reason) == (422, "InvalidRequest")
        assert message.startswith("namespace: ")
        assert message.endswith("secret, team")


@pytest.mark.parametrize(
    ("rights", "namespace", "expected"),
    [
        (["list rlruns in team"], "team", (403, "AccessForbidden")),
        (["create rlruns in team"], "secret", (404, "NamespaceNotFound")),
        (RIGHTS, "not/a/name", (404, "NamespaceNotFound")),
        (RIGHTS, "team\n", (404, "NamespaceNotFound")),
    ],
)
async def test_a_session_needs_the_right_to_create_runs(
    models: Models, rights: list[str], namespace: str, expected: tuple[int, str]
) -> None:
    answer = await models.send("POST", CLIENT_SESSIONS_PATH, {"namespace": namespace}, models.rest.user("eve", *rights))
    assert problem_of(answer)[:2] == expected


async def test_an_api_key_that_only_reads_gets_no_session_and_no_token() -> None:
    models = Models(api_keys_may_write=False)
    models.rest.add(client_run("key"))
    headers = await models.rest.key("team", *RIGHTS)
    for method, path in (("POST", CLIENT_SESSIONS_PATH), ("PUT", path_of()), ("POST", path_of(rest="/open"))):
        assert problem_of(await models.send(method, path, {}, headers))[:2] == (403, "ApiKeyNotAllowed")
    assert model_of(await models.send("GET", path_of(), None, headers)).run == RUN


def client_run(user: str = "ann", **spec: Any) -> Obj:
    found = run_object(RUN, phase="Running")
    found["metadata"]["annotations"] = {USER_ANNOTATION: user}
    found["spec"] = {"model": BASE, "driver": "Client", "lora": {"rank": 32}, **spec}
    return found


# --- Creation ---------------------------------------------------------------------------------------------------------


async def test_base_models_that_clients_can_train_are_shared(models: Models) -> None:
    found = (await models.send("GET", "/rlrun/v1/models")).json()["items"]
    assert {model["id"]: model["shared"] for model in found} == {
        BASE: True, "small/model": True, "own/trainers": False, "two/gpus": False,
    }  # fmt: skip


async def test_a_model_is_a_run_that_the_caller_creates(models: Models) -> None:
    found = await models.created()
    assert models.calls == [f"create RLRun team/{RUN}"], "one request to the API server"
    (sent,) = models.rest.cluster.requests
    assert sent.extra_headers["Authorization"] == "Bearer token-of-ann"
    assert sent.field_manager == SERVER_FIELD_MANAGER
    run = models.stored()
    assert run["spec"] == {
        "model": BASE, "driver": "Client", "loraAlpha": 32, "lora": {"rank": 32}, "seed": 7,
        "checkpoints": {"keepCloud": -1}, "adapters": {"keepLast": -1},
    }  # fmt: skip
    RLRun.from_object({key: run[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    assert run["metadata"]["labels"] == {CLIENT_SESSION_LABEL: GROUP}
    annotations = run["metadata"]["annotations"]
    assert annotations[USER_ANNOTATION] == "ann"
    assert json.loads(annotations[CLIENT_METADATA_ANNOTATION]) == ASKED["userMetadata"]
    assert (found.namespace, found.run, found.uid) == ("team", RUN, run["metadata"]["uid"])
    assert (found.base_model, found.rank, found.user_metadata) == (BASE, 32, ASKED["userMetadata"])
    assert (found.phase, found.token, found.trainer_url) == ("Pending", None, None)
    assert found.waiting is not None
    assert found.waiting.reason == "NotSeenYet"


async def test_the_same_request_again_changes_nothing(models: Models) -> None:
    first = await models.created()
    assert await models.created() == first
    assert len(models.calls) == 1
    # A replica of the server that has not seen the run yet.
    models.rest.services.objects.runs._by_name.clear()
    assert await models.created() == first
    assert models.calls[1:] == [f"create RLRun team/{RUN}", f"get RLRun team/{RUN}"]


@pytest.mark.parametrize("is_seen", [True, False])
async def test_another_request_with_the_name_is_refused(models: Models, is_seen: bool) -> None:
    await models.created()
    bob = models.rest.user("bob", *RIGHTS)
    for body, user in (({**ASKED, "rank": 16}, None), ({**ASKED, "userMetadata": {}}, None), (ASKED, bob)):
        if not is_seen:
            models.rest.services.objects.runs._by_name.clear()
        status, reason, message = problem_of(await models.create(body, headers=user))
        assert (status, reason) == (409, "ClientModelConflict")
        assert MODEL in message
    assert models.stored()["spec"]["lora"] == {"rank": 32}


async def test_a_run_that_no_request_has_created_is_a_conflict(models: Models) -> None:
    models.rest.add(run_object(RUN))
    assert problem_of(await models.create())[:2] == (409, "ClientModelConflict")


async def test_a_run_that_is_deleted_during_the_request_can_be_created_again(models: Models) -> None:
    models.rest.cluster.answers[f"create RLRun team/{RUN}"] = [ApiError(409, "AlreadyExists", "exists")]
    assert problem_of(await models.create())[:2] == (503, "ObjectChanged")


@pytest.mark.parametrize(
    ("changes", "reason", "texts"),
    [
        ({"baseModel": "no/model"}, "ModelNotFound", ["base_model: ", f"{BASE}, small/model"]),
        ({"baseModel": "own/trainers"}, "ClientNeedsPool", ["base_model: ", f"({BASE}, small/model)"]),
        ({"baseModel": "two/gpus"}, "ClientNeedsPool", ["at most one GPU"]),
        ({"baseModel": "small/model"}, "LoraRankTooHigh", ["rank: 32 is above", "small/model, 16", f"{BASE} (64)"]),
        ({"rank": 65}, "LoraRankTooHigh", ["(none)"]),
        ({"rank": 0}, "InvalidRequest", ["rank"]),
        ({"rank": 4097}, "InvalidRequest", ["rank"]),
        ({"rank": None}, "InvalidRequest", ["rank: is required"]),
        ({"baseModel": None}, "InvalidRequest", ["base_model: is required"]),
        ({"seed": 2**31}, "InvalidRequest", ["seed"]),
        ({"other": 1}, "InvalidRequest", ["other"]),
        ({"userMetadata": {"a": "x" * MAX_METADATA_BYTES}}, "InvalidRequest", ["user_metadata: is", "16384"]),
        ({"userMetadata": {str(n): n for n in range(257)}}, "InvalidRequest", ["userMetadata"]),
    ],
)
async def test_a_model_that_cannot_be_trained_is_refused(
    models: Models, changes: dict[str, Any], reason: str, texts: list[str]
) -> None:
    status, found, message = problem_of(await models.create({**ASKED, **changes}))
    assert (status, found) == (422, reason)
    assert [text for text in texts if text not in message] == [], message
    assert models.calls == []


@pytest.mark.parametrize("content", [b"", b"no json", b'{"rank": NaN}', b"[]", b'{"rank": 1, "rank": 2}'])
async def test_a_body_that_cannot_be_read_is_refused(models: Models, content: bytes) -> None:
    url, user = f"http://server{path_of()}", models.rest.user("ann", *RIGHTS)
    answer = await models.rest.client.put(url, content=content, headers=user)
    assert problem_of(answer)[:2] == (422, "InvalidRequest")
    large = await models.rest.client.put(url, content=b" " * (128 * 1024 + 1), headers=user)
    assert problem_of(large)[:2] == (413, "BodyTooLarge")


@pytest.mark.parametrize("run", ["first", "ts-0123456789ab", "ts-0123456789ab-01", "ts-0123456789AB-1", f"{RUN}\n"])
async def test_other_runs_are_no_models(models: Models, run: str) -> None:
    models.rest.add(run_object("first"))
    for method, rest in (("PUT", ""), ("GET", ""), ("POST", "/open")):
        assert problem_of(await models.send(method, path_of(run.replace("\n", "%0A"), rest=rest), ASKED))[0] == 404


async def test_what_the_api_server_refuses_is_told(models: Models) -> None:
    causes = {"causes": [{"field": "spec.seed", "message": "is wrong"}]}
    models.rest.cluster.answers[f"create RLRun team/{RUN}"] = [
        ApiError(403, "Forbidden", "exceeded quota"), ApiError(422, "Invalid", "invalid", details=causes)
    ]  # fmt: skip
    assert "xceeded quota" in problem_of(await models.create())[2]
    status, _, message = problem_of(await models.create())
    assert (status, "/spec/seed: is wrong" in message) == (422, True)


# --- Creation from a saved state --------------------------------------------------------------------------------------


def loading(name: str = "a", model: str = MODEL, **fields: Any) -> dict[str, Any]:
    return {"load": {"path": f"tinker://{model}/weights/{name}", "optimizer": True}, **fields}


SECOND = f"{GROUP}-1"


@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("is_recorded", [True, False])
async def test_a_model_continues_a_saved_state(models: Models, optimizer: bool, is_recorded: bool) -> None:
    source = await models.created()
    models.save("weights", "a", "b")
    name = artifact_name(RUN, source.uid, 2)
    if is_recorded:
        assert models.record("RLCheckpoint", 2) == name
    body = {"load": {"path": f"tinker://{MODEL}/weights/b", "optimizer": optimizer}}
    found = await models.created(body, SECOND)
    assert (found.base_model, found.rank) == (BASE, 32)
    run = models.stored(SECOND)
    assert (run["spec"]["checkpointId"], run["spec"]["checkpointOptimizer"]) == (f"cp_team.{name}", optimizer)
    RLRun.from_object({key: run[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    assert await models.created(body, SECOND) == found
    assert len(models.calls) == 2


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (loading("c"), 404, "no saved state 'c'. Load one of: a"),
        (loading("b", f"{GROUP}.team:train:9"), 404, "does not exist or was deleted"),
        (loading("a", f"{GROUP}.secret:train:0"), 404, "Namespace secret does not exist"),
        (loading(rank=16), 422, "rank: is 16, but"),
        (loading(baseModel="small/model"), 422, "base_model: is small/model, but"),
        ({"load": {"path": f"tinker://{MODEL}/sampler_weights/a", "optimizer": True}}, 422, "adapter for sampling"),
        ({"load": {"path": "tinker://x/weights/a", "optimizer": True}}, 422, "load.path: "),
    ],
)
async def test_a_state_that_cannot_be_loaded(models: Models, body: Any, status: int, text: str) -> None:
    await models.created()
    models.save("weights", "a")
    found, _, message = problem_of(await models.create(body, SECOND))
    assert (found, text in message) == (status, True), message
    assert [call for call in models.calls if call.startswith("create")] == [f"create RLRun team/{RUN}"]


@pytest.mark.parametrize("phase", [None, "Failed", "Deleting"])
async def test_a_deleted_or_incomplete_state_cannot_be_loaded(models: Models, phase: str | None) -> None:
    await models.created()
    models.save("weights", "a", are_complete=False)
    if phase is not None:
        models.record("RLCheckpoint", 1, phase=phase)
    status, reason, message = problem_of(await models.create(loading(), SECOND))
    assert (status, reason) == (404, "CheckpointNotFound")
    assert "was deleted, has expired, or its upload did not complete" in message


@pytest.mark.parametrize(
    ("shared", "rights", "status"),
    [
        (["team"], ["get rlruns in lab", "list rlruns in lab"], 200),
        ([], ["get rlruns in lab", "list rlruns in lab"], 403),
        (["team"], ["list rlruns in lab"], 403),
        (["team"], [], 404),
    ],
)
async def test_a_state_of_another_namespace_must_be_readable_and_shared(
    models: Models, shared: list[str], rights: list[str], status: int
) -> None:
    source = client_run("bob")
    source["metadata"]["namespace"] = "lab"
    models.rest.add(source)
    models.save("weights", "a", namespace="lab")
    name = models.record("RLCheckpoint", 1, namespace="lab", sharedWith=shared)
    user = models.rest.user("ann", *RIGHTS, *rights)
    answer = await models.create(loading(model=f"{GROUP}.lab:train:0"), SECOND, headers=user)
    assert answer.status_code == status, answer.text
    if status == 200:
        assert models.stored(SECOND)["spec"]["checkpointId"] == f"cp_lab.{name}"


async def test_a_run_with_an_orchestrator_has_no_states_to_load(models: Models) -> None:
    models.rest.add(run_object(RUN))
    assert problem_of(await models.create(loading(), SECOND))[0] == 404


async def test_a_damaged_list_of_states_is_an_error_of_s3(models: Models) -> None:
    await models.created()
    uid = models.stored()["metadata"]["uid"]
    models.store.put_bytes(RunLayout.of(BUCKET, "prefix", "team", uid).saved_states, b'{"weights": 1}')
    assert problem_of(await models.send("GET", path_of()))[:2] == (424, "S3ArtifactCorrupt")


# --- Reading and opening ----------------------------------------------------------------------------------------------


async def test_reading_a_model_shows_its_saved_states(models: Models) -> None:
    await models.created()
    assert model_of(await models.send("GET", path_of())).saved == SavedStates()
    models.save("weights", "a", "b")
    found = model_of(await models.send("GET", path_of()))
    assert found.saved is not None
    assert {name: state.step for name, state in found.saved.weights.items()} == {"a": 1, "b": 2}
    assert found.token is None
    assert len(models.calls) == 1


@pytest.mark.parametrize(("kind", "resource"), [("weights", "RLCheckpoint"), ("sampler_weights", "RLAdapter")])
async def test_a_deleted_state_is_not_shown(models: Models, kind: str, resource: str) -> None:
    await models.created()

    async def shown() -> set[str]:
        found = model_of(await models.send("GET", path_of())).saved
        assert found is not None
        return set(found.of(SaveKind(kind)))

    names = [f"s{number:02}" for number in range(20)]
    models.save(kind, *names)
    assert await shown() == set(names), "the operator has recorded none of them yet"
    layout = RunLayout.of(BUCKET, "prefix", "team", models.stored()["metadata"]["uid"])
    folder = layout.checkpoint if kind == "weights" else layout.adapter
    for step in range(1, 19):
        models.store.delete_prefix(folder(step))
    models.record(resource, 19)
    assert await shown() == {"s18", "s19"}
    models.record(resource, 20, phase="Deleting")
    assert await shown() == {"s18"}


async def test_a_model_that_this_replica_has_not_seen_is_found(models: Models) -> None:
    await models.created()
    models.rest.services.objects.runs._by_name.clear()
    assert model_of(await models.send("GET", path_of())).run == RUN
    models.rest.cluster.objects.clear()
    models.rest.services.objects.runs._by_name.clear()
    assert problem_of(await models.send("GET", path_of()))[:2] == (404, "ObjectNotFound")


async def test_the_creator_gets_the_token_and_the_trainers_address(models: Models) -> None:
    created = await models.created()
    models.change(status={"phase": "Running", "pool": {"name": POOL}})
    found = model_of(await models.send("POST", path_of(rest="/open")))
    assert found.token == client_token(KEY, created.uid)
    assert found.trainer_url == f"http://{POOL}-trainer.team.svc:8080"
    assert (found.inference_host, found.run_uri) == (f"{POOL}.team.svc", f"s3://{BUCKET}/prefix/team/{created.uid}")
    assert (found.waiting, found.has_ended, found.saved) == (None, False, None)
    assert len(models.calls) == 1


@pytest.mark.parametrize(
    ("user", "rights", "expected"),
    [
        ("bob", RIGHTS, (403, "AccessForbidden")),
        ("bob", ["get rlruns in team", "list rlruns in team"], (403, "AccessForbidden")),
        ("bob", [], (404, "NamespaceNotFound")),
        ("ann", ["get rlruns in team", "list rlruns in team"], (403, "AccessForbidden")),
        ("bob", [*RIGHTS, "patch rlruns in team"], None),
    ],
)
async def test_only_who_may_change_a_run_gets_its_token(
    models: Models, user: str, rights: list[str], expected: tuple[int, str] | None
) -> None:
    models.rest.add(client_run("ann"))
    answer = await models.send("POST", path_of(rest="/open"), None, models.rest.user(user, *rights))
    if expected is None:
        assert model_of(answer).token
        return
    assert problem_of(answer)[:2] == expected
    assert client_token(KEY, models.stored()["metadata"]["uid"]) not in answer.text


async def test_a_run_with_an_orchestrator_has_no_token(models: Models) -> None:
    run = run_object(RUN)
    run["metadata"]["annotations"] = {USER_ANNOTATION: "ann"}
    models.rest.add(run)
    for method, rest in (("POST", "/open"), ("GET", "")):
        assert problem_of(await models.send(method, path_of(rest=rest)))[:2] == (404, "ObjectNotFound")


@pytest.mark.parametrize("fields", [{"stop": True}, {"status": {"phase": "Failed", "reason": "TrainerError"}}])
async def test_a_model_that_has_ended_has_no_token(models: Models, fields: dict[str, Any]) -> None:
    await models.created()
    models.change(**fields)
    found = model_of(await models.send("POST", path_of(rest="/open")))
    assert (found.has_ended, found.token, found.run_uri, found.trainer_url, found.inference_host) == (True, *[None] * 4)


SILENT = {"phase": "Suspended", "reason": "ClientSilent", "message": "silent"}


async def test_a_silent_model_is_resumed_by_its_client(models: Models) -> None:
    await models.created()
    models.change(status=SILENT, suspend=True)
    uid, version = (models.stored()["metadata"][key] for key in ("uid", "resourceVersion"))
    found = model_of(await models.send("POST", path_of(rest="/open")))
    assert found.token
    sent = models.rest.cluster.requests[-1]
    assert sent.extra_headers["Authorization"] == "Bearer token-of-ann"
    assert sent.body == {"metadata": {"uid": uid, "resourceVersion": version}, "spec": {"suspend": False}}
    assert models.stored()["spec"]["suspend"] is False
    await models.send("POST", path_of(rest="/open"))
    assert len(models.calls) == 2, "the server knows that it has resumed the run"


async def test_reading_does_not_resume(models: Models) -> None:
    await models.created()
    models.change(status=SILENT, suspend=True)
    await models.send("GET", path_of())
    assert models.stored()["spec"]["suspend"] is True


async def test_what_a_user_has_suspended_stays_suspended(models: Models) -> None:
    await models.created()
    models.change(status={"phase": "Suspended", "reason": "Suspended", "message": "by a user"}, suspend=True)
    found = model_of(await models.send("POST", path_of(rest="/open")))
    assert found.waiting == Problem(reason="Suspended", message="by a user")
    assert models.stored()["spec"]["suspend"] is True


@pytest.mark.parametrize(
    ("status", "is_suspended"), [(SILENT, False), ({"phase": "Suspended", "reason": "Suspended"}, True)]
)
async def test_a_run_that_changed_meanwhile_is_read_again(models: Models, status: Any, is_suspended: bool) -> None:
    await models.created()
    models.change(status=SILENT, suspend=True)
    stored = models.stored()
    metadata = {**stored["metadata"], "resourceVersion": "999"}
    models.rest.cluster.objects["RLRun", "team", RUN] = {**stored, "metadata": metadata, "status": status}
    model_of(await models.send("POST", path_of(rest="/open")))
    assert models.stored()["spec"]["suspend"] is is_suspended


async def test_a_run_of_the_same_name_made_meanwhile_is_not_opened(models: Models) -> None:
    await models.created()
    models.change(status=SILENT, suspend=True)
    stored = models.stored()
    metadata = {**stored["metadata"], "resourceVersion": "999", "uid": uid_of(9)}
    models.rest.cluster.objects["RLRun", "team", RUN] = {**stored, "metadata": metadata}
    assert problem_of(await models.send("POST", path_of(rest="/open")))[:2] == (503, "ObjectChanged")
    assert models.stored()["spec"]["suspend"] is True


# --- Deletion ---------------------------------------------------------------------------------------------------------

KINDS = [("weights", "RLCheckpoint", "rlcheckpoints"), ("sampler_weights", "RLAdapter", "rladapters")]


@pytest.mark.parametrize(("kind", "resource", "plural"), KINDS)
async def test_a_saved_state_is_deleted_by_the_caller(models: Models, kind: str, resource: str, plural: str) -> None:
    await models.created()
    models.save(kind, "a", "b")
    name, other = models.record(resource, 2), models.record(resource, 1)
    user = models.rest.user("ann", *RIGHTS, f"patch {plural} in team")
    answer = await models.send("DELETE", path_of(rest=f"/{kind}/b"), None, user)
    assert (answer.status_code, answer.content) == (204, b""), answer.text
    assert models.calls[-1] == f"change {resource} team/{name}"
    # The operator would create the object of files in S3 again, so it deletes both.
    expires_at = models.expiry(resource, name)
    assert expires_at is not None
    assert expires_at <= datetime.now(UTC)
    assert models.expiry(resource, other) is None
    assert set(await models.shown(kind)) == {"a"}
    assert (await models.send("PUT", path_of(rest=f"/{kind}/b/ttl"), {"ttlSeconds": 9}, user)).status_code == 404
    assert (await models.send("DELETE", path_of(rest=f"/{kind}/b"), None, user)).status_code == 204
    models.rest.cluster.objects.pop((resource, "team", name))
    layout = RunLayout.of(BUCKET, "prefix", "team", models.stored()["metadata"]["uid"])
    models.store.delete_prefix(layout.checkpoint(2) if kind == "weights" else layout.adapter(2))
    assert (await models.send("DELETE", path_of(rest=f"/{kind}/b"), None, user)).status_code == 204


@pytest.mark.parametrize(("kind", "resource", "plural"), KINDS)
async def test_the_time_of_a_saved_state_is_changed_by_the_caller(
    models: Models, kind: str, resource: str, plural: str
) -> None:
    await models.created()
    models.save(kind, "a", "b", expires_at=datetime.now(UTC) + timedelta(hours=1))
    name = models.record(resource, 2)
    user = models.rest.user("ann", *RIGHTS, f"patch {plural} in team")
    path = path_of(rest=f"/{kind}/b/ttl")
    assert (await models.send("PUT", path, {"ttlSeconds": 7200}, user)).status_code == 204
    expires_at = models.expiry(resource, name)
    assert expires_at is not None
    assert timedelta(hours=1) < expires_at - datetime.now(UTC) <= timedelta(hours=2)
    assert (await models.shown(kind))["b"].expires_at == expires_at
    for body in ({"ttlSeconds": None}, {}):
        assert (await models.send("PUT", path, body, user)).status_code == 204
        assert models.expiry(resource, name) == NEVER
    assert (await models.shown(kind))["b"].expires_at is None
    assert (await models.shown(kind))["a"].expires_at is not None
    for seconds in (0, 11 * 366 * 86400, "x"):
        assert problem_of(await models.send("PUT", path, {"ttlSeconds": seconds}, user))[0] in (400, 422)
    not_ready = "CheckpointNotReady" if kind == "weights" else "AdapterNotReady"
    answer = await models.send("PUT", path_of(rest=f"/{kind}/a/ttl"), {}, user)
    assert problem_of(answer)[:2] == (503, not_ready), "the operator has not recorded it yet"
    viewer = models.rest.user("bob", "get rlruns in team", "list rlruns in team")
    assert problem_of(await models.send("PUT", path, {}, viewer))[:2] == (403, "AccessForbidden")


@pytest.mark.parametrize("is_recorded", [True, False])
async def test_an_expired_state_is_neither_shown_nor_loaded(models: Models, is_recorded: bool) -> None:
    await models.created()
    models.save("weights", "a", expires_at=datetime.now(UTC) - timedelta(seconds=1))
    if is_recorded:
        models.record("RLCheckpoint", 1)
    assert await models.shown("weights") == {}
    status, reason, message = problem_of(await models.create(loading(), SECOND))
    assert (status, reason) == (404, "CheckpointNotFound")
    assert "has expired" in message


@pytest.mark.parametrize(("kind", "resource", "plural"), KINDS)
async def test_refused_deletions(models: Models, kind: str, resource: str, plural: str) -> None:
    await models.created()
    models.save(kind, "a")
    path = path_of(rest=f"/{kind}/a")
    viewer = models.rest.user("bob", "get rlruns in team", "list rlruns in team")
    assert problem_of(await models.send("DELETE", path, None, viewer))[:2] == (403, "AccessForbidden")
    assert problem_of(await models.send("DELETE", path, None, models.rest.user("eve")))[0] == 404
    user = models.rest.user("ann", *RIGHTS, f"patch {plural} in team")
    not_ready = "CheckpointNotReady" if kind == "weights" else "AdapterNotReady"
    assert problem_of(await models.send("DELETE", path, None, user))[:2] == (503, not_ready)
    status, _, message = problem_of(await models.send("DELETE", path_of(rest=f"/{kind}/c"), None, user))
    assert (status, f"Saved under {kind}/: a." in message) == (404, True)
    assert problem_of(await models.send("DELETE", path_of(rest="/other/a"), None, user))[0] == 404
    gone = path_of(f"{GROUP}-5", rest=f"/{kind}/a")
    assert problem_of(await models.send("DELETE", gone, None, user))[0] == 404


# --- All routes -------------------------------------------------------------------------------------------------------

ROUTES = [
    ("POST", CLIENT_SESSIONS_PATH),
    ("PUT", path_of()),
    ("GET", path_of()),
    ("POST", path_of(rest="/open")),
    ("DELETE", path_of(rest="/weights/a")),
    ("PUT", path_of(rest="/weights/a/ttl")),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_without_a_credential_there_is_nothing(models: Models, method: str, path: str) -> None:
    models.rest.add(client_run())
    assert problem_of(await models.send(method, path, {}, {}))[:2] == (401, "TokenInvalid")


@pytest.mark.parametrize(("method", "path"), ROUTES[1:])
async def test_a_namespace_without_rights_looks_as_if_it_were_not_there(models: Models, method: str, path: str) -> None:
    models.rest.add(client_run())
    stranger = models.rest.user("stranger", "list rlruns in other")
    texts = []
    for namespace in ("team", "nowhere"):
        answer = await models.send(method, path.replace("/team/", f"/{namespace}/"), {}, stranger)
        assert answer.status_code == 404
        texts.append(answer.text.replace(namespace, "NAMESPACE"))
    assert texts[0] == texts[1]


async def test_requests_of_a_user_are_limited(models: Models) -> None:
    models.rest.add(client_run())
    statuses = [(await models.send("POST", path_of(rest="/open"))).status_code for _ in range(103)]
    assert statuses == [200] * 100 + [429] * 3


async def test_other_methods_and_the_public_document(models: Models) -> None:
    assert (await models.send("PATCH", path_of())).status_code == 405
    assert "client-models" not in openapi_text()


def test_the_digest_is_that_of_other_creations() -> None:
    assert REQUEST_ANNOTATION == "rlrun.dev/request-digest"
