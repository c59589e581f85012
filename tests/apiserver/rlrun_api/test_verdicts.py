"""The API server's verdict on the fixture specs: the same as pydantic's, naming the same field."""

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    # pydantic moves a version out of an environment's id, the API server stores the id as it is written.
    for stored_entry, entry in zip(_environments(stored["spec"]), _environments(expected), strict=True):
        if "@" in stored_entry["id"]:
            package, _, version = stored_entry["id"].partition("@")
            assert (package, version or None) == (entry.pop("id"), entry.pop("version", None))
            entry |= {key: stored_entry[key] for key in ("id", "version") if key in stored_entry}
    assert _comparable(stored["spec"]) == _comparable(expected)


def _environments(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("env", []), *spec.get("eval", {}).get("env", [])]


@pytest.mark.parametrize("case", cases.invalid(), ids=lambda c: c.name)
def test_invalid_specs_are_refused_and_the_field_named(case: cases.Case, server: Server) -> None:
    with pytest.raises(client.ApiException) as caught:
        server.send("POST", case.object["kind"], case.object)
    assert _refusal(caught.value, case.field) == case.field


@pytest.mark.parametrize("update", cases.updates("allowed"), ids=lambda u: u.name)
def test_allowed_updates(update: cases.Update, server: Server) -> None:
    with _created(update, server) as name:
        server.send("PATCH", update.object["kind"], update.change, name)


@pytest.mark.parametrize("update", cases.updates("refused"), ids=lambda u: u.name)
def test_refused_updates_name_the_field(update: cases.Update, server: Server) -> None:
    with _created(update, server) as name:
        with pytest.raises(client.ApiException) as caught:
            server.send("PATCH", update.object["kind"], update.change, name)
        assert _refusal(caught.value, update.field) == update.field


@contextmanager
def _created(update: cases.Update, server: Server) -> Iterator[str]:
    """The object under a name of its own: workers share the API server, and models have no namespace."""
    name = f"update-{uuid.uuid4().hex[:8]}"
    body = {**update.object, "metadata": {**update.object["metadata"], "name": name}}
    server.send("POST", body["kind"], body, dry_run=False)
    try:
        yield name
    finally:
        server.delete(body)


def _comparable(value: object) -> object:
    """Numbers as text: JSON makes no difference between 2 and 2.0, nor a quantity between 2 and "2"."""
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_comparable(v) for v in value]
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else value
