import json

import pytest
from rlrun.kube.errors import ApiError
from rlrun_cli.terminal.errors import ConflictError, NotFoundError, NotReadyError, UnreachableError, explain


def status(**fields: object) -> str:
    return json.dumps({"kind": "Status", **fields})


def test_validation_lists_each_field_once() -> None:
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
    problem = explain(ApiError.from_response(422, body, "create RLRun team/x"))
    assert problem.message == "cannot create RLRun team/x: the API server refuses it"
    assert problem.details == [
        "spec.batchSize: Invalid value: must be a multiple",
        "spec.env[0].id: Required value",
        "some rules were not checked",
    ]
    assert problem.code == 1


@pytest.mark.parametrize(
    ("code", "body", "kind", "said", "hint"),
    [
        (401, None, Exception, "does not know you", "--kubeconfig"),
        (403, status(message="rlruns is forbidden: User cannot"), Exception, "User cannot", "rlrun-editor"),
        (404, status(message='rlruns "x" not found', details={"name": "x"}), NotFoundError, "does not exist", "list"),
        (404, "404 page not found", NotFoundError, "no such kind", "helm install"),
        (409, status(reason="AlreadyExists", message="exists"), ConflictError, "taken", "--name"),
        (409, status(reason="Conflict", message="modified"), Exception, "modified", "again"),
        (503, "", UnreachableError, "overloaded", "moment"),
        (400, status(message='container "x" is waiting to start'), NotReadyError, "waiting to start", "-f"),
    ],
)
def test_each_answer_has_a_next_step(code: int, body: str | None, kind: type, said: str, hint: str) -> None:
    problem = explain(ApiError.from_response(code, body, "do it"))
    assert isinstance(problem, kind)
    assert said in problem.message
    assert hint in (problem.hint or "")


def test_unknown_answer_is_still_a_sentence() -> None:
    assert (
        explain(ApiError.from_response(418, b"\xff<html>", "do it")).message
        == "cannot do it: the API server answered 418"
    )
