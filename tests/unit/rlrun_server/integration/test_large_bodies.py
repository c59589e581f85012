"""Bodies and objects of a megabyte, which take a tenth of a second and more: beside the event loop on every route."""

import base64
import random
import threading
from types import ModuleType
from typing import Any

import pytest
from rlrun.api.base import received
from rlrun.api.base.received import read_json
from rlrun_server.hosted_api.routes import run_routes
from rlrun_server.rest.objects import run_bodies
from rlrun_server.rest.routes import runs

from tests.support.hosted_api import hosted_api, model_object
from tests.support.rest_api import run_object, uid_of

USER = [
    *(f"{verb} secrets in team" for verb in ("get", "update", "create")),
    "list rlruns in team",
    "patch rlruns in team",
    "get rlruns in team",
]


@pytest.mark.parametrize(
    ("module", "is_hosted", "method", "path", "body"),
    [
        (received, False, "PUT", "/namespaces/team/secrets/new", {"data": {"A": "b"}}),
        (run_bodies, False, "PATCH", "/namespaces/team/runs/first", {"spec": {"maxSteps": 50}}),
        (received, True, "POST", "/secrets/", {"name": "NEW", "value": "x"}),
    ],
)
async def test_bodies_are_read_in_their_thread(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, is_hosted: bool, method: str, path: str, body: dict[str, Any]
) -> None:
    threads: list[str] = []

    def recorded(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return read_json(*args, **kwargs)

    monkeypatch.setattr(module, "read_json", recorded)
    hosted = hosted_api()
    hosted.rest.add(model_object(), run_object("first"))
    await hosted.key()
    client, headers = (hosted.client, {}) if is_hosted else (hosted.rest.client, hosted.rest.user("ann", *USER))
    answer = await client.request(method, path, json=body, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    assert threads == ["bodies_0"]


@pytest.mark.parametrize(("length", "thread"), [(10, "MainThread"), (100_000, "metric-answers_0")])
@pytest.mark.parametrize(
    ("module", "name", "is_hosted", "path"),
    [
        (runs, "RunDetail", False, "/namespaces/team/runs/first"),
        (runs, "RunConfig", False, "/namespaces/team/runs/first/config"),
        (run_routes, "run_of", True, "/rft/runs/first"),
    ],
)
async def test_large_runs_are_shown_in_the_thread_of_answers(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    name: str,
    is_hosted: bool,
    path: str,
    length: int,
    thread: str,
) -> None:
    threads: list[str] = []
    original = getattr(module, name)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread().name)
        return original(*args, **kwargs)

    monkeypatch.setattr(module, name, recorded)
    hosted = hosted_api()
    hosted.rest.add(model_object(), run_object("first", env=[{"id": "team/a", "args": {"text": length * "x"}}]))
    await hosted.key()
    client, headers = (hosted.client, {}) if is_hosted else (hosted.rest.client, hosted.rest.user("ann", *USER))
    assert (await client.get(path, headers=headers)).status_code == 200
    assert threads == [thread]


@pytest.mark.parametrize(
    ("is_hosted", "path"),
    [
        (False, "/namespaces/team/runs/first"),
        (False, "/namespaces/team/runs/first/config"),
        (False, "/compare?run=team/first&run=team/second"),
        (True, "/rft/runs"),
        (True, f"/rft/runs/{uid_of(1)}"),
    ],
)
async def test_runs_that_are_not_kept_whole_are_read_when_they_are_shown(is_hosted: bool, path: str) -> None:
    text = base64.b85encode(random.Random(1).randbytes(100_000)).decode()
    first = run_object("first", env=[{"id": "team/a", "args": {"text": text}}])
    hosted = hosted_api()
    hosted.rest.add(model_object(), first, run_object("second", number=2))
    known = hosted.rest.services.objects.runs.find("team", "first")
    assert known is not None
    assert known.data is None
    await hosted.key()
    client, headers = (hosted.client, {}) if is_hosted else (hosted.rest.client, hosted.rest.user("ann", *USER))
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    assert "team/a" in answer.text
    assert [str(request) for request in hosted.rest.cluster.requests] == ["list rlruns in namespace team"]

    del hosted.rest.cluster.objects["RLRun", "team", "first"]
    assert (await client.get(path, headers=headers)).status_code == (200 if path == "/rft/runs" else 404)
