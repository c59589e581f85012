"""Values of PriorityClasses for the queue."""

import logging

import pytest
from rlrun.kube.errors import ApiError
from rlrun_operator.controller.priority_classes import PriorityClasses

from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS
from tests.support.run_states import run_spec

GET = "get PriorityClass urgent"
URGENT = run_spec(priorityClassName="urgent")
URGENT_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 1000,
}


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster(URGENT_CLASS)


def classes(cluster: FakeCluster, *allowed: str) -> PriorityClasses:
    return PriorityClasses(cluster.kube, SETTINGS.model_copy(update={"priority_classes": list(allowed)}))


async def test_the_value_of_a_class_is_read_once(cluster: FakeCluster) -> None:
    reader = classes(cluster, "*")
    assert [await reader.value_of(URGENT) for _ in range(3)] == [1000] * 3
    assert cluster.calls == [GET]


async def test_without_a_class_or_with_one_that_is_not_allowed_nothing_is_read(cluster: FakeCluster) -> None:
    reader = classes(cluster, "batch-*")
    assert (await reader.value_of(run_spec()), await reader.value_of(URGENT)) == (0, 0)
    assert cluster.calls == []


async def test_a_missing_class_counts_as_zero() -> None:
    assert await classes(FakeCluster(), "*").value_of(URGENT) == 0


async def test_a_missing_right_is_logged_and_other_errors_are_raised(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.answers[GET] = [ApiError(403, "Forbidden", "no"), ApiError(500, "InternalError", "no")]
    with caplog.at_level(logging.WARNING):
        assert await classes(cluster, "*").value_of(URGENT) == 0
    assert "PriorityClass urgent" in caplog.text
    with pytest.raises(ApiError):
        await classes(cluster, "*").value_of(URGENT)
