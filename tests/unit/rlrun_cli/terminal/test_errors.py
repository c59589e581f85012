import json

import pytest
from rlrun.kube.errors import ApiError
from rlrun_cli.terminal.errors import ConflictError, NotFoundError, NotReadyError, UnreachableError, to_cli_error


def status(**fields: object) -> str:
    return json.dumps({"kind": "Status", **fields})


def test_each_invalid_field_is_listed_once() -> None:
    body = status(
        message='RLRun.rlrun.dev "x" is invalid: [...]',
        reason="Invalid",
        details={
            "causes": [
                {"field": "spec.batchSize", "message": "Invalid value: must be a multiple"},
                {"field": "spec.batchSize", "message": "Invalid value: must be a multiple"},
                {"field": "spec.env[0].id", "message": "Required value"},
                {"field": "<nil>", "message": "some rules were not checked"},
            ]
        },
    )
    problem = to_cli_error(ApiError.from_response(422, body, "create RLRun team/x"))
    assert problem.message == "cannot create RLRun team/x: the API server rejected the object"
    assert problem.details == [
        "spec.batchSize: Invalid value: must be a multiple",
        "spec.env[0].id: Required value",
        "some rules were not checked",
    ]
    assert problem.code == 1


@pytest.mark.parametrize(
    ("code", "body", "kind", "message", "hint"),
    [
        (401, None, Exception, "rejected your credentials", "--kubeconfig"),
        (403, status(message="rlruns is forbidden: User cannot"), Exception, "User cannot", "`edit` role"),
        (404, status(message='rlruns "x" not found', details={"name": "x"}), NotFoundError, "does not exist", "list"),
        (404, "404 page not found", NotFoundError, "does not know this kind", "helm install"),
        (409, status(reason="AlreadyExists", message="exists"), ConflictError, "already exists", "--name"),
        (409, status(reason="Conflict", message="modified"), Exception, "modified", "again"),
        (503, "", UnreachableError, "overloaded", "moment"),
        (400, status(message='container "x" is waiting to start'), NotReadyError, "waiting to start", "-f"),
    ],
)
def test_each_status_has_a_message_and_a_hint(code: int, body: str | None, kind: type, message: str, hint: str) -> None:
    problem = to_cli_error(ApiError.from_response(code, body, "do it"))
    assert isinstance(problem, kind)
    assert message in problem.message
    assert hint in (problem.hint or "")


def test_an_unknown_status_is_reported_as_a_sentence() -> None:
    assert (
        to_cli_error(ApiError.from_response(418, b"\xff<html>", "do it")).message
        == "cannot do it: the API server returned status 418"
    )
