"""The usage log's writer: attempts that end together cost one write, and each caller hears of its own failure."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from rlrun.api.usage import UsageRecord
from rlrun.storage.errors import Unreachable
from rlrun.storage.layout import S3Uri
from rlrun_operator.storage.usage_log import UsageLog

from tests.support.fake_artifacts import FakeArtifacts

TIME = datetime(2026, 1, 31, tzinfo=UTC)


def record(uid: str) -> UsageRecord:
    return UsageRecord(namespace="team", name=uid, uid=uid, start_time=TIME, end_time=TIME)


class Artifacts(FakeArtifacts):
    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.writes: list[int] = []

    async def add_usage(self, variables: Mapping[str, str], uri: str, records: Sequence[UsageRecord]) -> None:
        self.writes.append(len(records))
        await self.go.wait()
        await super().add_usage(variables, uri, records)


async def begin(log: UsageLog, count: int) -> list["asyncio.Task[None]"]:
    tasks = [asyncio.create_task(log.record({}, [record(str(number))])) for number in range(count)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_attempts_that_end_together_are_written_together() -> None:
    artifacts = Artifacts()
    tasks = await begin(UsageLog(artifacts, S3Uri("b", ""), "o"), 50)
    artifacts.go.set()
    await asyncio.gather(*tasks)
    assert artifacts.writes == [1, 49]
    (data,) = artifacts.usage.values()
    assert data.count(b"\n") == 50


async def test_each_caller_hears_that_s3_did_not_take_its_records() -> None:
    artifacts = Artifacts()
    artifacts.errors["add_usage"] = Unreachable("no answer")
    tasks = await begin(UsageLog(artifacts, S3Uri("b", ""), "o"), 3)
    artifacts.go.set()
    assert [type(found) for found in await asyncio.gather(*tasks, return_exceptions=True)] == [Unreachable] * 3


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_a_caller_that_is_cancelled_takes_no_other_with_it(cancelled: int) -> None:
    artifacts = Artifacts()
    tasks = await begin(UsageLog(artifacts, S3Uri("b", ""), "o"), 3)
    tasks[cancelled].cancel()
    artifacts.go.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [one for n, one in enumerate(found) if n != cancelled] == [None, None]


async def test_an_attempt_is_in_the_file_of_the_day_on_which_it_ended() -> None:
    artifacts = FakeArtifacts()
    for hours in (0, 25):
        ended = record(str(hours)).model_copy(update={"end_time": TIME + timedelta(hours=hours)})
        await UsageLog(artifacts, S3Uri("b", "p"), "rlrun-system.rlrun").record({}, [ended])
    assert list(artifacts.usage) == [
        "s3://b/p/rlrun.usage/2026-01/31.rlrun-system.rlrun.jsonl",
        "s3://b/p/rlrun.usage/2026-02/01.rlrun-system.rlrun.jsonl",
    ]
