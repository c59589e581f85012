"""Usage of serving pools: each hour once, whoever is the operator, and the last part of a pool that is deleted."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rlrun_operator.serving.pool_usage import CAUGHT_UP, pool_records

CREATED = datetime(2026, 1, 30, 18, 45, tzinfo=UTC)


def deployment(replicas: int = 2, gpus: str = "4") -> dict[str, Any]:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    metadata = {
        "name": "pool", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-30T18:45:00Z",
        "annotations": {"rlrun.dev/model": "a/m"},
    }  # fmt: skip
    return {"metadata": metadata, "spec": {"replicas": replicas, "template": {"spec": {"containers": [container]}}}}


def minutes(now: datetime, *, is_deleted: bool = False) -> list[float]:
    return [
        (one.end_time - one.start_time) / timedelta(minutes=1)
        for one in pool_records(deployment(), now, is_deleted=is_deleted)
    ]


def test_each_hour_that_has_ended_is_a_record() -> None:
    assert minutes(CREATED + timedelta(minutes=14)) == []
    assert minutes(CREATED + timedelta(minutes=15)) == [15]
    assert minutes(CREATED + timedelta(minutes=200)) == [15, 60, 60, 60]
    assert len(minutes(CREATED + timedelta(days=90))) == CAUGHT_UP


def test_a_pool_that_is_deleted_counts_until_then() -> None:
    assert minutes(CREATED + timedelta(minutes=10), is_deleted=True) == [10]
    assert minutes(CREATED + timedelta(minutes=25), is_deleted=True) == [15, 10]


def test_all_gpus_of_all_engines_count_and_each_record_has_one_key() -> None:
    now = CREATED + timedelta(days=3)
    first, second = (pool_records(deployment(), time, is_deleted=False) for time in (now, now + timedelta(minutes=14)))
    assert {(one.gpus, one.model, one.namespace) for one in first} == {(8, "a/m", "team")}
    assert [one.key for one in first] == [one.key for one in second]
