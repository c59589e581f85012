"""The route of logs: pods with the caller's token, else copies in S3."""

import asyncio
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import StoredObject
from rlrun_server.rest.logs import container_logs, log_reader

from tests.support.fake_s3 import InMemoryStore
from tests.support.rest_api import BUCKET, RestApi, rest_api, run_object, uid_of

LINE = b"2026-01-01T00:00:0%dZ INFO %s\n"


def pod(name: str, role: str = "orchestrator", uid: str = uid_of(1), attempt: int = 1, **labels: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "labels": {
                "rlrun.dev/run": "first",
                "rlrun.dev/run-uid": uid,
                "rlrun.dev/role": role,
                "rlrun.dev/attempt": str(attempt),
                **{f"rlrun.dev/{key}": value for key, value in labels.items()},
            },
            "ownerReferences": [{"kind": "ReplicaSet", "name": "owner", "uid": "u", "controller": True}],
        },
        "spec": {"containers": [{"name": "main"}, {"name": "sidecar"}]},
    }


@pytest.fixture
def store() -> InMemoryStore:
    return InMemoryStore(BUCKET)


@pytest.fixture
def api(store: InMemoryStore) -> RestApi:
    found = rest_api(store)
    found.add(run_object("first"))
    return found


async def logs(api: RestApi, run: str = "first", **query: Any) -> Any:
    user = api.user("ann", "get rlruns/log in team")
    return await api.client.get(f"/namespaces/team/runs/{run}/logs", params=query, headers=user)


def texts(answer: Any) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [line["message"] for line in answer.json()["lines"]]


def keep(
    store: InMemoryStore, attempt: int, pod_name: str, container: str, text: bytes, previous: bool = False
) -> None:
    layout = RunLayout.of(BUCKET, "prefix", "team", uid_of(1))
    store.put_bytes(layout.log(attempt, pod_name, container, previous), text)


async def test_a_run_of_a_clients_program_has_no_logs(api: RestApi) -> None:
    api.add(run_object("second", number=2, driver="Client", env=[]))
    answer = await logs(api, "second")
    assert answer.status_code == 404
    assert "a client's program trains it" in answer.json()["detail"]


async def test_lines_of_a_pod_come_with_the_callers_token(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    api.cluster.logs["first-orchestrator-x/main"] = LINE % (1, b"one") + LINE % (2, b"two")
    answer = await logs(api, tail=1)
    assert answer.json() == {
        "namespace": "team",
        "uid": uid_of(1),
        "source": "live",
        "isComplete": False,
        "problems": [],
        "lines": [
            {
                "time": "2026-01-01T00:00:02Z",
                "role": "orchestrator",
                "pod": "first-orchestrator-x",
                "attempt": 1,
                "level": "INFO",
                "message": "INFO two",
            }
        ],
    }
    assert {request.extra_headers["Authorization"] for request in api.cluster.requests} == {"Bearer token-of-ann"}
    log = api.cluster.requests[-1]
    assert (log.query["tailLines"], log.query["timestamps"]) == ("1", "true")


async def test_lines_of_several_pods_are_one_list_by_time(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    api.cluster.put(pod("first-trainer-x", "trainer"))
    api.cluster.logs["first-orchestrator-x/main"] = LINE % (1, b"one") + LINE % (3, b"three")
    api.cluster.logs["first-trainer-x/main"] = LINE % (2, b"two")
    assert texts(await logs(api, role=["trainer", "orchestrator"])) == ["INFO one", "INFO two", "INFO three"]
    assert texts(await logs(api, role="trainer")) == ["INFO two"]


async def test_pods_that_are_not_of_the_run_are_not_read(api: RestApi) -> None:
    api.cluster.put(pod("of-an-earlier-run", uid=uid_of(2)))
    own = pod("without-a-controller")
    own["metadata"]["ownerReferences"] = []
    api.cluster.put(own)
    api.cluster.logs |= {"of-an-earlier-run/main": LINE % (1, b"a"), "without-a-controller/main": LINE % (1, b"b")}
    answer = await logs(api)
    assert (answer.status_code, answer.json()["reason"]) == (404, "LogsNotAvailable")


async def test_environments_are_selected_as_by_the_command_line(api: RestApi) -> None:
    for number in (0, 1):
        api.cluster.put(pod(f"first-env-{number}-x", "environment", component=f"env-{number}"))
        api.cluster.logs[f"first-env-{number}-x/main"] = LINE % (1, b"env %d" % number)
    assert texts(await logs(api, env="reverse")) == ["INFO env 0"]
    assert len(texts(await logs(api, role="environment"))) == 2
    unknown = await logs(api, env="other")
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (422, "query/env")
    assert "acme/reverse" in unknown.text
    wrong_role = await logs(api, env="reverse", role="trainer")
    assert (wrong_role.status_code, wrong_role.json()["errors"][0]["pointer"]) == (422, "query/env")


async def test_filters_look_at_more_lines_than_are_returned(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    lines = [LINE % (1, b"needle %d" % n) if n % 100 == 0 else LINE % (1, b"hay") for n in range(1000)]
    api.cluster.logs["first-orchestrator-x/main"] = b"".join(lines)
    assert texts(await logs(api, search="NEEDLE", tail=2)) == ["INFO needle 800", "INFO needle 900"]
    assert texts(await logs(api, regex="needle [1-3]", tail=100)) == [f"INFO needle {n}00" for n in (1, 2, 3)]
    assert texts(await logs(api, level="ERROR")) == []


@pytest.mark.parametrize(
    ("query", "pointer"),
    [({"regex": "(?=x)"}, "query/regex"), ({"since": "2026-13-01T00:00:00Z"}, "query/since")],
)
async def test_a_filter_that_cannot_be_used_is_refused(api: RestApi, query: dict[str, str], pointer: str) -> None:
    answer = await logs(api, **query)
    assert answer.status_code == 422
    assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]


@pytest.mark.parametrize("query", [{"tail": 5001}, {"tail": 0}, {"since": "yesterday"}, {"level": "x"}, {"role": "x"}])
async def test_parameters_are_checked(api: RestApi, query: dict[str, str]) -> None:
    answer = await logs(api, **query)
    assert (answer.status_code, answer.json()["reason"]) == (400, "InvalidRequest")


async def test_a_run_without_pods_says_what_it_waits_for(api: RestApi) -> None:
    waiting = run_object("first", number=1, phase="Queued")
    waiting["status"]["reason"] = "WaitingForCapacity"
    waiting["metadata"]["resourceVersion"] = "9"
    api.add(waiting)
    answer = await logs(api)
    assert (answer.status_code, answer.json()["reason"]) == (404, "LogsNotAvailable")
    assert "not available yet: run team/first is Queued (WaitingForCapacity)" in answer.json()["detail"]


async def test_a_container_that_has_not_started(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    answer = await logs(api)
    assert (answer.status_code, answer.json()["reason"]) == (404, "LogsNotAvailable")
    assert "the container of first-orchestrator-x has not started" in answer.json()["detail"]


async def test_the_api_server_decides_about_pods(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    phrase = "read the log of team/first-orchestrator-x (main)"
    api.cluster.answers[phrase] = [ApiError(403, "Forbidden", "pods/log is forbidden")]
    answer = await logs(api)
    assert (answer.status_code, answer.json()["reason"]) == (403, "AccessForbidden")
    assert "ods/log is forbidden" in answer.json()["detail"]


async def test_a_pod_that_cannot_be_read_hides_no_other(api: RestApi) -> None:
    for name in ("a", "b"):
        api.cluster.put(pod(name))
    api.cluster.logs["b/main"] = LINE % (1, b"fine")
    api.cluster.answers["read the log of team/a (main)"] = [ApiError(500, "InternalError", "the node is lost")]
    answer = await logs(api)
    assert texts(answer) == ["INFO fine"]
    assert [problem["pod"] for problem in answer.json()["problems"]] == ["a"]


async def test_copies_of_a_finished_run(api: RestApi, store: InMemoryStore) -> None:
    finished = run_object("first", number=1, phase="Completed")
    finished["metadata"]["resourceVersion"] = "9"
    api.add(finished)
    keep(store, 1, "first-trainer-a", "trainer", b"old\n")
    keep(store, 2, "first-trainer-b", "trainer", b"2026-01-01 00:00:01,5 INFO x: new\n")
    keep(store, 2, "first-trainer-b", "trainer", b"before the restart\n", previous=True)
    answer = await logs(api, role="trainer")
    assert texts(answer) == ["2026-01-01 00:00:01,5 INFO x: new"]
    assert (answer.json()["source"], answer.json()["lines"][0]["attempt"]) == ("kept", 2)
    assert texts(await logs(api, role="trainer", attempt=1)) == ["old"]
    assert texts(await logs(api, role="trainer", previous=True)) == ["before the restart"]
    missing = await logs(api, role="inference")
    assert (missing.status_code, missing.json()["reason"]) == (404, "LogsNotAvailable")


async def test_a_deleted_run_is_read_by_its_uid(api: RestApi, store: InMemoryStore) -> None:
    api.services.objects.runs.handle_event("DELETED", run_object("first"))
    keep(store, 1, "first-orchestrator-a1-x", "orchestrator", b"over\n")
    assert texts(await logs(api, uid_of(1))) == ["over"]
    assert api.cluster.requests == []
    gone = await logs(api)
    assert (gone.status_code, gone.json()["reason"]) == (404, "ObjectNotFound")
    no_env = await logs(api, uid_of(1), env="reverse")
    assert no_env.status_code == 422


async def test_a_copy_is_read_from_its_end(api: RestApi, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_logs, "MAX_POD_BYTES", 10)
    api.services.objects.runs.handle_event("DELETED", run_object("first"))
    keep(store, 1, "first-orchestrator-a1-x", "orchestrator", b"first\nsecond\nthird\n")
    answer = await logs(api, uid_of(1))
    assert (texts(answer), answer.json()["isComplete"]) == (["third"], False)


@pytest.mark.parametrize(("count", "is_complete"), [(3, True), (4, False)])
async def test_a_search_that_did_not_reach_the_begin_of_a_copy_is_not_complete(
    api: RestApi, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch, count: int, is_complete: bool
) -> None:
    monkeypatch.setattr(log_reader, "SEARCHED_LINES", 3)
    api.services.objects.runs.handle_event("DELETED", run_object("first"))
    keep(store, 1, "first-orchestrator-a1-x", "orchestrator", b"needle\n" * count)
    answer = await logs(api, uid_of(1), search="needle")
    assert (texts(answer), answer.json()["isComplete"]) == (["needle"] * 3, is_complete)


async def test_control_characters_and_bytes_that_are_no_text_arrive_as_json(api: RestApi) -> None:
    api.cluster.put(pod("first-orchestrator-x"))
    api.cluster.logs["first-orchestrator-x/main"] = LINE % (1, b"\x00\x1b[0m<img onerror=x>\xff")
    assert texts(await logs(api)) == ["INFO \x00\x1b[0m<img onerror=x>�"]


async def test_a_node_that_does_not_answer_is_waited_for_no_longer(
    api: RestApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object) -> Any:
        await asyncio.Event().wait()

    monkeypatch.setattr(container_logs, "READ_SECONDS", 0.05)
    monkeypatch.setattr(api.cluster, "chunks", hang)
    api.cluster.put(pod("first-orchestrator-x"))
    answer = await logs(api)
    assert (answer.status_code, answer.json()["reason"]) == (503, "ApiServerUnavailable")


async def test_one_user_cannot_take_all_reads(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = asyncio.Event()

    async def slowly(*_: object) -> Any:
        await goes_on.wait()
        return [LINE % (1, b"one")]

    monkeypatch.setattr(api.cluster, "chunks", slowly)
    api.cluster.put(pod("first-orchestrator-x"))
    waiting = [asyncio.create_task(logs(api)) for _ in range(log_reader.PER_USER + 1)]
    (refused,), others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (refused.result().status_code, refused.result().json()["reason"]) == (429, "TooManyRequests")
    goes_on.set()
    for other in others:
        assert (await other).status_code == 200


async def test_copies_of_one_namespace_that_s3_does_not_send_delay_no_other(
    api: RestApi, store: InMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, walk = threading.Event(), store.walk

    def slow_walk(uri: S3Uri) -> Iterable[StoredObject]:
        if "/slow/" in uri.key:
            may_end.wait(60)
        return walk(uri)

    monkeypatch.setattr(store, "walk", slow_walk)
    users = [api.user(name, f"get rlruns/log in {where}") for name, where in (("a", "slow"), ("b", "slow"))]
    slow = [
        asyncio.create_task(api.client.get(f"/namespaces/slow/runs/{uid_of(7)}/logs", headers=user)) for user in users
    ]
    try:
        await asyncio.sleep(0.1)
        answer = await asyncio.wait_for(logs(api, uid_of(9)), 20)
        assert answer.json()["reason"] == "LogsNotAvailable"
    finally:
        may_end.set()
    assert [answer.status_code for answer in await asyncio.gather(*slow)] == [404, 404]
