"""What is looked at in the cluster is what the operator puts there."""

from rlrun.garbage import cluster
from rlrun.kube.kinds import CHILDREN
from rlrun.kube.objects import label

from tests.unit.resources.test_children import build

UID = "00000001-0000-4000-8000-000000000000"


def test_every_kind_of_child_is_looked_at() -> None:
    assert {kind for kind, _ in build()} == {kind.kind for kind in CHILDREN}


def test_children_are_recognised_by_the_labels_they_have() -> None:
    for child in build().values():
        assert cluster.is_of_a_run(child)
        for key, value in cluster.CHILD_LABELS.items():
            assert label(child, key) == value or (not value and label(child, key))


def test_what_belongs_to_something_else_is_no_leftover() -> None:
    owners = [{"kind": "RLRun", "uid": UID}, {"kind": "RLAdapter", "uid": UID}]
    assert cluster.is_of_a_run({"metadata": {}})
    assert cluster.is_of_a_run({"metadata": {"ownerReferences": owners[:1]}})
    assert not cluster.is_of_a_run({"metadata": {"ownerReferences": owners}})


def test_finished_is_what_the_schema_calls_finished() -> None:
    assert {"Completed", "Failed", "Stopped"} == cluster.FINISHED
