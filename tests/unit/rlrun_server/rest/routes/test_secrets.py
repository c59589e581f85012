"""Secrets of a namespace: written by their users, never returned."""

import base64
from typing import Any

import pytest
from httpx import Response

from tests.support.rest_api import RestApi, rest_api

RIGHTS = [f"{verb} secrets in team" for verb in ("list", "get", "create", "update", "delete")] + ["list rlruns in team"]
SECRETS = "/namespaces/team/secrets"
VALUE = "do-not-tell"


def secret(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "team", "labels": labels}
    data = {"OLD": base64.b64encode(VALUE.encode()).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "data": data}


@pytest.fixture
def api() -> RestApi:
    found = rest_api()
    found.cluster.put(secret("mine", keep="me"))
    found.cluster.put(secret("token", **{"app.kubernetes.io/managed-by": "rlrun-operator"}))
    return found


async def put(api: RestApi, name: str, body: Any) -> Response:
    return await api.client.put(f"{SECRETS}/{name}", json=body, headers=api.user("ann", *RIGHTS))


def stored(api: RestApi, name: str) -> dict[str, Any]:
    return api.cluster.objects["Secret", "team", name]


async def test_names_are_listed_without_values(api: RestApi) -> None:
    answer = await api.client.get(SECRETS, headers=api.user("ann", *RIGHTS))
    assert [item["name"] for item in answer.json()["items"]] == ["mine"]
    assert VALUE not in answer.text
    (request,) = api.cluster.requests
    assert "PartialObjectMetadataList" in request.headers["Accept"], "values do not reach the server"
    assert request.query["fieldSelector"] == "type=Opaque"


@pytest.mark.parametrize(("name", "status"), [("new", 201), ("mine", 200)])
async def test_a_secret_has_exactly_the_values_of_the_request(api: RestApi, name: str, status: int) -> None:
    answer = await put(api, name, {"data": {"WANDB_API_KEY": VALUE}})
    assert answer.status_code == status, answer.text
    assert VALUE not in answer.text
    assert stored(api, name)["data"] == {"WANDB_API_KEY": base64.b64encode(VALUE.encode()).decode()}
    if name == "mine":
        assert stored(api, name)["metadata"]["labels"] == {"keep": "me"}
    assert all(request.extra_headers["Authorization"] == "Bearer token-of-ann" for request in api.cluster.requests)


@pytest.mark.parametrize(
    "body", [{}, {"data": {}}, {"data": {"A": 1}}, {"data": {"a b": VALUE}}, {"data": {"A": VALUE}, "x": 1}, [VALUE]]
)
async def test_errors_contain_no_values(api: RestApi, body: Any) -> None:
    answer = await put(api, "mine", body)
    assert answer.status_code == 422
    assert VALUE not in answer.text
    assert "OLD" in stored(api, "mine")["data"]


async def test_secrets_of_the_operator_are_left_alone(api: RestApi) -> None:
    written = await put(api, "token", {"data": {"A": VALUE}})
    deleted = await api.client.delete(f"{SECRETS}/token", headers=api.user("ann", *RIGHTS))
    for answer in (written, deleted):
        assert (answer.status_code, answer.json()["reason"]) == (409, "SecretReserved")
    assert "OLD" in stored(api, "token")["data"]


async def test_a_secret_is_deleted(api: RestApi) -> None:
    answer = await api.client.delete(f"{SECRETS}/mine", headers=api.user("ann", *RIGHTS))
    assert answer.status_code == 200
    assert ("Secret", "team", "mine") not in api.cluster.objects
    missing = await api.client.delete(f"{SECRETS}/mine", headers=api.user("ann", *RIGHTS))
    assert missing.status_code == 404
