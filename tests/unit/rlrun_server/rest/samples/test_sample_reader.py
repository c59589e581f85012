"""Limits of what is read and kept, objects that change, and callers that ask much."""

import asyncio
import random
import threading
import tracemalloc
from typing import Any

import pytest
import zstandard
from rlrun.storage.samples.object_file import ReadLimits, encode_samples
from rlrun.storage.samples.record import SampleSplit
from rlrun_server.rest.base import stored_files
from rlrun_server.rest.samples import sample_reader
from rlrun_server.rest.samples.sample_reader import AT_ONCE, FRESH_SECONDS, LIMITS, MAX_WAITING

from tests.support.rest_api import uid_of
from tests.support.sample_records import groups, record, with_index
from tests.unit.rlrun_server.rest.conftest import SampleApi

LONG = [[record(f"g{g}", f"g{g}-r{r}", info=f"{g * 8 + r}" * 5000) for r in range(8)] for g in range(8)]


def random_groups(count: int, rollouts: int) -> list[list[Any]]:
    """Groups whose object is longer than its first request."""
    return [
        [record(f"g{g}", f"g{g}-r{r}", answer=random.Random(8 * g + r).randbytes(4000).hex())
         for r in range(rollouts)]
        for g in range(count)
    ]  # fmt: skip


async def test_a_group_takes_one_range_more(stored: SampleApi) -> None:
    stored.run.add(3, random_groups(16, 8))
    await stored.found("steps/3/samples")
    await stored.found("steps/3/groups/g1")
    assert stored.bucket.asked == ["list step-000003.", "get step-000003.jsonl.zst", "get step-000003.jsonl.zst"]
    await stored.found("steps/3/histogram")
    assert len(stored.bucket.asked) == 3
    stored.now += FRESH_SECONDS
    await stored.found("steps/3/samples")
    assert stored.bucket.asked[3:] == ["list step-000003."], "what has not changed is not read again"


async def test_an_object_that_is_replaced_is_read_again(stored: SampleApi) -> None:
    stored.run.add(3, random_groups(16, 8))
    await stored.found("steps/3/samples")
    changed = [[r.model_copy(update={"answer": "new"}) for r in group] for group in random_groups(16, 8)]
    stored.run.add(3, changed)
    found = await stored.found("steps/3/groups/g1")
    assert found.get("problem") is None
    assert found["records"][0]["answer"] == "new"


async def test_an_object_that_is_deleted_is_named(stored: SampleApi) -> None:
    stored.run.add(3, random_groups(16, 8))
    await stored.found("steps/3/samples")
    stored.bucket.objects.clear()
    assert await stored.problem("steps/3/groups/g1") == (404, "ObjectNotFound")


async def test_steps_have_a_limit_of_objects(stored: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_reader, "MAX_OBJECTS", 3)
    for n in range(5):
        stored.run.add(3, [[record(f"g{n}", f"r{n}")]], SampleSplit.eval, f"exam-{n}")
    found = await stored.found("steps/3/samples", {"split": "eval"})
    assert found["total"] == 3
    assert "5 files" in found["problems"][0]


@pytest.mark.parametrize("bare", [False, True], ids=["with an index", "without an index"])
async def test_the_objects_of_a_step_have_a_limit_together(
    stored: SampleApi, monkeypatch: pytest.MonkeyPatch, bare: bool
) -> None:
    monkeypatch.setattr(sample_reader, "LIMITS", ReadLimits(rows=50))
    for n in range(4):
        records = [[record(f"g{n}", f"r{n}-{r}", info="x" * 10_000) for r in range(3 if bare else 30)]]
        if bare:
            stored.run.put(3, zstandard.compress(b"".join(each.to_line() for each in records[0])), f"eval-exam-{n}")
        else:
            stored.run.add(3, records, SampleSplit.eval, f"exam-{n}")
    found = await stored.found("steps/3/samples", {"split": "eval"})
    assert found["total"] == (6 if bare else 42), "of the second object with an index as many rows as are left"
    assert "too many rollouts" in found["problems"][-1]


@pytest.mark.parametrize(
    "limits",
    [
        ReadLimits(rows=10, scan=2**20),
        ReadLimits(index=100, scan=2**20),
        ReadLimits(packed_index=100, scan=2**20),
    ],
)
async def test_an_index_above_a_limit_is_not_believed(
    stored: SampleApi, monkeypatch: pytest.MonkeyPatch, limits: ReadLimits
) -> None:
    monkeypatch.setattr(sample_reader, "LIMITS", limits)
    stored.run.add(3, groups(10, 8))
    found = await stored.found("steps/3/samples")
    assert "too large" in found["problems"][0]
    assert found["total"] == min(80, limits.rows)


@pytest.mark.parametrize("limits", [ReadLimits(group=10_000), ReadLimits(record=1000), ReadLimits(scan=100)])
async def test_a_group_above_a_limit_is_not_read(
    stored: SampleApi, monkeypatch: pytest.MonkeyPatch, limits: ReadLimits
) -> None:
    monkeypatch.setattr(sample_reader, "LIMITS", limits)
    stored.run.add(3, LONG)
    found = await stored.found("steps/3/groups/g1")
    assert "cannot be read" in found["problem"]
    assert found["records"] == []


async def test_bombs_need_little_memory(stored: SampleApi) -> None:
    bomb = zstandard.compress(bytes(2**28))
    stored.run.put(3, bomb)
    data = encode_samples(4, SampleSplit.train, groups()).data
    stored.run.put(4, with_index(data, lambda _: bomb))
    wide = b'{"v":2,"step":5,"split":"train","groups":[' + b"1," * 1_000_000 + b"1]}"
    stored.run.put(5, with_index(data, lambda _: zstandard.compress(wide)))
    tracemalloc.start()
    for step in (3, 4, 5):
        assert (await stored.found(f"steps/{step}/samples"))["problems"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 * LIMITS.group


async def test_what_is_kept_has_a_limit(stored: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = stored.rest.services.samples
    for step in range(3):
        stored.run.add(step, random_groups(16, 8))
        await stored.found(f"steps/{step}/samples")
    kept = reader._tails._size
    assert 3 * 90_000 < kept < 3 * 110_000
    monkeypatch.setattr(reader._tails, "_limit", kept)
    stored.run.add(3, random_groups(16, 8))
    await stored.found("steps/3/samples")
    assert reader._tails._size <= kept


async def test_one_caller_leaves_threads_to_others(stored: SampleApi, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.run.add(3, groups())
    gate, began = threading.Event(), threading.Semaphore(0)
    read = stored.bucket.walk_prefix

    def slow(uri: Any) -> Any:
        if uri.key.endswith("step-000009."):
            began.release()
            assert gate.wait(20)
        return read(uri)

    monkeypatch.setattr(stored.bucket, "walk_prefix", slow)
    waiting = [asyncio.create_task(stored.get("steps/9/samples")) for _ in range(AT_ONCE + MAX_WAITING)]
    for _ in range(AT_ONCE):
        assert await asyncio.to_thread(began.acquire, timeout=10)
    refused = await stored.get("steps/3/samples")
    assert (refused.status_code, refused.json()["reason"]) == (429, "TooManyRequests")
    assert int(refused.headers["retry-after"]) > 0
    other = stored.rest.user("ben", "get rlruns/samples in team")
    answer = await stored.rest.client.get("/namespaces/team/runs/first/steps/3/samples", headers=other)
    assert answer.status_code == 200
    assert not began.acquire(blocking=False), "no more than AT_ONCE of one caller wait for S3"
    gate.set()
    assert {found.status_code for found in await asyncio.gather(*waiting)} == {404}
    assert (await stored.get("steps/3/samples")).status_code == 200


async def test_s3_that_does_not_answer_in_time(
    stored: SampleApi, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stored_files, "WAIT_SECONDS", 0.05)
    gate = threading.Event()
    read = stored.bucket.walk_prefix

    def slow(uri: Any) -> Any:
        assert gate.wait(20)
        return read(uri)

    monkeypatch.setattr(stored.bucket, "walk_prefix", slow)
    answer = await stored.get("steps/3/samples")
    assert (answer.status_code, answer.json()["reason"]) == (503, "S3Unreachable")
    assert int(answer.headers["retry-after"]) > 0
    assert f"rollouts of team/{uid_of(1)}" in caplog.text, "a timeout names no file"
    gate.set()
