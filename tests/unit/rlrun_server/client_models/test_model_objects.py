"""State of a client's model, as its RLRun shows it."""

import json
from typing import Any

import pytest
from rlrun.constants import CLIENT_METADATA_ANNOTATION
from rlrun.kube.objects import Obj
from rlrun.kube.references import shared_pool_name
from rlrun_server.client_models.model_objects import is_silent, to_client_model

BASE = "Qwen/Qwen3-4B"
POOL = shared_pool_name(BASE, "0a1b2c3d")


def run(status: Any = None, metadata: str = "", **fields: Any) -> Obj:
    return {
        "metadata": {
            "name": "ts-0123456789ab-0", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {CLIENT_METADATA_ANNOTATION: metadata},
        },
        "spec": {"model": BASE, "driver": "Client", "lora": {"rank": 8}, **fields},
        "status": status or {},
    }  # fmt: skip


def condition(kind: str, value: str, reason: str) -> Obj:
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": f"about {kind}",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"phase": "Running"}, None),
        # Such a condition is that of a role which the run does not have.
        ({"phase": "Running", "conditions": [condition("OrchestratorReady", "False", "NotStarted")]}, None),
        ({"phase": "Running", "reason": "PoolRestarting", "message": "m"}, ("PoolRestarting", "m")),
        ({"phase": "Pending", "reason": "PoolStarting", "message": "m"}, ("PoolStarting", "m")),
        (
            {"phase": "Pending", "conditions": [condition("Validated", "False", "CheckpointNotFound")]},
            ("CheckpointNotFound", "about Validated"),
        ),
        (
            {"phase": "Queued", "reason": "PoolFull", "message": "m", "queue": {"runsAhead": 3}},
            ("PoolFull", "3 runs ahead. m"),
        ),
        (
            {"phase": "Queued", "reason": "PoolFull", "message": "m", "queue": {"runsAhead": 1}},
            ("PoolFull", "1 run ahead. m"),
        ),
        ({"phase": "Queued", "reason": "PoolFull", "message": "m", "queue": {"runsAhead": 0}}, ("PoolFull", "m")),
        ({"phase": "Failed", "reason": "TrainerError", "message": "m"}, ("TrainerError", "m")),
        ({}, ("NotSeenYet", "The operator has not processed the run yet.")),
    ],
)
def test_why_a_session_is_not_open(status: Any, expected: tuple[str, str] | None) -> None:
    waiting = to_client_model(run(status)).waiting
    assert (None if waiting is None else (waiting.reason, waiting.message)) == expected


def test_a_run_that_is_being_deleted_has_ended() -> None:
    deleted = run({"phase": "Running", "pool": {"name": POOL}})
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = to_client_model(deleted)
    assert (found.has_ended, found.trainer_url) == (True, None)
    assert found.waiting is not None
    assert found.waiting.message == "The run is being deleted. Create a new model."


@pytest.mark.parametrize("pool", [shared_pool_name("other/model", "0a1b2c3d"), "evil", "evil.example.com/x", ""])
def test_no_status_redirects_a_client(pool: str) -> None:
    found = to_client_model(run({"phase": "Running", "pool": {"name": pool}}))
    assert (found.trainer_url, found.inference_host) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[1]",
        '{"a": NaN}',
        "[" * 1000,
        f'{{"a": "{"x" * 40_000}"}}',
        json.dumps(dict.fromkeys(map(str, range(257)))),
    ],
)
def test_metadata_that_users_have_changed_is_empty(text: str) -> None:
    assert to_client_model(run(metadata=text)).user_metadata == {}


@pytest.mark.parametrize(
    ("status", "suspend", "expected"),
    [
        ({"reason": "ClientSilent"}, True, True),
        ({"reason": "Finishing", "conditions": [condition("Running", "False", "ClientSilent")]}, True, True),
        ({"reason": "ClientSilent"}, False, False),
        ({"reason": "Suspended", "conditions": [condition("Running", "False", "Suspended")]}, True, False),
    ],
)
def test_only_silence_is_resumed(status: Any, suspend: bool, expected: bool) -> None:
    assert is_silent(run(status, suspend=suspend)) is expected
