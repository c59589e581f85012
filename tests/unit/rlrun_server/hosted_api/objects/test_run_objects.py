"""Runs and their pods as hosted clients show them."""

from typing import Any

import pytest
from rlrun_server.hosted_api.objects.run_objects import component_status, number_servers, pod_status, run_of

from tests.support.rest_api import run_object

NULLABLE_FOR_THE_NEWER_CLIENT_ONLY = ("rolloutsPerExample", "seqLen", "maxSteps", "batchSize", "baseModel")


def shown(phase: str = "Running", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    run = run_object("first", phase=phase, **spec)
    run["status"] |= status or {}
    return run_of(run, "user", 4096)


def test_the_older_client_gets_every_field_that_it_demands() -> None:
    bare = run_object("first")
    del bare["status"]
    found = run_of(bare, "user", None)
    required = ("id", "userId", "status", "createdAt", "updatedAt", *NULLABLE_FOR_THE_NEWER_CLIENT_ONLY)
    assert all(found[field] is not None for field in required)
    assert (found["status"], found["seqLen"], found["environments"]) == (
        "PENDING",
        0,
        [{"slug": "acme/reverse", "id": "acme/reverse"}],
    )


def test_a_run_of_a_clients_program_has_no_environments() -> None:
    found = shown(driver="Client", env=[], model="a/b")
    assert (found["environments"], found["baseModel"], found["status"]) == ([], "a/b", "RUNNING")


@pytest.mark.parametrize(
    ("phase", "word"),
    [("Queued", "QUEUED"), ("Pending", "PENDING"), ("Running", "RUNNING"), ("Completed", "COMPLETED"),
     ("Failed", "FAILED"), ("Stopped", "STOPPED"), ("Suspended", "PAUSED"), ("Unknown", "PENDING")],
)  # fmt: skip
def test_words_of_phases(phase: str, word: str) -> None:
    assert shown(phase)["status"] == word


def test_why_a_run_waits_or_failed() -> None:
    queue = {"queue": {"runsAhead": 3}, "message": "waits for [a] GPU"}
    assert (shown("Queued", queue)["runsAhead"], shown("Queued", queue)["queueReason"]) == (3, "waits for (a) GPU")
    assert shown("Running", queue)["runsAhead"] is None
    assert "rlrun resume" in shown("Suspended")["queueReason"]
    waiting = {"conditions": [{"type": "Admitted", "status": "False", "reason": "R", "message": "no place"}]}
    assert shown("Pending", waiting)["queueReason"] in ("no place", None)
    conditions = [{"type": "Running", "status": "False", "message": "[/x] crashed"}, {"type": "Ok", "status": "True"}]
    failed = shown("Failed", {"reason": "TooManyRestarts", "message": "it [ended]", "conditions": conditions})
    assert failed["errorMessage"] == "it (ended)"
    assert failed["failureAnalysis"] == {"rootCause": "TooManyRestarts", "evidence": ["Running: (/x) crashed"]}
    assert shown("Running", {"reason": "R", "message": "m"})["failureAnalysis"] is None


def test_sections_and_numbers() -> None:
    found = shown(
        name="a [/b]", loraAlpha=16.0, oversamplingFactor=2.0, batchSize=64, eval={"interval": 5},
        wandb={"entity": "e"}, env=[{"id": "a/b", "name": "n", "version": "1", "args": {"[/k]": ["[v]"]}}],
        status={"resolved": {"wandbProject": "p", "maxTokens": 7}},
    )  # fmt: skip
    assert (found["name"], found["loraAlpha"], found["maxInflightRollouts"]) == ("a (/b)", 16, 128)
    assert (found["wandbEntity"], found["wandbProject"], found["maxTokens"]) == ("e", "p", 7)
    assert found["evalConfig"] == {"interval": 5}
    assert found["environments"] == [{"slug": "n", "id": "a/b", "name": "n", "version": "1", "args": {"(/k)": ["(v)"]}}]
    assert shown(loraAlpha=16.5)["loraAlpha"] is None, "the clients refuse it"
    assert shown(status={"completionTime": "2027-01-01T00:00:00Z"})["updatedAt"] == "2027-01-01T00:00:00Z"


def pod(name: str, component: str, phase: str = "Running", ready: bool = True, **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {"rlrun.dev/component": component}
    return {
        "metadata": {"name": name, "labels": labels, **metadata},
        "status": {"phase": phase, "conditions": conditions},
    }


def test_environment_servers() -> None:
    run = run_object("first", env=[{"id": "a/one"}, {"id": "b/two", "name": "one"}], eval={"env": [{"id": "c/exam"}]})
    pods = [pod("p3", "eval-0"), pod("p2", "env-1", "Pending"), pod("p1", "env-0"), pod("p4", "env-9")]
    found = number_servers([component_status(run, each) for each in pods])
    rows = [(row["pod_name"], row["env_name"], row["env_index"], row["status"]) for row in found]
    assert rows == [
        ("p4", "env-9", 0, "RUNNING"), ("p3", "exam", 0, "RUNNING"), ("p1", "one", 0, "RUNNING"),
        ("p2", "one", 1, "PENDING"),
    ]  # fmt: skip
    assert pod_status(pod("p", "env-0", ready=False)) == "STARTING"
    assert pod_status(pod("p", "env-0", deletionTimestamp="t")) == "STOPPING"
