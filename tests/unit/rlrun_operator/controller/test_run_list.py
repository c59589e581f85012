"""Contents of the list of all runs."""

from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun_operator.controller.run_list import list_runs

from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import FakeCluster


def run(name: str, namespace: str = "team", **status: Any) -> Obj:
    return {**run_object(name, namespace, f"uid-{name}", ttlSecondsAfterFinished=60), "status": status}


@pytest.mark.parametrize(("namespaces", "expected"), [([], "abc"), (["team"], "ab"), (["team", "else"], "abc")])
async def test_all_pages_of_all_namespaces_are_read(namespaces: list[str], expected: str) -> None:
    runs = [run("a", phase="Running"), run("b", phase="Failed"), run("c", "else")]
    cluster = FakeCluster(*runs)
    if not namespaces:
        pages = [{"items": runs[:1], "metadata": {"continue": "more"}}, {"items": runs[1:], "metadata": {}}]
        cluster.answers["list rlruns"] = pages
    found = await list_runs(cluster.kube, namespaces)
    assert "".join(sorted(obj["metadata"]["name"] for obj in found)) == expected
    if not namespaces:
        assert [request.query.get("continue") for request in cluster.requests] == [None, "more"]


async def test_a_list_whose_second_page_fails_is_none() -> None:
    cluster = FakeCluster()
    gone = ApiError(410, "Expired", "the list is too old")
    cluster.answers["list rlruns"] = [{"items": [run("a")], "metadata": {"continue": "more"}}, gone]
    with pytest.raises(ApiError):
        await list_runs(cluster.kube, [])


@pytest.mark.parametrize("for_admission", [False, True])
async def test_a_finished_run_is_listed_without_what_nothing_reads(for_admission: bool) -> None:
    ended = run("a", phase="Completed", completionTime="2026-01-01T00:00:00Z", conditions=[{"type": "Completed"}])
    ended["metadata"] |= {"managedFields": [{}], "deletionTimestamp": "2026-01-02T00:00:00Z"}
    (found,) = await list_runs(FakeCluster(ended).kube, [], for_admission=for_admission)
    assert found["status"] == {"phase": "Completed", "completionTime": "2026-01-01T00:00:00Z"}
    assert found["spec"] == {"model": ended["spec"]["model"], "ttlSecondsAfterFinished": 60}
    metadata = {key: value for key, value in found["metadata"].items() if key not in ("labels", "resourceVersion")}
    assert metadata == {
        "namespace": "team",
        "name": "a",
        "uid": "uid-a",
        "deletionTimestamp": "2026-01-02T00:00:00Z",
    }


@pytest.mark.parametrize("status", [{}, {"phase": "Running"}, {"phase": "Failed", "queue": {"priority": 1}}])
async def test_a_run_with_work_or_a_place_is_whole_in_the_list_for_the_queue_only(status: dict[str, Any]) -> None:
    cluster = FakeCluster(run("a", **status))
    (whole,) = await list_runs(cluster.kube, [], for_admission=True)
    assert whole["spec"] == run("a")["spec"]
    assert whole["status"] == status
    (listed,) = await list_runs(cluster.kube, [])
    assert listed["spec"].keys() == {"model", "ttlSecondsAfterFinished"}
    assert listed["status"] == {key: value for key, value in status.items() if key == "phase"}
