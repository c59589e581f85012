"""The API server's verdict on the fixture specs: the same as pydantic's, naming the same field."""

import json

import pytest
from kubernetes import client

from tests.apiserver.rlrun_api.server import BY_NAME, Server
from tests.fixtures.specs import cases


def _refusal(error: client.ApiException, field: str) -> str:
    """The part of a refusal that names the field; the whole message when none does."""
    assert error.status in (400, 403, 422), error.body
    body = json.loads(error.body)
    causes = (body.get("details") or {}).get("causes", [])
    if any(cases.names_field(cause.get("field", ""), field) for cause in causes):
        return field
    # Unknown fields are not causes of their own.
    return field if f'unknown field "{field}"' in body["message"] else body["message"]


@pytest.mark.parametrize("case", cases.valid(), ids=lambda c: c.name)
def test_valid_specs_are_accepted_and_get_the_defaults_of_the_schema(case: cases.Case, server: Server) -> None:
    stored = server.send("POST", case.object["kind"], case.object)
    expected = BY_NAME[case.object["kind"]].model.from_object(case.object).spec.to_json_dict()
    assert _comparable(stored["spec"]) == _comparable(expected)


@pytest.mark.parametrize("case", cases.invalid(), ids=lambda c: c.name)
def test_invalid_specs_are_refused_and_the_field_named(case: cases.Case, server: Server) -> None:
    with pytest.raises(client.ApiException) as caught:
        server.send("POST", case.object["kind"], case.object)
    assert _refusal(caught.value, case.field) == case.field


@pytest.mark.parametrize("update", cases.updates("allowed"), ids=lambda u: u.name)
def test_allowed_updates(update: cases.Update, server: Server) -> None:
    server.send("POST", update.object["kind"], update.object, dry_run=False)
    try:
        server.send("PATCH", update.object["kind"], update.change, update.object["metadata"]["name"])
    finally:
        server.delete(update.object)


@pytest.mark.parametrize("update", cases.updates("refused"), ids=lambda u: u.name)
def test_refused_updates_name_the_field(update: cases.Update, server: Server) -> None:
    server.send("POST", update.object["kind"], update.object, dry_run=False)
    try:
        with pytest.raises(client.ApiException) as caught:
            server.send("PATCH", update.object["kind"], update.change, update.object["metadata"]["name"])
        assert _refusal(caught.value, update.field) == update.field
    finally:
        server.delete(update.object)


def _comparable(value: object) -> object:
    """Numbers as text: JSON makes no difference between 2 and 2.0, nor a quantity between 2 and "2"."""
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_comparable(v) for v in value]
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value
