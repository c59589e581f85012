"""What a new attempt takes from the spec."""

import pytest

from tests.support.operator_world import World


@pytest.mark.proves("priorityClassName")
async def test_changed_priority_applies_to_the_next_attempt(world: World) -> None:
    await world.start()
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("Deployment", "Job")}
    world.change_spec(priorityClassName="urgent")
    await world.reconcile(2)
    after = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in world.cluster.all("Deployment", "Job")}
    assert after == before, "nothing that trains is restarted for it"
    world.change_spec(suspend=True)
    await world.reconcile()
    world.change_spec(suspend=False)
    await world.reconcile(2)
    templates = [o["spec"]["template"]["spec"] for o in world.cluster.all("Deployment", "Job")]
    assert len(templates) == 4
    assert {t["priorityClassName"] for t in templates} == {"urgent"}
