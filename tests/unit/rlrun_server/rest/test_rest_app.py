"""All routes: the check that each declares, what it tells of namespaces, and the OpenAPI document."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from rlrun_server.rest.base.access import Anyone, Identified, Requirement
from rlrun_server.rest.base.problems import ProblemDetails
from rlrun_server.rest.openapi_document import openapi_text
from rlrun_server.rest.rest_app import OPENAPI_PATH, rest_app

from tests.support.rest_api import RestApi, rest_api, run_object

OPEN = {OPENAPI_PATH}
"""Paths for everybody."""


def routes() -> list[APIRoute]:
    """Return all routes of the API."""
    found: list[APIRoute] = []
    pending = list(rest_app().routes)
    while pending:
        route = pending.pop()
        if isinstance(route, APIRoute):
            found.append(route)
        else:
            pending += list(getattr(getattr(route, "original_router", None), "routes", []))
    return found


FOR_ANYONE = {("POST", "/session"), ("POST", "/session:oidc"), ("DELETE", "/session")}
"""Login and logout."""


def checks_of(route: APIRoute) -> list[Requirement | Identified | Anyone]:
    calls = [dependency.call for dependency in route.dependant.dependencies]
    return [call for call in calls if isinstance(call, Requirement | Identified | Anyone)]


def in_namespace() -> Iterator[object]:
    for route in routes():
        for check in checks_of(route):
            if isinstance(check, Requirement):
                for method in route.methods or ():
                    yield pytest.param(method, route.path, check, id=f"{method} {route.path}")


def url_of(path: str, namespace: str) -> str:
    return re.sub(r"\{.*?\}", "first", path.replace("{namespace}", namespace)).removeprefix("/rlrun/v1")


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.add(run_object("first"))
    return found


def test_every_route_declares_its_check() -> None:
    found = routes()
    assert len(found) > 15
    for route in found:
        assert len(checks_of(route)) == 1, f"{route.path} needs requires(...) or IDENTIFIED"
        is_open = isinstance(checks_of(route)[0], Anyone)
        assert is_open == ((min(route.methods or ()), route.path) in FOR_ANYONE), route.path
        if "{namespace}" in route.path:
            assert isinstance(checks_of(route)[0], Requirement), route.path


KINDS = {
    "adapters": "rladapters", "checkpoints": "rlcheckpoints", "runs": "rlruns", "secrets": "secrets", "usage": "rlruns"
}  # fmt: skip
SUBRESOURCES = {"logs": "/log", "metrics": "/metrics", "steps": "/samples", "examples": "/samples"}
VERBS = {"GET": "get", "POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


@pytest.mark.parametrize(("method", "path", "check"), list(in_namespace()))
def test_the_right_of_a_route_is_that_of_its_object(method: str, path: str, check: Requirement) -> None:
    kind, name, part = [*path.partition("{namespace}/")[2].split("/"), "", ""][:3]
    is_action = ":" in name.rpartition("}")[2]
    verb = "patch" if is_action else "list" if method == "GET" and not name else VERBS[method]
    expected = "list events" if part == "events" else f"{verb} {KINDS[kind]}{SUBRESOURCES.get(part, '')}"
    right = check.permission
    assert f"{right.verb} {right.resource}{f'/{right.subresource}' if right.subresource else ''}" == expected


@pytest.mark.parametrize(("method", "path", "check"), list(in_namespace()))
async def test_without_the_right_a_namespace_looks_as_if_it_were_not_there(
    api: RestApi, method: str, path: str, check: Requirement
) -> None:
    stranger = api.user("stranger", "list rlruns in another")
    answers = [await api.client.request(method, url_of(path, name), headers=stranger) for name in ("team", "nowhere")]
    bodies = []
    for name, answer in zip(("team", "nowhere"), answers, strict=True):
        assert answer.status_code == 404
        text = answer.text.replace(name, "NAMESPACE")
        bodies.append(re.sub(r'"requestId": "\w+"', "", text))
    assert bodies[0] == bodies[1]
    assert "NamespaceNotFound" in bodies[0]


@pytest.mark.parametrize(("method", "path", "check"), list(in_namespace()))
async def test_who_sees_the_namespace_is_told_which_right_is_missing(
    api: RestApi, method: str, path: str, check: Requirement
) -> None:
    right = check.permission
    resource = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    if (right.verb, resource) == ("list", "rlruns"):
        return
    viewer = api.user("viewer", "list rlruns in team")
    answer = await api.client.request(method, url_of(path, "team"), headers=viewer)
    problem = ProblemDetails.model_validate(answer.json())
    assert (answer.status_code, problem.reason) == (403, "AccessForbidden")
    assert f"may not {right.verb} {resource} in namespace team" in problem.detail
    may = api.user("member", "list rlruns in team", f"{right.verb} {resource} in team")
    allowed = await api.client.request(method, url_of(path, "team"), headers=may)
    assert "may not" not in allowed.text


@pytest.mark.parametrize("route", routes(), ids=lambda route: f"{min(route.methods or ())} {route.path}")
async def test_without_a_credential_there_is_nothing(api: RestApi, route: APIRoute) -> None:
    for method in route.methods or ():
        if (method, route.path) in FOR_ANYONE:
            continue
        answer = await api.client.request(method, url_of(route.path, "team"))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Bearer")
        assert answer.headers["content-type"] == "application/problem+json"
        assert ProblemDetails.model_validate(answer.json()).reason == "TokenInvalid"


async def test_the_openapi_document_describes_problems(api: RestApi) -> None:
    answer = await api.client.get("/openapi.json")
    document = answer.json()
    assert document["openapi"].startswith("3.1")
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        assert "application/problem+json" in operation["responses"]["4XX"]["content"]
        assert "422" not in operation["responses"]
        assert operation["summary"]
    assert set(document["components"]["schemas"]["ProblemDetails"]["required"]) >= {"reason", "requestId", "detail"}


def test_the_committed_document_is_the_current_one() -> None:
    committed = Path(__file__).parents[4] / "docs/reference/openapi.json"
    assert committed.read_text() == openapi_text(), "run `make generate`"


@pytest.mark.parametrize("path", ["/whoami", "/openapi.json", "/nothing"])
async def test_no_answer_becomes_a_page_of_the_servers_origin(api: RestApi, path: str) -> None:
    headers = (await api.client.get(path, headers=api.user("ann"))).headers
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'; sandbox"
    assert (headers["x-content-type-options"], headers["cross-origin-resource-policy"]) == ("nosniff", "same-origin")
    assert headers["cache-control"] == "no-store"


async def test_paths_and_methods_that_are_not_there_are_problems(api: RestApi) -> None:
    user = api.user("ann")
    missing = await api.client.get("/nothing", headers=user)
    assert (missing.status_code, missing.json()["reason"]) == (404, "ObjectNotFound")
    wrong = await api.client.post("/whoami", headers=user)
    assert (wrong.status_code, wrong.json()["reason"]) == (405, "MethodNotAllowed")
    assert wrong.headers["allow"] == "GET"


async def test_methods_of_a_path_are_those_of_all_its_routes(api: RestApi) -> None:
    user = api.user("ann", "list rlruns in team", "patch rlruns in team")
    for path, methods in (("runs/first", "DELETE, GET, PATCH"), ("runs/first:stop", "POST"), ("runs", "GET, POST")):
        for method in ("OPTIONS", "PUT", "PATCH"):
            answer = await api.client.request(method, f"/namespaces/team/{path}", headers=user)
            if method not in methods:
                assert (answer.status_code, answer.headers["allow"]) == (405, methods), (path, answer.text)
    unknown = await api.client.post("/namespaces/team/runs/first:begin", headers=user)
    assert unknown.status_code == 405


async def test_a_wrong_request_makes_no_openapi_document(api: RestApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("the document takes too long while requests wait")

    monkeypatch.setattr("rlrun_server.rest.rest_app.openapi_of", refuse)
    user = api.user("ann", "list rlruns in team")
    assert (await api.client.get("/namespaces/team/runs", params={"limit": "x"}, headers=user)).status_code == 400
    assert (await api.client.put("/namespaces/team/runs", headers=user)).status_code == 405


async def test_applications_share_their_routes_and_nothing_else(api: RestApi) -> None:
    another = rest_api()
    for found, names in ((api, ["first"]), (another, [])):
        answer = await found.client.get("/namespaces/team/runs", headers=found.user("ann", "list rlruns in team"))
        assert [run["name"] for run in answer.json()["items"]] == names


async def test_an_unexpected_error_tells_nothing_from_inside(
    api: RestApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("with a secret")

    monkeypatch.setattr(type(api.services.objects), "require", fail)
    answer = await api.client.get("/models", headers=api.user("ann"))
    assert answer.status_code == 500
    assert "secret" not in answer.text
    problem = ProblemDetails.model_validate(answer.json())
    assert problem.request_id == answer.headers["x-request-id"]
    assert problem.request_id in caplog.text


async def test_an_api_server_that_does_not_review_is_no_refusal(api: RestApi) -> None:
    user = api.user("ann")
    api.api.is_away = True
    answer = await api.client.get("/whoami", headers=user)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0


async def test_requests_of_a_user_are_limited(api: RestApi) -> None:
    statuses = [(await api.client.get("/whoami", headers=api.user("ann"))).status_code for _ in range(105)]
    assert statuses == [200] * 100 + [429] * 5
    assert (await api.client.get("/whoami", headers=api.user("bob"))).status_code == 200
