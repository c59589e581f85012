"""Histories in which teams share GPUs by the rules, and histories with one mistake each."""

import itertools
from typing import Any

import pytest

from tests.support.gpu_ledger import GPU, Event, GpuLedger, broken_rules

LIMITS = {"red": 6, "blue": 4}
TOTAL = 8


def labels(namespace: str, run: str) -> dict[str, str]:
    return {"rlrun.dev/run": run, "rlrun.dev/run-uid": f"{namespace}-{run}"}


def workload(namespace: str, run: str, *conditions: str, pods: int = 2) -> Event:
    """The Workload of a run, of which these conditions are true."""
    status = {"conditions": [{"type": c, "status": "True"} for c in conditions]}
    metadata = {"namespace": namespace, "labels": labels(namespace, run)}
    spec = {"podSets": [{"name": "trainer", "count": 1}, {"name": "inference", "count": pods - 1}]}
    return "MODIFIED", {"kind": "Workload", "metadata": metadata, "spec": spec, "status": status}


def pod(namespace: str, run: str, name: str, *, node: bool = True, gpus: int = 2, phase: str = "Running") -> Event:
    resources = {"requests": {GPU: str(gpus)}}
    # The init container that checks the GPUs has them before the other one.
    spec: dict[str, Any] = {"containers": [{"name": "main", "resources": resources}]}
    spec["initContainers"] = [{"name": "fetch"}, {"name": "gpu-check", "resources": resources}]
    if node:
        spec["nodeName"] = "node-0"
    metadata = {"namespace": namespace, "uid": f"{namespace}-{run}-{name}", "labels": labels(namespace, run)}
    return "MODIFIED", {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def gone(event: Event) -> Event:
    return "DELETED", event[1]


def numbered(*events: Event) -> list[Event]:
    versions = itertools.count(1)
    return [(k, {**o, "metadata": {**o["metadata"], "resourceVersion": str(next(versions))}}) for k, o in events]


def judge(*events: Event) -> list[str]:
    return broken_rules(numbered(*events), GpuLedger(LIMITS, TOTAL))


RESERVED = ("QuotaReserved", "Admitted")
BOTH_PODS = (pod("red", "a", "trainer"), pod("red", "a", "engine"))


def test_a_run_that_is_admitted_runs_and_ends_breaks_no_rule() -> None:
    assert not judge(
        workload("red", "a"),
        workload("red", "a", *RESERVED),
        pod("red", "a", "trainer", node=False),
        *BOTH_PODS,
        pod("red", "a", "trainer", phase="Succeeded"),
        gone(pod("red", "a", "engine")),
        workload("red", "a", *RESERVED, "Finished"),
    )


def test_a_run_that_is_evicted_and_starts_again_breaks_no_rule() -> None:
    ledger = GpuLedger(LIMITS, TOTAL)
    history = (
        workload("red", "a", *RESERVED),
        *BOTH_PODS,
        workload("red", "a", *RESERVED, "Evicted"),
        *map(gone, BOTH_PODS),
        workload("red", "a"),
        workload("red", "a", *RESERVED),
        *BOTH_PODS,
    )
    assert not broken_rules(numbered(*history), ledger)
    assert ledger.evicted == ledger.whole == {"red-a"}


def test_events_may_come_in_another_order_than_they_happened() -> None:
    history = numbered(workload("red", "a", *RESERVED), *BOTH_PODS)
    assert not broken_rules(history[::-1], GpuLedger(LIMITS, TOTAL))


def test_pods_of_others_do_not_count() -> None:
    kind, stranger = pod("red", "a", "trainer", gpus=100)
    assert not judge((kind, {**stranger, "metadata": {**stranger["metadata"], "labels": {}}}))


@pytest.mark.parametrize(
    "workloads",
    [
        (),
        (workload("red", "a"),),
        (workload("red", "a", "QuotaReserved"),),
        (workload("red", "a", *RESERVED), workload("red", "a", "Evicted")),
        (workload("red", "a", *RESERVED, "Finished"),),
        (workload("red", "a", *RESERVED), gone(workload("red", "a", *RESERVED))),
    ],
)
def test_pods_of_a_run_that_is_not_admitted_are_found(workloads: tuple[Event, ...]) -> None:
    assert "red/a has pods without quota" in judge(*workloads, *BOTH_PODS)


def test_quota_that_is_given_back_before_the_last_pod_is_gone_is_found() -> None:
    trainer, engine = BOTH_PODS
    finished = workload("red", "a", *RESERVED, "Finished")
    admitted = workload("red", "a", *RESERVED)
    assert judge(admitted, trainer, engine, gone(engine), finished, gone(trainer)) == ["red/a has pods without quota"]


def test_a_run_with_some_of_its_pods_is_found() -> None:
    half = (workload("red", "a", *RESERVED), pod("red", "a", "trainer"), pod("red", "a", "engine", node=False))
    assert judge(*half) == ["red/a is admitted, and 1 of its 2 pods have a node"]
    assert judge(*half[:2]) == ["red/a is admitted, and 1 of its 2 pods have a node"]


def test_a_run_that_became_whole_before_its_eviction_only_is_found() -> None:
    admitted = workload("red", "a", *RESERVED)
    again = (admitted, pod("red", "a", "trainer"))
    history = (admitted, *BOTH_PODS, *map(gone, BOTH_PODS), workload("red", "a"), *again)
    assert judge(*history) == ["red/a is admitted, and 1 of its 2 pods have a node"]


def test_a_team_above_its_limit_is_found_also_for_a_moment() -> None:
    events = [event for run in "ab" for event in (workload("blue", run, *RESERVED, pods=1), pod("blue", run, "t"))]
    third = pod("blue", "c", "t")
    found = judge(*events, workload("blue", "c", *RESERVED, pods=1), third, gone(third), gone(events[1]))
    assert "blue uses 6 GPUs, and may use 4" in found


def test_teams_that_use_more_than_there_is_are_found() -> None:
    history = [
        event
        for namespace, run in (("red", "a"), ("red", "b"), ("red", "c"), ("blue", "d"), ("blue", "e"))
        for event in (workload(namespace, run, *RESERVED, pods=1), pod(namespace, run, "t"))
    ]
    assert judge(*history) == ["all teams use 10 GPUs, and there are 8"]
    assert judge(*history[:8]) == []
