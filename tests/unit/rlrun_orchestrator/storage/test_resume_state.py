"""The state in S3: its keys, and states that cannot be read."""

import json
from typing import Any

import pytest
from rlrun_orchestrator.storage.resume_state import ResumeState

from tests.support.resume_states import state_after


def test_a_state_survives_json_and_has_the_keys_of_every_version_three() -> None:
    state = state_after(3, 10)
    raw = json.loads(json.dumps(state.to_json()))
    assert ResumeState.parse(raw, "S3") == state
    assert list(raw) == ["version", "run", "step", "reward", "board", "deal", "sent", "reporter", "evaluator"]
    assert (raw["version"], raw["reward"]) == (3, None)
    assert list(raw["deal"]) == ["next", "again", "scores", "buffer", "redraws"]
    assert list(raw["deal"]["buffer"]) == ["draws", "pools"]
    assert list(raw["deal"]["buffer"]["pools"]["a"]) == ["size", "epoch", "cursor", "excluded"]
    assert list(raw["sent"][0]) == ["id", "step", "ordinals", "groups", "tokens", "reward", "values"]


def test_a_state_without_the_parts_of_reporter_and_evaluator_is_read() -> None:
    raw = state_after(3, 10).to_json()
    del raw["reporter"], raw["evaluator"]
    assert ResumeState.parse(raw, "S3") == state_after(3, 10)


def test_a_state_from_before_excluded_examples_had_an_order_is_read() -> None:
    raw = json.loads(json.dumps(state_after(3, 10).to_json()))
    del raw["deal"]["redraws"]
    for pool in raw["deal"]["buffer"]["pools"].values():
        del pool["excluded"]
        pool |= {"easy": [7], "hard": [1, 2]}
    state = ResumeState.parse(raw, "S3")
    assert state is not None
    assert (state.step, state.deal.next, state.deal.again) == (3, 10, state_after(3, 10).deal.again)
    assert [pool.excluded for pool in state.deal.buffer.pools.values()] == [[]]


@pytest.mark.parametrize("raw", [None, {}])
def test_no_state_is_none_without_a_warning(raw: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ResumeState.parse(raw, "S3") is None
    assert not caplog.records


@pytest.mark.parametrize("version", [2, 4, "3", None])
def test_a_state_of_another_version_is_ignored_with_a_warning(version: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert ResumeState.parse(state_after(3, 10).to_json() | {"version": version}, "S3") is None
    assert [record.getMessage() for record in caplog.records] == [
        f"ignoring the state in S3, which has version {version!r} instead of 3"
    ]


@pytest.mark.parametrize(
    "broken", [{"step": "x"}, {"board": 1}, {"board": {}}, {"deal": []}, {"deal": {"next": 1}}, {"sent": [{}]}]
)
def test_a_malformed_state_is_ignored_with_a_warning(broken: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert ResumeState.parse(state_after(3, 10).to_json() | broken, "S3") is None
    assert "malformed" in caplog.text
