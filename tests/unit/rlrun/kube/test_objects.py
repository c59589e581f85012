from datetime import UTC, datetime

from rlrun.kube.events import EVENT_MESSAGE_LIMIT, EventRecord, build_event
from rlrun.kube.objects import (
    ObjectRef,
    annotation,
    artifact_name,
    attempt_of,
    is_artifact_ready,
    is_client_run,
    label,
    max_steps_of,
    model_object_name,
    phase_of,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUN = {"kind": "RLRun", "metadata": {"name": "first", "namespace": "team", "uid": "u-1"}}


def test_missing_labels_and_annotations_are_empty() -> None:
    for obj in ({}, {"metadata": {}}, {"metadata": {"labels": None, "annotations": None}}):
        assert (label(obj, "a"), annotation(obj, "a"), attempt_of(obj)) == ("", "", 0)
    obj = {"metadata": {"labels": {"a": "b", "rlrun.dev/attempt": "3"}, "annotations": {"c": "d"}}}
    assert (label(obj, "a"), annotation(obj, "c"), attempt_of(obj)) == ("b", "d", 3)
    assert attempt_of({"metadata": {"labels": {"rlrun.dev/attempt": "x"}}}) == 0


def test_the_steps_of_a_clients_program_have_no_known_end() -> None:
    spec, status = {"driver": "Orchestrator", "maxSteps": 100}, {"progress": {"maxSteps": 120}}
    client = {"spec": {"driver": "Client", "maxSteps": 100}, "status": status}
    assert (is_client_run({"spec": spec}), is_client_run({}), is_client_run(client)) == (False, False, True)
    assert [max_steps_of(run) for run in ({"spec": spec}, {"spec": spec, "status": status}, client)] == [100, 120, 0]


def test_an_artifact_without_a_status_is_not_ready() -> None:
    assert phase_of({}) == ""
    assert not is_artifact_ready(None)
    assert not is_artifact_ready({"status": None})
    assert is_artifact_ready({"status": {"phase": "Ready"}})


def test_object_names_are_derived_from_run_step_and_model() -> None:
    assert artifact_name("first", "12345678-9abc", 40) == "first-step-000040-12345678"
    assert model_object_name("Qwen/Qwen3-4B") == "qwen-qwen3-4b"
    assert ObjectRef.of(RUN) == ObjectRef("RLRun", "first", "u-1")


def test_an_event_is_about_one_object_and_named_by_its_content() -> None:
    record = EventRecord("Failed", "x" * 2000, warning=True)
    event = build_event(RUN, record, NOW)
    assert event["involvedObject"]["uid"] == "u-1"
    assert (event["type"], len(event["message"])) == ("Warning", EVENT_MESSAGE_LIMIT)
    assert event["metadata"]["name"] == build_event(RUN, record, NOW)["metadata"]["name"]
    assert event["metadata"]["name"] != build_event(RUN, EventRecord("Failed", "y"), NOW)["metadata"]["name"]
    assert build_event(RUN, EventRecord("Started", "s"), NOW)["type"] == "Normal"
