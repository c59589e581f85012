"""Random requests to every operation of the OpenAPI document: no 5xx, and problems as declared."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rlrun_server.rest.problems import MEDIA_TYPE, ProblemDetails
from rlrun_server.rest.rest_app import rest_app
from rlrun_server.users import Check, User, Users

from tests.support.rest_api import SPEC, RestApi, rest_api, run_object

DOCUMENT = rest_app().openapi()
OPERATIONS = [(method, path) for path, item in DOCUMENT["paths"].items() for method in item]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NEAR = st.sampled_from([{"spec": SPEC}, SPEC, {"spec": {"stop": True}}, {"data": {"KEY": "value"}}])
SEGMENT = st.sampled_from(["team", "first"]) | st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
VALUE = st.sampled_from(["0", "-1", "501", "all", "-created", "2026-01-01", "*", ""]) | st.text(max_size=8)
TYPES = st.sampled_from(
    ["application/json", "application/yaml", "application/toml", "application/merge-patch+json", "x"]
)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users may do everything, so that requests get behind the checks."""

    async def may(users: Users, user: User, check: Check) -> bool:
        return True

    monkeypatch.setattr(Users, "may", may)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
@settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_random_requests(allowed: None, method: str, path: str, data: st.DataObject) -> None:
    operation = DOCUMENT["paths"][path][method]
    url, query, headers = path.removeprefix("/rlrun/v1"), {}, {}
    for parameter in operation.get("parameters", []):
        name = parameter["name"]
        if parameter["in"] == "path":
            url = url.replace(f"{{{name}}}", quote(data.draw(SEGMENT, name), safe=""))
        elif data.draw(st.booleans(), f"has {name}"):
            found = data.draw(VALUE, name)
            if parameter["in"] == "query":
                query[name] = found
            else:
                headers[name] = quote(found)
    body: Any = None
    if "requestBody" in operation:
        headers["Content-Type"] = data.draw(TYPES, "type")
        body = data.draw(st.binary(max_size=30) | (JSON | NEAR).map(lambda value: str(value).replace("'", '"')), "body")

    async def send() -> None:
        api: RestApi = rest_api()
        api.add(run_object("first"))
        user = api.user("ann")
        answer = await api.client.request(method, url, params=query, headers={**user, **headers}, content=body)
        assert answer.status_code < 500, answer.text
        declared = operation["responses"]
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == MEDIA_TYPE, answer.text
            assert ProblemDetails.model_validate(answer.json()).status == answer.status_code
        else:
            assert str(answer.status_code) in declared

    asyncio.run(send())
