"""Every field of every kind with values it was not made for: pydantic and the API server must not disagree once.

The fixtures say what should be refused; this finds what nobody thought of.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from pydantic import ValidationError
from rlrun.codegen.crd import KINDS, CrdKind, stored_schema

from tests.apiserver.rlrun_api.server import Object, Server
from tests.fixtures.specs import cases

ODD: tuple[Any, ...] = (None, True, 0, -1, 2.0, 1.5, 10**7, "", "A b", "s3://b/k", [], [None], {}, {"a": 1})
SEEDS = {
    "RLRun": ("run-full", "run-kubernetes"),
    "RLModel": ("model-gpus", "model-cpu"),
    "RLCheckpoint": ("checkpoint-shared",),
    "RLAdapter": ("adapter-deployed",),
}
"""Fixtures that together use every field."""


def _places(schema: Object, value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """The path of every field, in the first entry of lists."""
    for name, field in schema.get("properties", {}).items():
        here = (*path, name)
        yield here
        inside = value.get(name) if isinstance(value, dict) else None
        if field.get("type") == "array" and inside:
            yield (*here, 0)
            yield from _places(field["items"], inside[0], (*here, 0))
        elif inside and field.get("additionalProperties"):
            yield (*here, next(iter(inside)))
        elif isinstance(inside, dict):
            yield from _places(field, inside, here)


def _with(obj: Object, path: tuple[str | int, ...], value: Any) -> Object:
    changed = copy.deepcopy(obj)
    target: Any = changed
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return changed


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_pydantic_and_the_api_server_agree_on_odd_values(kind: CrdKind, server: Server) -> None:
    fixtures = {case.name: case.object for case in cases.valid()}
    seed: Object = {}
    for name in SEEDS[kind.name]:
        seed = {**fixtures[name], "spec": {**fixtures[name]["spec"], **seed.get("spec", {})}}
    schema = stored_schema(kind)["properties"]["spec"]
    # The schema cannot see into a patch: the operator refuses it in the condition Validated.
    places = [path for path in _places(schema, seed["spec"], ("spec",)) if path[-1] != "podTemplate"]
    assert len(places) >= 6
    differ = []
    for path in places:
        for value in ODD:
            obj = _with(seed, path, value)
            ours, theirs = _our_verdict(kind, obj), _their_verdict(server, obj)
            if bool(ours) != bool(theirs):
                differ.append(f"{path} = {value!r}: pydantic {ours or 'accepts'}; API server {theirs or 'accepts'}")
    assert not differ, "\n".join(differ)


def _our_verdict(kind: CrdKind, obj: Object) -> str:
    try:
        kind.model.from_object(obj)
    except ValidationError as error:
        return str(error.errors()[0]["msg"])
    return ""


def _their_verdict(server: Server, obj: Object) -> str:
    try:
        server.send("POST", obj["kind"], obj)
    except client.ApiException as error:
        if error.status not in (400, 422):
            raise
        return str(error.body)[:300]
    return ""
