import json

import pytest
from rlrun.kube.errors import TIMEOUT, UNREACHABLE, VIOLATION_SEPARATOR, ApiError


def test_a_status_object_gives_reason_message_and_details() -> None:
    body = b'{"reason": "Invalid", "message": "bad", "details": {"name": "first", "causes": []}}'
    error = ApiError.from_response(422, body, "create RLRun team/first")
    assert (error.status, error.reason, error.message) == (422, "Invalid", "bad")
    assert error.details["name"] == "first"
    assert str(error) == "cannot create RLRun team/first: 422 Invalid: bad"


@pytest.mark.parametrize("body", ["<html>", b"\xff", "[]", "", None, "[" * 5000])
def test_an_answer_that_is_no_status_object_keeps_its_text(body: str | bytes | None) -> None:
    error = ApiError.from_response(502, body)
    assert (error.status, error.reason, error.details) == (502, "502", {})


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (ApiError.from_response(404, '{"reason": "NotFound", "details": {"name": "first"}}'), True),
        (ApiError.from_response(404, '{"reason": "NotFound", "details": {}}'), False),
        (ApiError.from_response(404, "404 page not found"), False),
        (ApiError.from_response(409, '{"reason": "Conflict", "details": {"name": "first"}}'), False),
    ],
)
def test_only_a_named_object_counts_as_missing(error: ApiError, missing: bool) -> None:
    assert error.is_object_missing is missing


def test_only_errors_without_an_answer_are_unanswered() -> None:
    assert ApiError(0, TIMEOUT, "no answer").is_unanswered
    assert ApiError(0, UNREACHABLE, "no route").is_unanswered
    assert not ApiError(0, "InvalidAnswer", "html").is_unanswered
    assert not ApiError(504, TIMEOUT, "etcd").is_unanswered


def _denied(name: str, text: str) -> ApiError:
    message = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {text}"
    status = {
        "kind": "Status",
        "reason": "Invalid",
        "message": f'rlruns.rlrun.dev "one" is forbidden: {message}',
        "details": {"name": "one", "causes": [{"message": message}]},
    }
    return ApiError.from_response(422, json.dumps(status))


def test_each_violation_that_the_admission_policy_reports_is_a_cause_with_a_field() -> None:
    texts = ["spec.env[1].id: id names: another", "metadata.name: too long", "spec: spec is larger than 256 KiB"]
    error = _denied("rlruns.rlrun.dev", VIOLATION_SEPARATOR.join(texts))
    assert [(cause["field"], cause["message"]) for cause in error.details["causes"]] == [
        ("spec.env[1].id", "id names: another"),
        ("metadata.name", "too long"),
        ("spec", "spec is larger than 256 KiB"),
    ]
    assert error.details["name"] == "one"


def test_a_value_that_a_rule_fails_on_is_a_cause_with_a_field() -> None:
    text = "expression '// spec.rules[].pattern: must be RE2\n''.matches(x)' resulted in error: missing )"
    (cause,) = _denied("rlruns.rlrun.dev", text).details["causes"]
    assert (cause["field"], cause["message"]) == ("spec.rules[].pattern", "must be RE2: missing )")


@pytest.mark.parametrize(
    ("policy", "text"),
    [("policies.example.com", "spec.seed: no"), ("rlruns.rlrun.dev", "RLRun violates too many rules for one message")],
)
def test_other_messages_of_policies_stay(policy: str, text: str) -> None:
    assert [cause["message"] for cause in _denied(policy, text).details["causes"]] == [
        f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {text}"
    ]
