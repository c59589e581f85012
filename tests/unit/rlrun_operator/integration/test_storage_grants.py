"""Grants for S3 name what the operator has resolved, whatever users write into the objects of a run."""

import json
from typing import Any

import pytest
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import GRANT_VARIABLE, StorageGrant

from tests.support.cluster_objects import STORAGE_KEY
from tests.support.operator_world import World

OTHERS = "s3://rlrun/other-team"


def readable(world: World, replica_set: str) -> dict[str, list[str]]:
    found = {}
    made: Any = world.cluster.find("ReplicaSet", replica_set)
    spec = made["spec"]["template"]["spec"]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        for entry in container["env"]:
            if entry["name"] == GRANT_VARIABLE:
                grant = signed_text.verify(entry["value"], [STORAGE_KEY], StorageGrant)
                assert grant is not None
                found[grant.role.value] = grant.readable
    return found


async def test_pods_that_are_made_again_get_the_same_grants(world: World) -> None:
    await world.start()
    before = readable(world, "reverse-trainer")
    assert before == {"fetcher": ["s3://rlrun/models/tiny"], "trainer": []}
    del world.cluster.objects["ReplicaSet", "team", "reverse-trainer"]
    await world.reconcile()
    assert readable(world, "reverse-trainer") == before


@pytest.mark.parametrize("field", ["warmStartFrom", "source"])
async def test_a_changed_configuration_opens_no_folder_of_others(world: World, field: str) -> None:
    await world.start()
    config: Any = world.cluster.find("ConfigMap", "reverse-config")
    content = json.loads(config["data"]["run.json"])
    (content if field == "warmStartFrom" else content["model"])[field] = OTHERS
    config["data"]["run.json"] = json.dumps(content)
    world.cluster.put(config)
    for name in ("reverse-trainer", "reverse-inference"):
        del world.cluster.objects["ReplicaSet", "team", name]
    await world.reconcile()
    for name in ("reverse-trainer", "reverse-inference"):
        assert not [uri for uris in readable(world, name).values() for uri in uris], name
