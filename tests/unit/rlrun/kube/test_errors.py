import pytest
from rlrun.kube.errors import TIMEOUT, UNREACHABLE, ApiError


def test_a_status_object_gives_reason_message_and_details() -> None:
    body = b'{"reason": "Invalid", "message": "bad", "details": {"name": "first", "causes": []}}'
    error = ApiError.from_response(422, body, "create RLRun team/first")
    assert (error.status, error.reason, error.message) == (422, "Invalid", "bad")
    assert error.details["name"] == "first"
    assert str(error) == "cannot create RLRun team/first: 422 Invalid: bad"


@pytest.mark.parametrize("body", ["<html>", b"\xff", "[]", "", None])
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
