"""Files of the states of a run's orchestrators: what a process that is cut off writes reaches no later process."""

import json
from pathlib import Path

import pytest
from rlrun.storage.layout import RunLayout, S3Uri
from rlrun.storage.store import Unreachable
from rlrun_orchestrator.storage.state_files import (
    checkpoint_state_uri,
    claim_state,
    copy_state_number,
    parse_object,
    read_checkpoint_state,
    state_uri,
)
from rlrun_orchestrator.storage.upload_spool import UploadPriority, UploadSpool

from tests.support.run_processes import RUN_URI
from tests.support.run_store import RunStore

LAYOUT = RunLayout(S3Uri.parse(RUN_URI))


@pytest.fixture
def store() -> RunStore:
    return RunStore()


@pytest.fixture
def spool(tmp_path: Path) -> UploadSpool:
    return UploadSpool(tmp_path, 10**6)


def test_the_first_process_finds_no_state(store: RunStore, spool: UploadSpool) -> None:
    uri, data = claim_state(store, LAYOUT, spool)
    assert (uri, parse_object(data)) == (state_uri(LAYOUT, 1), None)


def test_a_cut_off_process_changes_no_state_of_its_successors(store: RunStore, spool: UploadSpool) -> None:
    first, _ = claim_state(store, LAYOUT, spool)
    store.put_bytes(first, b'{"step": 3}')
    second, data = claim_state(store, LAYOUT, spool)
    assert (second, json.loads(data)) == (state_uri(LAYOUT, 2), {"step": 3})
    store.put_bytes(first, b'{"step": 2, "late": true}')
    # Before the second process has written a state of its own, and after.
    _, data = claim_state(store, LAYOUT, spool)
    assert json.loads(data) == {"step": 3}
    third = state_uri(LAYOUT, 3)
    store.put_bytes(third, b'{"step": 5}')
    store.put_bytes(second, b'{"step": 4}')
    uri, data = claim_state(store, LAYOUT, spool)
    assert (uri, json.loads(data)) == (state_uri(LAYOUT, 4), {"step": 5})


def test_a_process_that_wrote_nothing_before_it_was_cut_off_changes_none(store: RunStore, spool: UploadSpool) -> None:
    first, _ = claim_state(store, LAYOUT, spool)
    second, _ = claim_state(store, LAYOUT, spool)
    store.put_bytes(first, b'{"step": 1}')
    assert second == state_uri(LAYOUT, 2)
    assert parse_object(claim_state(store, LAYOUT, spool)[1]) is None


def test_what_waits_in_the_spool_of_the_pod_is_newer(store: RunStore, spool: UploadSpool) -> None:
    first, _ = claim_state(store, LAYOUT, spool)
    spool.enqueue(first, UploadPriority.state, b'{"step": 7}')
    assert json.loads(claim_state(store, LAYOUT, spool)[1]) == {"step": 7}


def test_states_of_checkpoints_are_no_states_of_processes(store: RunStore, spool: UploadSpool) -> None:
    store.put_bytes(checkpoint_state_uri(LAYOUT, 999), b'{"step": 999}')
    assert claim_state(store, LAYOUT, spool) == (state_uri(LAYOUT, 1), b"{}")
    assert json.loads(read_checkpoint_state(store, LAYOUT, spool, 999)) == {"step": 999}
    assert parse_object(read_checkpoint_state(store, LAYOUT, spool, 998)) is None


def test_a_claim_that_is_not_stored_is_none(store: RunStore, spool: UploadSpool) -> None:
    store.away = Unreachable("s3://bucket does not answer at http://s3")
    with pytest.raises(Unreachable):
        claim_state(store, LAYOUT, spool)
    store.away = None
    assert claim_state(store, LAYOUT, spool)[0] == state_uri(LAYOUT, 1)


@pytest.mark.parametrize("number", [999_999, 1_000_000])
def test_numbers_are_compared_as_numbers(store: RunStore, spool: UploadSpool, number: int) -> None:
    for process in (2, number):
        store.put_bytes(state_uri(LAYOUT, process), json.dumps({"step": process}).encode())
    uri, data = claim_state(store, LAYOUT, spool)
    assert (uri, json.loads(data)) == (state_uri(LAYOUT, number + 1), {"step": number})


@pytest.mark.parametrize(
    ("steps", "step", "number"),
    [
        ([-1, -1, -1, -1], 0, 0),
        ([3, -1, -1, -1], 6, 1),
        ([3, 6, 9, -1], 12, 3),
        ([12, 3, 6, 9], 15, 1),
        ([3, 6, 9, 12], 9, 2),
        ([3, 6, 9, 12], 7, 2),
        ([3, 12, 9, -1], 8, 2),
        ([6, 3, 3, -1], 3, 1),
    ],
    ids=["first", "free", "last free", "oldest", "same", "next later", "later before free", "first of the same"],
)
def test_the_state_of_a_copy_replaces_one_of_its_step_or_an_abandoned_or_the_oldest_one(
    steps: list[int], step: int, number: int
) -> None:
    assert copy_state_number(steps, step) == number
