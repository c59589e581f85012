"""Creation, change and deletion of runs, with the token of the caller."""

import json
import threading
from typing import Any

import pytest
import yaml
from httpx import Response
from rlrun.constants import REQUEST_ANNOTATION
from rlrun.kube.errors import ApiError
from rlrun_server.rest.objects.run_bodies import JSON, MERGE_PATCH, TOML, YAML, NewRun, read_run
from rlrun_server.rest.routes import changes

from tests.support.rest_api import SPEC, RestApi, rest_api, run_object

RIGHTS = [f"{verb} rlruns in team" for verb in ("list", "get", "create", "patch", "delete")]
TOML_TEXT = 'model = "Qwen/Qwen3-4B"\nmax_steps = 40\n[sampling]\nmax_tokens = 64\n[[env]]\nid = "acme/reverse"\n'
RUNS = "/namespaces/team/runs"


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.add(run_object("first"))
    return found


async def test_bodies_are_not_read_in_the_executor_that_renews_credentials(
    api: RestApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def read(media_type: str, body: bytes, namespace: str) -> NewRun:
        threads.append(threading.current_thread().name)
        return read_run(media_type, body, namespace)

    monkeypatch.setattr(changes, "read_run", read)
    assert (await create(api, RUN)).status_code == 201
    assert threads == ["bodies_0"]


async def create(api: RestApi, body: Any, media_type: str = JSON, headers: Any = None, **query: str) -> Response:
    text = body if isinstance(body, str | bytes) else json.dumps(body)
    sent = {**api.user("ann", *RIGHTS), "Content-Type": media_type, **(headers or {})}
    return await api.client.post(RUNS, params=query, content=text, headers=sent)


def writes(api: RestApi) -> list[str]:
    return [call for call in api.cluster.calls if not call.startswith(("get", "list"))]


RUN = {"kind": "RLRun", "metadata": {"name": "second", "labels": {"a": "b"}}, "spec": SPEC}


@pytest.mark.parametrize(
    ("body", "media_type"),
    [
        (RUN, JSON),
        (yaml.safe_dump(RUN), YAML),
        ({"metadata": {"name": "second"}, "spec": SPEC}, JSON),
        ({"metadata": {"name": "second", "namespace": "team"}, "spec": SPEC}, JSON),
    ],
)
async def test_a_run_is_created_with_the_callers_token(api: RestApi, body: Any, media_type: str) -> None:
    answer = await create(api, body, media_type)
    assert answer.status_code == 201, answer.text
    assert answer.json()["name"] == "second"
    assert answer.headers["location"] == "/rlrun/v1/namespaces/team/runs/second"
    (sent,) = [r for r in api.cluster.requests if str(r) == "create RLRun team/second"]
    assert sent.extra_headers["Authorization"] == "Bearer token-of-ann"
    assert sent.field_manager == "rlrun-server"
    again = await api.client.get(answer.headers["location"].removeprefix("/rlrun/v1"), headers=api.user("ann"))
    assert again.status_code == 200, "it is found before the watch tells of it"


async def test_an_environment_without_an_owner_in_a_toml_is_one_of_the_namespace(api: RestApi) -> None:
    answer = await create(api, TOML_TEXT.replace("acme/", ""), TOML)
    assert answer.json()["spec"]["env"] == [{"id": "team/reverse"}], answer.text
    assert "the owner team is used" in answer.headers["warning"]


@pytest.mark.parametrize(("body", "media_type"), [(SPEC, JSON), (yaml.safe_dump(SPEC), YAML), (TOML_TEXT, TOML)])
async def test_a_spec_alone_gets_a_name_from_the_api_server(api: RestApi, body: Any, media_type: str) -> None:
    stored = run_object("run-x7k2p", number=9)
    api.cluster.answers["create RLRun team/run-*"] = [stored]
    answer = await create(api, body, media_type)
    assert (answer.status_code, answer.json()["name"]) == (201, "run-x7k2p")
    sent = api.cluster.requests[-1].body or {}
    named = {"rlrun.dev/user": "ann"}
    assert sent["metadata"] == {"namespace": "team", "generateName": "run-", "annotations": named}
    assert sent["spec"]["maxSteps"] == 40


@pytest.mark.parametrize(
    ("body", "media_type", "pointers"),
    [
        ({**SPEC, "maxStep": 1, "batchSize": 0}, JSON, ["/batchSize", "/maxStep"]),
        ({"spec": {**SPEC, "env": [{"id": "bad id"}]}}, JSON, ["/spec/env/0/id"]),
        ({"metadata": {"name": "Not A Name"}, "spec": SPEC}, JSON, ["/metadata/name"]),
        ({"metadata": {"finalizers": ["x"]}, "spec": SPEC}, JSON, ["/metadata/finalizers"]),
        ({"spec": SPEC, "status": {}}, JSON, ["/status"]),
        ({"metadata": {"namespace": "another"}, "spec": SPEC}, JSON, ["/metadata/namespace"]),
        ({"metadata": {"namespace": 1}, "spec": SPEC}, JSON, ["/metadata/namespace"]),
        (TOML_TEXT.replace("max_steps", "max_step"), TOML, ["/max_step"]),
        (f'env_file = ["x.env"]\n{TOML_TEXT}', TOML, ["/env_file"]),
    ],
)
async def test_all_problems_of_a_spec_are_named_at_once(
    api: RestApi, body: Any, media_type: str, pointers: list[str]
) -> None:
    answer = await create(api, body, media_type)
    assert (answer.status_code, answer.json()["reason"]) == (422, "InvalidSpec"), answer.text
    assert sorted(error["pointer"] for error in answer.json()["errors"]) == pointers
    assert not writes(api)


@pytest.mark.parametrize("query", [{}, {"dryRun": "all"}])
async def test_keys_without_an_effect_are_in_a_header(api: RestApi, query: dict[str, str]) -> None:
    api.cluster.answers["create RLRun team/run-*"] = [run_object("run-x7k2p", number=9)]
    text = (
        'max_steps = 3\nseq_len = 9\nmodel = { name = "a/b" }\nmonitors = { "\u00e4\\"\\n" = 1 }\n'
        'slurm = { partition = "x" }\n'
        'orchestrator = { group_size = 4, train = { source = [{ env = { taskset = { id = "a/b" } } }] } }\n'
    )
    answer = await create(api, text, TOML, **query)
    assert answer.status_code == (200 if query else 201), answer.text
    seq_len, monitors, slurm, *_ = answer.headers["warning"].split(", 299 - ")
    assert seq_len == '299 - "seq_len: ignored: seqLen of the RLModel applies"'
    assert json.loads(monitors) == 'monitors.\\xe4"\n: ignored: metrics are stored in S3'
    assert "the platform sets it" in slurm
    assert "warning" not in (await create(api, TOML_TEXT, TOML, **query)).headers


async def test_a_misspelled_field_has_a_suggestion(api: RestApi) -> None:
    answer = await create(api, {**SPEC, "maxStep": 1})
    assert "did you mean maxSteps?" in answer.json()["errors"][0]["detail"]


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        ("no json", JSON, 400),
        ('{"a": NaN}', JSON, 400),
        ("[]", JSON, 400),
        ("a: *b", YAML, 400),
        ("= 1", TOML, 400),
        (json.dumps(SPEC), "text/plain", 415),
        (b"\xff", JSON, 400),
        (" " * (256 * 1024 + 1), JSON, 413),
    ],
)
async def test_bodies_that_cannot_be_read(api: RestApi, body: Any, media_type: str, status: int) -> None:
    answer = await create(api, body, media_type)
    assert answer.status_code == status
    assert answer.json()["detail"]
    assert not writes(api)


async def test_a_dry_run_changes_nothing(api: RestApi) -> None:
    api.cluster.answers["create RLRun team/second"] = [run_object("second", number=2)]
    answer = await create(api, RUN, dryRun="all")
    assert answer.status_code == 200
    assert api.cluster.requests[-1].parameters["dryRun"] == "All"
    missing = await api.client.get(f"{RUNS}/second", headers=api.user("ann"))
    assert missing.status_code == 404


async def test_a_repetition_with_the_same_key_makes_no_second_run(api: RestApi) -> None:
    key = {"Idempotency-Key": "build-17"}
    first = await create(api, SPEC, headers=key)
    again = await create(api, SPEC, headers=key)
    assert (first.status_code, again.status_code) == (201, 200), again.text
    assert first.json()["uid"] == again.json()["uid"]
    assert REQUEST_ANNOTATION in first.json()["annotations"]
    other = await create(api, {**SPEC, "maxSteps": 41}, headers=key)
    assert (other.status_code, other.json()["reason"]) == (422, "IdempotencyKeyReused")
    another = await create(api, SPEC, headers={"Idempotency-Key": "build-18"})
    assert another.json()["name"] != first.json()["name"]


async def test_a_name_that_is_taken(api: RestApi) -> None:
    answer = await create(api, {"metadata": {"name": "first"}, "spec": SPEC})
    assert (answer.status_code, answer.json()["reason"]) == (409, "NameTaken")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ApiError(403, "Forbidden", "exceeded quota"), 403, "AccessForbidden"),
        (ApiError(0, "Timeout", "no answer"), 503, "ApiServerUnavailable"),
        (ApiError(500, "InternalError", "etcd at 10.0.0.1"), 503, "ApiServerUnavailable"),
        (ApiError(401, "Unauthorized", "no"), 401, "TokenInvalid"),
    ],
)
async def test_answers_of_the_api_server(api: RestApi, error: ApiError, status: int, reason: str) -> None:
    api.cluster.answers["create RLRun team/second"] = [error]
    answer = await create(api, RUN)
    assert (answer.status_code, answer.json()["reason"]) == (status, reason)
    assert "10.0.0.1" not in answer.text


@pytest.mark.parametrize("query", [{}, {"dryRun": "all"}])
@pytest.mark.parametrize(
    ("body", "created", "pointer"), [(SPEC, "run-*", "/env/0/id"), (RUN, "second", "/spec/env/0/id")]
)
async def test_causes_of_the_api_server_are_pointers_into_the_body(
    api: RestApi, body: Any, created: str, pointer: str, query: dict[str, str]
) -> None:
    causes = {"causes": [{"field": "spec.env[0].id", "message": "is wrong"}]}
    api.cluster.answers[f"create RLRun team/{created}"] = [ApiError(422, "Invalid", "invalid", details=causes)]
    answer = await create(api, body, **query)
    assert (answer.status_code, answer.json()["errors"]) == (422, [{"pointer": pointer, "detail": "is wrong"}])


async def change(api: RestApi, body: Any, media_type: str = MERGE_PATCH, **headers: str) -> Response:
    sent = {**api.user("ann", *RIGHTS), "Content-Type": media_type, **headers}
    return await api.client.patch(f"{RUNS}/first", content=json.dumps(body), headers=sent)


async def test_fields_that_can_change_are_changed(api: RestApi) -> None:
    answer = await change(api, {"spec": {"maxSteps": 80}})
    assert (answer.status_code, answer.json()["spec"]["maxSteps"]) == (200, 80)
    assert api.cluster.requests[-1].body == {
        "metadata": {"uid": api.cluster.objects["RLRun", "team", "first"]["metadata"]["uid"]},
        "spec": {"maxSteps": 80},
    }


@pytest.mark.parametrize(
    ("changes", "text"), [({"model": "x"}, "cannot be changed"), ({"maxStep": 1}, "did you mean maxSteps?")]
)
async def test_fields_that_cannot_change_are_named(api: RestApi, changes: Any, text: str) -> None:
    answer = await change(api, {"spec": changes})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, f"/spec/{next(iter(changes))}")
    assert text in error["detail"]
    assert not writes(api)


@pytest.mark.parametrize("body", [{}, [], {"maxSteps": 1}, {"spec": 1}, {"spec": {}, "metadata": {"labels": {}}}])
async def test_a_patch_is_one_of_the_spec(api: RestApi, body: Any) -> None:
    assert (await change(api, body)).status_code == 400
    assert not writes(api)


async def test_a_run_that_others_have_changed_is_left_alone(api: RestApi) -> None:
    outdated = await change(api, {"spec": {"maxSteps": 80}}, **{"If-Match": '"999"'})
    assert (outdated.status_code, outdated.json()["reason"]) == (409, "ObjectChanged")
    current = await api.client.get(f"{RUNS}/first", headers=api.user("ann", *RIGHTS))
    fresh = await change(api, {"spec": {"maxSteps": 80}}, **{"If-Match": current.headers["etag"]})
    assert fresh.status_code == 200


@pytest.mark.parametrize(
    ("action", "field", "value"), [("stop", "stop", True), ("suspend", "suspend", True), ("resume", "suspend", False)]
)
async def test_actions_set_their_field(api: RestApi, action: str, field: str, value: bool) -> None:
    answer = await api.client.post(f"{RUNS}/first:{action}", headers=api.user("ann", *RIGHTS))
    assert (answer.status_code, answer.json()["spec"][field]) == (200, value)


@pytest.mark.parametrize(("artifacts", "policy"), [("retain", "Retain"), ("delete", "Delete"), (None, None)])
async def test_deletion_says_what_becomes_of_the_files(api: RestApi, artifacts: str | None, policy: str | None) -> None:
    query = {"artifacts": artifacts} if artifacts else {}
    answer = await api.client.delete(f"{RUNS}/first", params=query, headers=api.user("ann", *RIGHTS))
    assert (answer.status_code, answer.json()["name"]) == (200, "first")
    patches = [request.body for request in api.cluster.requests if request.verb.name == "PATCH"]
    assert [(patch or {})["spec"]["artifactPolicy"] for patch in patches] == ([policy] if policy else [])
    assert ("RLRun", "team", "first") not in api.cluster.objects


async def test_an_api_key_changes_what_its_account_may_change(api: RestApi) -> None:
    headers = await api.key("team", *RIGHTS)
    for name in ("second", "third"):
        body = {**RUN, "metadata": {"name": name}}
        answer = await api.client.post(RUNS, json=body, headers=headers)
        assert answer.status_code == 201, answer.text
    (token,) = {request.extra_headers["Authorization"] for request in api.cluster.requests}
    assert token.startswith("Bearer made.")
    (asked,) = api.api.made_tokens
    assert str(asked) == "create the token of ServiceAccount team/rlrun-user"
    assert (asked.body or {})["spec"] == {"expirationSeconds": 600}
    api.api.add_account("other")
    answer = await api.client.post(RUNS.replace("team", "other"), json=RUN, headers=headers)
    assert (answer.status_code, answer.json()["reason"]) == (404, "NamespaceNotFound")


async def test_api_keys_only_read_if_the_platform_says_so() -> None:
    api = rest_api(api_keys_may_write=False)
    api.add(run_object("first"))
    headers = await api.key("team", *RIGHTS)
    made = await api.client.post(RUNS, json=RUN, headers=headers)
    changed = await api.client.patch(f"{RUNS}/first", json={"spec": {"maxSteps": 80}}, headers=headers)
    for answer in (made, changed):
        assert (answer.status_code, answer.json()["reason"]) == (403, "ApiKeyNotAllowed")
    assert not api.cluster.requests
    assert not api.api.made_tokens
    assert (await api.client.get(f"{RUNS}/first", headers=headers)).status_code == 200
