"""What is looked at in the cluster is what the operator puts there."""

from rlrun.garbage import cluster
from rlrun.resources import naming

from tests.unit.resources.test_children import build

UID = "00000001-0000-4000-8000-000000000000"


def test_every_kind_of_child_is_looked_at() -> None:
    assert {kind for kind, _ in build()} == set(cluster.CHILD_APIS)


def test_children_are_recognised_by_the_labels_they_have() -> None:
    labels = naming.RunIdentity("team", "first", UID, 1, 1).labels()
    assert labels[cluster.RUN_UID_LABEL] == UID
    assert labels[cluster.MANAGER_LABEL] == cluster.MANAGER
    for child in build().values():
        assert cluster.is_of_a_run(child)
        assert child["metadata"]["labels"].items() >= {cluster.MANAGER_LABEL: cluster.MANAGER}.items()


def test_what_belongs_to_something_else_is_no_leftover() -> None:
    owners = [{"kind": "RLRun", "uid": UID}, {"kind": "RLAdapter", "uid": UID}]
    assert cluster.is_of_a_run({"metadata": {}})
    assert cluster.is_of_a_run({"metadata": {"ownerReferences": owners[:1]}})
    assert not cluster.is_of_a_run({"metadata": {"ownerReferences": owners}})


def test_finished_is_what_the_schema_calls_finished() -> None:
    assert {"Completed", "Failed", "Stopped"} == cluster.FINISHED
