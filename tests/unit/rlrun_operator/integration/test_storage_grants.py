"""Grants for S3 name what the operator has resolved, whatever users write into the objects of a run."""

import pytest
from rlrun.protocol import signed_text
from rlrun.protocol.storage_access import GRANT_VARIABLE, StorageGrant

from tests.support.built_children import containers, variables
from tests.support.cluster_objects import STORAGE_KEY
from tests.support.expectations import present
from tests.support.operator_world import World

OTHERS = "s3://rlrun/other-team"


def readable(world: World, replica_set: str) -> dict[str, list[str]]:
    found = {}
    for container in containers(world.cluster.held("ReplicaSet", replica_set)["spec"]["template"]):
        if text := variables(container).get(GRANT_VARIABLE):
            grant = present(signed_text.verify(text, [STORAGE_KEY], StorageGrant))
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
    content = world.config
    (content if field == "warmStartFrom" else content["model"])[field] = OTHERS
    world.write_config(content)
    for name in ("reverse-trainer", "reverse-inference"):
        del world.cluster.objects["ReplicaSet", "team", name]
    await world.reconcile()
    for name in ("reverse-trainer", "reverse-inference"):
        assert not [uri for uris in readable(world, name).values() for uri in uris], name
