"""What changes on a run that lives takes effect; what cannot is refused by the API server, which names the field."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes import client
from rlrun.constants import CONFIG_ANNOTATION
from rlrun.kube.errors import ApiError

from tests.apiserver.rlrun_operator.conftest import Bench
from tests.apiserver.rlrun_operator.test_artifacts import phases
from tests.apiserver.rlrun_operator.test_operator import started

APPS, CORE = "apis/apps/v1", "api/v1"


def refusal(bench: Bench, **spec: Any) -> str:
    """The field that the API server names."""
    with pytest.raises(client.ApiException) as caught:
        bench.change_run(**spec)
    assert caught.value.status is not None
    return str(ApiError.from_response(caught.value.status, caught.value.body).details["causes"][0]["field"])


@pytest.mark.proves("maxSteps")
def test_max_steps_go_up_and_not_down(bench: Bench) -> None:
    started(bench)
    before = {o["metadata"]["uid"] for o in bench.items(CORE, "pods")}
    bench.change_run(maxSteps=20)

    def told() -> bool:
        config = bench.get(CORE, "configmaps", "reverse-config")
        return config is not None and json.loads(config["data"]["run.json"])["spec"]["maxSteps"] == 20

    bench.wait("the new number in the run's configuration", told)
    assert {o["metadata"]["uid"] for o in bench.items(CORE, "pods")} == before

    def nudged() -> bool:
        pods = bench.items(CORE, "pods")
        return [CONFIG_ANNOTATION in (p["metadata"].get("annotations") or {}) for p in pods].count(True) == 1

    bench.wait("the kubelet of the pod that reads it to be told", nudged)
    assert refusal(bench, maxSteps=19) == "spec.maxSteps"


@pytest.mark.proves("checkpoints.keepCloud")
def test_fewer_checkpoints_to_keep(bench: Bench) -> None:
    started(bench)
    for step in (1, 2, 3):
        bench.upload("checkpoint", step)
    bench.wait("all", lambda: phases(bench) == {1: "Ready", 2: "Ready", 3: "Ready"})
    bench.change_run(checkpoints={"keepCloud": 1})
    bench.wait("the newest", lambda: phases(bench) == {3: "Ready"})
    assert refusal(bench, checkpoints={"interval": 5}) == "spec.checkpoints.interval"
    assert refusal(bench, checkpoints={"keepCloud": 0}) == "spec.checkpoints.keepCloud"


@pytest.mark.proves("stallDeadlineSeconds", "startDeadlineSeconds", "activeDeadlineSeconds")
def test_deadlines(bench: Bench) -> None:
    started(bench)
    bench.tell(step=1, lastStepTime=datetime.now(UTC).isoformat())
    bench.create_run("waits", model="no/such")
    bench.create_run("lives", model="no/such")
    for name in ("waits", "lives"):
        bench.wait("Pending", lambda name=name: bench.phase(name) == "Pending")
    bench.change_run(stallDeadlineSeconds=1)
    bench.change_run("waits", startDeadlineSeconds=1)
    bench.change_run("lives", activeDeadlineSeconds=1)
    for name, reason in (
        ("reverse", "StallDeadlineExceeded"),
        ("waits", "ModelNotFound"),
        ("lives", "ActiveDeadlineExceeded"),
    ):
        bench.wait(reason, lambda name=name, reason=reason: bench.condition("Failed", name).get("reason") == reason)
    assert refusal(bench, stallDeadlineSeconds=0) == "spec.stallDeadlineSeconds"


@pytest.mark.proves("priorityClassName")
def test_another_priority_holds_from_the_next_attempt_on(bench: Bench) -> None:
    started(bench)
    before = {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in bench.items(APPS, "replicasets")}
    bench.change_run(priorityClassName="system-cluster-critical")
    bench.wait("that it was seen", lambda: bench.seen())
    assert {o["metadata"]["name"]: o["metadata"]["resourceVersion"] for o in bench.items(APPS, "replicasets")} == before
    bench.change_run(suspend=True)
    bench.wait("Suspended", lambda: bench.phase() == "Suspended")
    bench.kill_pods()
    bench.change_run(suspend=False)
    bench.wait("the next attempt", lambda: len(bench.items(APPS, "replicasets")) == 3)
    for owner in (*bench.items(APPS, "replicasets"), *bench.items("apis/batch/v1", "jobs")):
        assert owner["spec"]["template"]["spec"]["priorityClassName"] == "system-cluster-critical"
    assert refusal(bench, priorityClassName="Not A Name") == "spec.priorityClassName"


def test_immutable_fields_of_a_live_run_are_refused(bench: Bench) -> None:
    bench.create_run(model="no/such")
    changes: list[dict[str, Any]] = [
        {"batchSize": 64},
        {"learningRate": 0.1},
        {"checkpointId": "x"},
        {"queueName": "q"},
    ]
    for change in changes:
        assert refusal(bench, **change) == f"spec.{next(iter(change))}"
