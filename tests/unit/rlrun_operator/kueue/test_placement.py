import pytest
from rlrun_operator.kueue.placement import PlacementConflict, flavor_names, place, placements
from rlrun_operator.kueue.workload import workload

from tests.support.built_children import IDENTITY, Obj, build, templates
from tests.support.fake_kueue import admitted, flavor

SPOT = flavor("spot", {"pool": "spot"}, [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}])
CPU = flavor("cpu", {"pool": "spot", "arch": "x"})


def made(model: Obj | None = None) -> tuple[list[Obj], Obj]:
    children = list(build(model).values())
    return children, admitted(workload(IDENTITY, "team-a", children), "spot")


def pods(children: list[Obj]) -> dict[str, Obj]:
    return templates({(c["kind"], c["metadata"]["name"]): c for c in children})


def specs(children: list[Obj]) -> dict[str, Obj]:
    return {name: template["spec"] for name, template in pods(children).items()}


def test_every_pod_goes_to_the_nodes_of_its_flavor() -> None:
    children, admission = made()
    assert flavor_names(admission) == ["spot"]
    placed = specs(place(children, placements(admission, {"spot": SPOT})))
    assert len(placed) == 6
    for spec in placed.values():
        assert (spec["nodeSelector"], spec["tolerations"]) == ({"pool": "spot"}, SPOT["spec"]["tolerations"])
    assert all("nodeSelector" not in spec for spec in specs(children).values()), "the input is not changed"


def test_flavors_of_several_resources_add_up_and_one_is_read_once() -> None:
    children, admission = made()
    for one in admission["status"]["admission"]["podSetAssignments"]:
        one["flavors"] = {"cpu": "cpu", "memory": "cpu", "nvidia.com/gpu": "spot"}
    assert flavor_names(admission) == ["cpu", "spot"]
    placed = specs(place(children, placements(admission, {"spot": SPOT, "cpu": CPU})))
    assert placed["reverse-trainer"]["nodeSelector"] == {"pool": "spot", "arch": "x"}


def test_the_placement_of_the_model_stays_beside_that_of_the_flavor() -> None:
    mine = [{"key": "gpu", "operator": "Exists"}, SPOT["spec"]["tolerations"][0]]
    children, admission = made({"trainer": {"nodeSelector": {"disk": "ssd"}, "tolerations": mine}})
    spec = specs(place(children, placements(admission, {"spot": SPOT})))["reverse-trainer"]
    assert spec["nodeSelector"] == {"disk": "ssd", "pool": "spot"}
    assert spec["tolerations"] == mine, "a toleration is not repeated"


def test_a_model_that_asks_for_other_nodes_is_a_conflict() -> None:
    children, admission = made({"inference": {"nodeSelector": {"pool": "dedicated"}}})
    with pytest.raises(
        PlacementConflict, match=r"pool of the inference pods would need two values: 'dedicated' and 'spot'"
    ) as caught:
        place(children, placements(admission, {"spot": SPOT}))
    assert caught.value.problem.reason == "PlacementConflict"


def test_flavors_that_contradict_each_other_are_a_conflict() -> None:
    _, admission = made()
    admission["status"]["admission"]["podSetAssignments"][0]["flavors"] = {"cpu": "spot", "memory": "other"}
    with pytest.raises(PlacementConflict, match="pool"):
        placements(admission, {"spot": SPOT, "other": flavor("other", {"pool": "b"})})


def test_updates_of_admission_checks_are_added() -> None:
    children, admission = made()
    update = {
        "name": "trainer",
        "labels": {"provisioned": "yes"},
        "annotations": {"consume": "request-1"},
        "nodeSelector": {"request": "1"},
        "tolerations": [{"key": "request", "operator": "Exists"}],
    }
    admission["status"]["admissionChecks"] = [{"name": "nodes", "state": "Ready", "podSetUpdates": [update]}]
    placed = place(children, placements(admission, {"spot": SPOT}))
    template = pods(placed)["reverse-trainer"]
    assert template["metadata"]["labels"]["provisioned"] == "yes"
    assert template["metadata"]["labels"]["rlrun.dev/role"] == "trainer"
    assert template["metadata"]["annotations"]["consume"] == "request-1"
    assert template["spec"]["nodeSelector"] == {"pool": "spot", "request": "1"}
    assert template["spec"]["tolerations"][-1] == {"key": "request", "operator": "Exists"}
    assert "request" not in specs(placed)["reverse-inference"]["nodeSelector"]


def test_an_update_that_would_change_a_label_of_the_operator_is_a_conflict() -> None:
    children, admission = made()
    update = {"name": "trainer", "labels": {"rlrun.dev/role": "inference"}}
    admission["status"]["admissionChecks"] = [{"name": "nodes", "state": "Ready", "podSetUpdates": [update]}]
    with pytest.raises(PlacementConflict, match=r"label rlrun\.dev/role"):
        place(children, placements(admission, {"spot": SPOT}))


def test_selectors_of_replica_sets_are_not_changed() -> None:
    children, admission = made()
    placed = place(children, placements(admission, {"spot": SPOT}))
    for before, after in zip(children, placed, strict=True):
        assert before["spec"].get("selector") == after["spec"].get("selector") if "spec" in before else before == after
