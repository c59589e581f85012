"""Problems of the REST API for what the API server answers."""

import pytest
from rlrun.constants import Reason
from rlrun.kube.errors import TIMEOUT, TOO_LARGE, ApiError
from rlrun_server.rest.base.problems import RETRYABLE, from_api_error

MESSAGE = "the response has more than 32 MiB. Of the rlruns with the label team=a, delete those that users have made"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (ApiError(0, TIMEOUT, "none"), 503, Reason.API_SERVER_UNAVAILABLE),
        (ApiError(429, "TooManyRequests", "later"), 503, Reason.API_SERVER_UNAVAILABLE),
        (ApiError(0, TOO_LARGE, MESSAGE), 413, Reason.ANSWER_TOO_LARGE),
        (ApiError(401, "Unauthorized", "no"), 401, Reason.TOKEN_INVALID),
        (ApiError(403, "Forbidden", "no"), 403, Reason.ACCESS_FORBIDDEN),
        (ApiError(404, "NotFound", "no"), 404, Reason.OBJECT_NOT_FOUND),
        (ApiError(409, "AlreadyExists", "no"), 409, Reason.NAME_TAKEN),
        (ApiError(409, "Conflict", "no"), 409, Reason.OBJECT_CHANGED),
        (ApiError(422, "Invalid", "no"), 422, Reason.OBJECT_REFUSED),
    ],
)
def test_an_answer_of_the_api_server_has_a_status_and_a_reason(error: ApiError, status: int, reason: Reason) -> None:
    found = from_api_error(error)
    assert (found.status, found.reason) == (status, reason)


def test_a_response_that_is_too_large_says_what_to_delete_and_is_not_requested_again() -> None:
    found = from_api_error(ApiError(0, TOO_LARGE, MESSAGE))
    assert found.detail == f"The objects cannot be read: {MESSAGE}."
    assert found.status not in RETRYABLE
